"""The path of every call of :func:`stowplan.solve`, from the check of its arguments to its result: see README.md in this
folder."""
