"""A learned guide for memory mapping: it predicts a hint for every access of a program, without solving a relaxation.

Each file imports only files above it in this list:

- ``program``: a memory-mapping problem as flat arrays of accesses
- ``features``: the features of each access
- ``guide``: the network and its hints
"""
