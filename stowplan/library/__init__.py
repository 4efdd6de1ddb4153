"""The library of instances: problems of every kind, with the best plans and bounds that are known, and proofs of the bounds.

The commands ``stowplan library`` and ``stowplan schema`` use it.

- ``table``: the folder of the library, its table, and its files
- ``check``: checks the rows of the table, and plans and certificates that somebody adds
- ``schema``: JSON Schemas of the files of problems and plans
"""
