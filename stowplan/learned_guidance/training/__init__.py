"""Training code that all agents share: the run loop, checkpoints, policies and curves.

Each file imports only files above it in this list:

- ``checkpoint``: checkpoint and policy files of agents
- ``curve``: a training curve as a CSV file
- ``run``: the base class of trainers, and the run loop
- ``settings``: configurations of agents
"""
