"""PPO for modulo scheduling: a graph network that places a loop body instruction by instruction.

A *mapping* gives each instruction a *place*, a tile and a slot, at an initiation interval (II). An *episode* makes one mapping;
it *fails* if an instruction has no legal place left. A *round* collects placements in all environments and then updates the
network. The *curriculum* chooses the problem and the II of each episode.

Each file imports only files above it in this list:

- ``network``: the graph network of policy and value
- ``config``: the configuration of training, with values for CPUs
- ``lessons``: the episodes of training, and plans to imitate
- ``policy``: a trained mapper, which can map any loop body
- ``trainer``: training of the PPO mapper
"""
