"""Observations of a state of MMapGame.

In the game, each *move* decides how the uses of one *visit* are served; a visit is all uses of a tensor by one step, or by a
whole loop. A *buffer* of an observation is the tensor of one move, with the facts about this move. The *target time* is the
first step of the current move. The *benefit* of a move is the time that its uses would save in fast memory, and its *first
benefit* is that while everything else is in slow memory. The time of the copy channel is divided into *slots*, whose *supply*
is the time that copies can use. Returns are measured in the game's *unit* (``CompiledGame.unit_ps``).

Each file imports only files above it in this list:

- ``layout``: the arrays of an observation and the features in them
- ``compiled``: compiled encoding of a state as an observation
- ``observer``: the part of an observation that is the same in all states of a game, and the encoding of a state
"""
