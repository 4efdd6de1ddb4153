"""Learned guidance for modulo scheduling: mappings built place by place, the Gymnasium environment, and the PPO agent.

Each file knows only those before it:

- ``compiled``: compiled steps of a partial mapping
- ``body``: what mappings of one loop body share
- ``look_ahead``: look-ahead of a partial mapping, compiled
- ``state``: a partial mapping of a loop body
- ``view``: what a policy of modulo scheduling sees of a loop body before anything is placed
- ``observation``: what a policy of modulo scheduling sees
- ``environment``: modulo scheduling as a Gymnasium environment
- ``ppo``: PPO for modulo scheduling
"""
