"""Rematerialization: which operators run again, so that fewer bytes are live at once.

Each file knows only those above it in this list:

- ``problem``, ``plan``: what is given, and the answer. ``verify``: whether a plan is valid, and what it costs
- ``structure``: the problem as lists, for all that follows. ``timeline``: when the steps of a plan take place
- ``cuts``: minimum cuts at the first run of an operator. ``bounds``: on peak and added cost, with a host or without
- ``moments``: moments that say much. ``stages``: the MILP from one to the next
- ``cpsat_fit``: what fits in memory, ``cpsat_model``: the CP-SAT model, ``cpsat``: what its answers prove
"""
