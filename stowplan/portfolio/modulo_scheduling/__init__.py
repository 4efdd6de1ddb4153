"""Modulo scheduling: heuristics, candidates, and the kind for the registry."""
