"""Learned guidance for modulo scheduling: mappings built place by place, the Gymnasium environment, and the PPO agent.

A *mapping* gives each instruction of a loop body a *place*: a tile and a slot. A *partial* mapping has places for some of them.
The *time* of an instruction is the clock at which the first iteration issues it. The *makespan* is the number of clocks until
the last result of one iteration. An *edge* is a value that one instruction passes to another one, over links between tiles or
over the *asynchronous fabric*, a network that connects all tiles; its *distance* is the number of iterations between the two. A
*group* is a set of instructions that must be on the same tile, for example because they use the same *variable*, data in the
memory of one tile. *Siblings* are the consumers of one value, or the producers for one consumer, which must be on different
tiles. A *recurrence* is a set of instructions that wait for each other in a cycle over iterations. A *flow* is a set of
instructions that links connect; it starts at one of its *sources*, which read no value of the same iteration over a link. A
*pin* fixes the tile, the time or the slot of an instruction. The *spoke RAM* of a tile has an entry for each slot, so its depth
limits the initiation interval (II).

Each file imports only files above it in this list:

- ``compiled``: compiled steps of a partial mapping
- ``body``: the data of a loop body that all its mappings share
- ``look_ahead``: compiled look-ahead of a partial mapping
- ``state``: a partial mapping of a loop body
- ``view``: the features of a loop body that do not depend on a mapping
- ``observation``: observations of a partial mapping
- ``environment``: modulo scheduling as a Gymnasium environment
- ``ppo``: PPO for modulo scheduling
"""
