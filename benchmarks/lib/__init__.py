"""What several benchmarks share and the package does not need: baselines, generators, fits, and training from data sets."""
