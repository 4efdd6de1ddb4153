"""Heuristics and candidates for banked packing."""
