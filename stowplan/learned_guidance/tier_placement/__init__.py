"""Learned guidance for tier placement: the graph of a network of layers, the EGRL agent, and the Gymnasium environment.

A problem is a *network of layers* on a chip, not to be confused with the neural networks that place it. A *map* gives the
weights and the output of each layer a tier; tiers are numbered from the slowest, 0. The chip's compiler *rectifies* a map: it
moves tensors that have no room in their tier to other tiers. A *posterior* is the probabilities of tiers that a policy
computes, with the shape [N, 2, T] for N layers, weights and output, and T tiers.

Each file imports only files above it in this list:

- ``decode``: executable maps from the probabilities of a policy
- ``graph``: a network of layers as a graph with node features
- ``egrl``: EGRL: a population of graph networks and Boltzmann chromosomes, and a soft actor-critic
- ``environment``: tier placement as a Gymnasium environment
"""
