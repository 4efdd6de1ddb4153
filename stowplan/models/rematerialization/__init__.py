"""Rematerialization: which operators run again, so that fewer bytes are live at once.

Each file imports only files that come before it in this list:

- ``problem``, ``plan``: the data. ``verify``: checks plans and recomputes their added cost and peak
- ``structure``: the problem as lists, for all following files. ``timeline``: the times at which the steps of a plan take place
- ``cuts``: minimum cuts at the first run of an operator. ``bounds``: bounds on peak and added cost, with a host or without
- ``moments``: selects moments for the staged program. ``stages``: the staged program, a MILP whose stages lie between moments
- ``cpsat_fit``: memory constraints, ``cpsat_model``: the CP-SAT model, ``cpsat``: solves it and says what its answers prove
"""
