"""What every call of :func:`stowplan.solve` passes through: see README.md beside this file."""
