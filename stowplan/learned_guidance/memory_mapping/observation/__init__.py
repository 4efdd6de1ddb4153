"""What a player sees of a state of MMapGame.

Each file knows only those before it:

- ``layout``: what stands where in an observation of MMapGame
- ``compiled``: encoding a state of MMapGame as an observation, compiled
- ``observer``: what MMap-MuZero sees of a state
"""
