"""Tier placement as learned policies meet it: a network of layers as a graph, an environment, and EGRL."""
