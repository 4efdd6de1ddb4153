"""Learned guidance for modulo scheduling: mappings built place by place, the Gymnasium environment, and the PPO agent.

A *mapping* gives each instruction of a loop body a *place*: a tile and a slot. A *partial* mapping has places for some of them.

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
