"""Rematerialization: heuristics that find sequences of runs, and the exact models as candidates.

Each file knows only those above it in this list:

- ``engine``: what is live in a sequence; local search. ``additions``: the run that is best added
- ``insertion``: runs added until a sequence is within the limit; ruin and recreate
- ``residency``, ``simulation``: what is there while an order runs. ``greedy``: evictions while it runs, as a function
- ``peaks``: plans of small peak. ``two_cuts``: drafts from two minimum cuts. ``transfers``: plans of drafts with fetches
- ``proofs``: bounds, the exact model and the baseline. ``staged``: the MILP in stages. ``offload``: which values are fetched
- ``candidates``: the search. ``frontier``: several limits at once
- ``kind``: all of it, declared
"""
