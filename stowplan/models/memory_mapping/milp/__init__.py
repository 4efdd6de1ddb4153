"""Lower bounds on memory mapping by a relaxation, as a linear program or as a MILP. All coefficients are whole numbers.

* ``model``: columns and rows of the plain relaxation.
* ``tightening``: rows that are added if a solution violates them (separation), and a model with the durations of copies.
* ``solve``: solves a relaxation with HiGHS, in rounds of solving and adding rows.
* ``prices``: Lagrange multipliers for certificates, from the duals of a solved relaxation.
* ``segments``: the bound of a program from bounds of its segments, each a problem of its own.
* ``matrix``: the relaxation as one matrix, for files and for other solvers.
* ``hint``: the solution of the relaxation that corresponds to a plan, and a hint from a solution of the relaxation.
* ``external``: the bound of the relaxation by another solver.
"""
