"""What several benchmarks share and the package does not need: baselines, generators, fits, and training from data sets.

Scripts beside this folder import it as ``lib``, and so do the tests.
"""
