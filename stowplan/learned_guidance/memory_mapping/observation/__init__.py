"""Observations of a state of MMapGame.

Each file imports only files above it in this list:

- ``layout``: the arrays of an observation and the features in them
- ``compiled``: compiled encoding of a state as an observation
- ``observer``: the part of an observation that is the same in all states of a game, and the encoding of a state
"""
