"""Bounds on memory mapping by a relaxation in whole numbers, linear or with integers.

* ``model``: columns and rows of the plain relaxation; ``detail``: those of the one that knows how long copies take.
* ``windows`` and ``cuts``: rows that are added where a solution violates them (separation).
* ``highs``: a relaxation in HiGHS; ``solve``: rounds of solving and adding rows.
* ``segments``: the bound of a program from bounds of its segments, each a problem of its own (``segment_problem``).
* ``guide``: what the plain relaxation says of each access, as a hint.
* ``matrix``: the relaxation with its rows as one matrix, to be written to a file; ``hint``: a plan as a point of it;
  ``external``: any other solver on it.
"""
