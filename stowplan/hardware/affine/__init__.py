"""Affine programs: loop nests with quasi-affine accesses, operators with bank rules, and NumPy to run them."""
