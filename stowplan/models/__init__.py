"""Kinds of problem, one folder each: instance, plan, verifier, exact models."""
