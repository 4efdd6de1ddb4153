"""Rematerialization: evictions by a greedy simulation, local search over sequences, and the exact model as candidates."""
