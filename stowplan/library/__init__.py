"""The library of instances: problems of every kind with the best plans and bounds that are known, and the proofs of these.

- ``table``: the folder of the library, its table, and its files
- ``check``: checks of rows, and of plans and certificates that somebody adds
- ``schema``: JSON Schemas of the files of problems and plans
"""
