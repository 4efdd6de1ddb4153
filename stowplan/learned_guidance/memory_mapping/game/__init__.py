"""MMapGame: its rules, compiled code for them, good games, and programs to play on.

Each file imports only files above it in this list:

- ``game``: moves, actions and settings of the game
- ``compiled``: the rules as compiled code
- ``demonstrations``: plans of heuristics, solvers or compilers as games
- ``local_search``: better games by local search
- ``programs``: programs to play on
"""
