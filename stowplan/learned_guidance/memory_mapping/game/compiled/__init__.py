"""The rules of MMapGame as compiled code, on flat tables and one flat vector for a state.

The *home* of a tensor is its latest residency. The latency of a step depends on which of its uses are fast. It is the maximum
of several terms, its *pieces*; or it is read from a *latency table*, in which each *subset* of fast uses has an entry. A *part*
is the effect of one move on one step. A decision *binds* later moves of the tensor if dropping all of them is not possible any
more. The other terms, such as move, visit, slot, window, supply, alias group and Drop-backup, are those of the folder ``game``:
a *move* decides how the uses of one *visit*, all uses of a tensor by one step or loop, are served.

Each file imports only files above it in this list:

- ``layout``: the meaning of each number of a state
- ``tables``: a game as flat tables
- ``places``: free offsets and copy windows in a state
- ``rules``: the moves: legal actions, their effects, and going back
- ``readers``: queries of a state for other compiled code
- ``state``: games and states for Python code
"""
