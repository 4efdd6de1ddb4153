"""The library of instances: problems of every kind, with the best plans and bounds that are known, and proofs of the bounds.

An *instance* is a problem with an id. A *certificate* is a proof of a bound that can be checked without a solver. The library
is the folder ``instances`` of a clone of stowplan. The commands ``stowplan library`` and ``stowplan schema`` use this package.

- ``table``: the folder of the library, its table, and its files
- ``check``: checks the rows of the table, and plans and certificates that somebody adds
- ``schema``: JSON Schemas of the files of problems and plans
"""
