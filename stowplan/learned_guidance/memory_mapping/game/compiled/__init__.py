"""MMapGame, compiled: the rules on flat tables and one flat vector for a state.

Each file knows only those before it:

- ``layout``: what each number of a compiled game state means
- ``tables``: a game as flat tables, for compiled code
- ``places``: where there is room in a compiled state
- ``rules``: the rules of MMapGame, compiled, on tables and a flat state
- ``readers``: what compiled code wants to know of a state
- ``state``: the compiled game for Python
"""
