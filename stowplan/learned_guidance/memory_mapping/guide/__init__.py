"""A learned guide of memory mapping: values for every access of a program, before any relaxation is solved.

Each file knows only those before it:

- ``program``: a memory-mapping problem as flat arrays of accesses
- ``features``: what the guide knows of each access, in numbers
- ``guide``: the learned guide
"""
