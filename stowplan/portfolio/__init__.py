"""Heuristics, candidates, the run of them side by side, and the choice of the verified best."""
