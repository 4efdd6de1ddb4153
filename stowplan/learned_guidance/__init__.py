"""Learned policies and the hints they give.

Each file knows only those before it:

- ``environments``: the package's Gymnasium environments
- ``nn``: layers of networks that several agents use
- ``training``: what every agent is trained with
- ``mcts``: Monte-Carlo tree search with a learned model
- ``memory_mapping``: MMapGame, its agent MMap-MuZero, and a learned guide
- ``modulo_scheduling``: modulo scheduling as a game, and PPO
- ``tier_placement``: tier placement as policies see it, and EGRL
"""
