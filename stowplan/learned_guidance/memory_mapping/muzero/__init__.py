"""MMap-MuZero, the agent of Wang et al. 2023 that learns to play MMapGame. Importing this folder does not import torch.

Each file imports only files above it in this list:

- ``config``: the settings of network and training
- ``network``: the network
- ``replay``: the replay buffer of played games
- ``exploration``: games that are played without the network
- ``self_play``: games played in parallel by tree search
- ``checkpoint``: the formats of its files
- ``learner``: one training step
- ``play``: playing with a trained policy
- ``trainer``: training on one or several programs
"""
