"""Graphs in their given order as packing problems: the arena of a runtime."""
