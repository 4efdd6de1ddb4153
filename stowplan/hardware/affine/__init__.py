"""Affine programs: loop nests that copy data with quasi-affine accesses, and operators with bank rules.

Such programs are the input of bank mapping, which chooses the dimension along which each tensor is spread over the banks of an
on-chip memory. Each module imports only modules that are listed before it:

- ``expression``: quasi-affine expressions over loop indices
- ``program``: affine programs
- ``check``: checks affine programs; errors name the operator
- ``rules``: bank rules of operators
"""
