"""The rules of MMapGame as compiled code, on flat tables and one flat vector for a state.

Each file imports only files above it in this list:

- ``layout``: the meaning of each number of a state
- ``tables``: a game as flat tables
- ``places``: free offsets and copy windows in a state
- ``rules``: the moves: legal actions, their effects, and going back
- ``readers``: queries of a state for other compiled code
- ``state``: games and states for Python code
"""
