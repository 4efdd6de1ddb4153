"""Heuristics and candidates for memory mapping."""
