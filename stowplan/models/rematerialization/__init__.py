"""Rematerialization: problem, plan, verifier, bounds and the exact model."""
