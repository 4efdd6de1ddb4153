"""Rematerialization: which operators run again, so that fewer bytes are live at once.

Each file knows only those above it in this list:

- ``problem``, ``plan``: what is given, and the answer. ``verify``: whether a plan is valid, and what it costs
- ``structure``: the problem as lists, for all that follows. ``timeline``: when the steps of a plan take place
- ``bounds``: on peak and added cost, by minimum cuts. ``host_bounds``: the same where values may go to a host
- ``moments``: moments that say much. ``stages``: the MILP from one to the next
- ``cpsat_fit``: the rows of memory of both CP-SAT models. ``cpsat``: the exact model. ``host_cpsat``: that with a host
"""
