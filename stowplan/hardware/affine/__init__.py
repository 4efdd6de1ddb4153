"""Affine programs: loop nests with quasi-affine accesses, operators with bank rules, and NumPy to run them.

Each file knows only those before it:

- ``expression``: quasi-affine expressions over loop indices
- ``program``: affine programs
- ``check``: says what is wrong with an affine program, naming the operator
- ``rules``: bank rules of operators (section 2.2 of the paper)
"""
