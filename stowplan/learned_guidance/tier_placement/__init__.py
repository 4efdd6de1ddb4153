"""Learned guidance for tier placement: the graph of a network of layers, the EGRL agent, and the Gymnasium environment.

Each file imports only files above it in this list:

- ``decode``: executable maps from the probabilities of a policy
- ``graph``: a network of layers as a graph with node features
- ``egrl``: EGRL: a population of graph networks and Boltzmann chromosomes, and a soft actor-critic
- ``environment``: tier placement as a Gymnasium environment
"""
