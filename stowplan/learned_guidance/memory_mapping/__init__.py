"""MMapGame, memory mapping as a game (Wang et al. 2023), with its agent; the rules are in ``docs/reference/mmap-game.md``.

Each file imports only files above it in this list:

- ``game``: the rules of MMapGame, its states and finished games
- ``guide``: a learned guide, which gives hints to heuristics
- ``observation``: the observation of a state, as a network sees it
- ``environment``: MMapGame as a Gymnasium environment
- ``muzero``: the agent MMap-MuZero
"""
