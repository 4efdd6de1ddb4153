"""Affine programs: loop nests that copy data with quasi-affine accesses, and operators with bank rules.

Each file imports only files that are listed before it:

- ``expression``: quasi-affine expressions over loop indices
- ``program``: affine programs
- ``check``: checks affine programs; errors name the operator
- ``rules``: bank rules of operators
"""
