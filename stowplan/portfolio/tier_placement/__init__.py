"""Tier placement in the portfolio: baselines, a compiled local search, and the exact models as candidates."""
