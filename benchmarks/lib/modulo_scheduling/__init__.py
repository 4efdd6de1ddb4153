"""Modulo scheduling: suites of graphs, and comparisons of equal work."""
