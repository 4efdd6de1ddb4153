"""Bank mapping: local mapping, propagation, local search, and the exact models as candidates."""
