"""Heuristics, candidates, the runner that races them, and the choice of the verified best."""
