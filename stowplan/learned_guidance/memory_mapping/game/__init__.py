"""MMapGame: its rules, compiled code for them, good games, and programs to play on.

A game makes a plan in a sequence of *moves*. A *visit* is all uses of one tensor by one step, or by a whole loop if the tensor
enters or leaves it. Each move decides how uses of one visit are served: *Copy* (from fast memory, with a copy-in or copy-out),
*NoCopy* (from fast memory, without a copy) or *Drop* (from slow memory). The reward of a move is the time that it saves; the
*benefit* is what it would save if its uses were fast, and the *return* of a game is the sum of its rewards. The time of the
copy channel is divided into *slots*, each of which is a step, or an outermost loop in which no copy may begin or end. The
*window* of a copy is a range of slots, and their *supply* is the time that copies can use. In an *infeasible* state no action
is legal. With *Drop-backup*, the game then goes back to an earlier state and keeps the alias group in slow memory from there
on; without it, the game is *lost*.

Each file imports only files above it in this list:

- ``game``: moves, actions and settings of the game
- ``compiled``: the rules as compiled code
- ``demonstrations``: plans of heuristics, solvers or compilers as games
- ``local_search``: better games by local search
- ``programs``: programs to play on
"""
