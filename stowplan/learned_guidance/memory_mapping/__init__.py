"""MMapGame: memory mapping played move by move (Wang et al. 2023); its rules are in ``docs/reference/mmap-game.md``.

Each file knows only those before it:

- ``game``: MMapGame: rules, states, games
- ``guide``: a learned guide of memory mapping
- ``observation``: what a player sees of a state of MMapGame
- ``environment``: MMapGame as a Gymnasium environment
- ``muzero``: MMap-MuZero, which plays it
"""
