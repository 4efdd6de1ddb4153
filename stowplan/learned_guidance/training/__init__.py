"""Training code that all agents share: the run loop, checkpoints, policies and curves.

An *agent* is a method that learns to make plans. A *policy* is its trained network, and a *checkpoint* is the complete state of
its training, from which it can continue. An *episode*, for some agents a *game*, is the making of one plan, and a
*demonstration* is a plan of another method, which the agent learns to imitate.

Each file imports only files above it in this list:

- ``checkpoint``: checkpoint and policy files of agents
- ``curve``: a training curve as a CSV file
- ``run``: the base class of trainers, and the run loop
- ``settings``: configurations of agents
"""
