"""MMapGame: its rules, plainly and compiled, programs to play it on, and what is known of its best games.

Each file knows only those before it:

- ``game``: MMapGame
- ``compiled``: its rules, compiled
- ``demonstrations``: plans of others as games of MMapGame
- ``local_search``: better games by local search
- ``programs``: programs to play MMapGame on
"""
