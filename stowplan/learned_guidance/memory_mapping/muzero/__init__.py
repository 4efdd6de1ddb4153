"""MMap-MuZero, the agent of Wang et al. 2023 that learns to play MMapGame. Importing this folder does not import torch.

A game makes one plan, in *moves* that are *Copy*, *NoCopy* (both in fast memory) or *Drop* (in slow memory). *Drop-backup* goes
back from a position without a legal move to an earlier one. Rewards, values and returns are in the game's *unit*, the return of
the greedy game, so that they are comparable between programs; *R* is the normalised return, 0 if everything is in slow memory
and 1 if every step has its least latency. The *improved policy* and the *search value* are the probabilities of actions and the
value that a tree search finds for a position. *Reanalysis* searches a stored position again with the present network. A
*demonstration* is a plan of another method as a game.

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
