"""MMap-MuZero: the agent of Wang et al. 2023 that learns to play MMapGame. Nothing here imports torch by itself.

Each file knows only those before it:

- ``config``: everything that decides how MMap-MuZero is made and trained
- ``network``: the network of MMap-MuZero
- ``replay``: played games to learn from
- ``exploration``: what is played without the network
- ``self_play``: games played side by side
- ``checkpoint``: files of MMap-MuZero
- ``learner``: one step of training
- ``play``: playing with a trained policy
- ``trainer``: training of MMap-MuZero on one or more programs
"""
