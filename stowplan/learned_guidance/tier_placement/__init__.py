"""Tier placement as learned policies meet it: a network of layers as a graph, an environment, and EGRL.

Each file knows only those before it:

- ``decode``: from a policy's probabilities to maps that can be executed
- ``graph``: a network of layers as the graph that policies see
- ``egrl``: EGRL: a population of graph networks and Boltzmann chromosomes beside a soft actor-critic
- ``environment``: tier placement as a Gymnasium environment
"""
