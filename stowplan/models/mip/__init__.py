"""Mixed-integer linear programs in matrix form, and every solver that a user may own for them.

Each kind of problem makes a :class:`~stowplan.models.mip.matrix.MatrixModel`; what is done with it is the same for all kinds:
solved by a program or in process (:mod:`~stowplan.models.mip.solve`), or written to a file
(:mod:`~stowplan.models.mip.export`).
"""
