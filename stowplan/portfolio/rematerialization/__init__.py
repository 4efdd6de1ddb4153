"""Rematerialization: heuristics that find sequences of operator runs, and exact models, as candidates.

A *sequence* lists operators in the order in which they run; some occur several times. Each file imports only files above it in
this list:

- ``engine``: live bytes of a sequence, and local search. ``additions``: the best run to add to a sequence
- ``insertion``: adding runs until a sequence is within the limit; ruin and recreate
- ``residency``, ``simulation``: which storages are in memory while an order runs. ``greedy``: the simulation with evictions
- ``peaks``: plans of small peak. ``two_cuts``: drafts from two minimum cuts. ``transfers``: plans of drafts with fetches
- ``proofs``: bounds, the exact model and the baseline. ``staged``: the staged MILP. ``offload``: which values go to the host
- ``candidates``: the main heuristic. ``frontier``: plans for several limits
- ``kind``: the declaration of the kind
"""
