"""Learned policies, which play problems as games, and learned guides, which give hints to heuristics.

Each file imports only files above it in this list:

- ``environments``: registers the package's Gymnasium environments
- ``nn``: layers of networks that several agents use
- ``training``: checkpoints, settings and the training loop of all agents
- ``mcts``: Monte-Carlo tree search with a learned model
- ``memory_mapping``: memory mapping as a game (MMapGame), its agent MMap-MuZero, and a learned guide
- ``modulo_scheduling``: modulo scheduling as a game, and its agent PPO
- ``tier_placement``: tier placement as an environment, and its agent EGRL
"""
