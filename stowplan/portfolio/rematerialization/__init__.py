"""Rematerialization: heuristics that find sequences of operator runs, and exact models, as candidates of a run of ``solve``.

A *run* of an operator is one execution, which must not be confused with a run of ``solve``. A *sequence* lists operators in the
order in which they run; some occur several times. A sequence is *within the limit* if its live bytes never exceed the limit of
the problem. Its *added cost* is the cost of all runs, less the cost of running each operator once. A *storage* is a tensor with
bytes of its own, which its views share; a *value* is a storage or a view.

Each file imports only files above it in this list:

- ``engine``: live bytes of a sequence, and simulated annealing. ``additions``: the best runs to add to a sequence
- ``insertion``: adding runs until a sequence is within the limit; ruin and recreate
- ``residency``, ``simulation``: which storages are in memory while an order runs. ``greedy``: the simulation with evictions
- ``peaks``: plans of small peak. ``two_cuts``: drafts from two minimum cuts. ``transfers``: plans of drafts with fetches
- ``proofs``: bounds, the exact model and the baseline. ``staged``: the staged MILP. ``offload``: which values go to the host
- ``candidates``: the main heuristic. ``frontier``: plans for several limits
- ``kind``: the declaration of the kind
"""
