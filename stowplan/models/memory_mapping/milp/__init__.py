"""Bounds on memory mapping by a relaxation in whole numbers, linear or with integers.

* ``model``: columns and rows of the plain relaxation.
* ``tightening``: rows added where a solution violates them (separation); the model that knows how long copies take.
* ``solve``: a relaxation in HiGHS, and rounds of solving and adding rows.
* ``prices``: prices of a byte step by step, from a solved relaxation, for certificates.
* ``segments``: the bound of a program from bounds of its segments, each a problem of its own.
* ``matrix``: the relaxation with its rows as one matrix, to be written to a file or given to any other solver.
* ``hint``: a plan as a point of the relaxation, and what the relaxation says of each access, as a hint.
* ``external``: its bound by another solver.
"""
