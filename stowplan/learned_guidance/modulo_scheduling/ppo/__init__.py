"""PPO for modulo scheduling: a graph network that places a loop body instruction by instruction.

Each file imports only files above it in this list:

- ``network``: the graph network of policy and value
- ``config``: the configuration of training, with values for CPUs
- ``lessons``: the episodes of training, and plans to imitate
- ``policy``: a trained mapper, which can map any loop body
- ``trainer``: training of the PPO mapper
"""
