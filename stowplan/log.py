"""What people are told beside results: the logger ``stowplan``, and remarks few and short enough to be read.

The logger has the progress of runs, for whoever attaches a handler; without one nothing is written. What a run must not leave
unsaid is in the warnings of its result; the logger repeats none of that as a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

LOGGER = logging.getLogger("stowplan")
"""INFO: runs, plans, bounds and failures. DEBUG: candidates that start and end, plans that are no better."""

LOGGER.addHandler(logging.NullHandler())


#: Notes kept of one source, the last of them saying how many more there were; and characters of each.
MOST, LENGTH = 20, 300


def bounded(notes: Iterable[str]) -> tuple[str, ...]:
    """The notes, each once, at most :data:`MOST` of them, each cut at :data:`LENGTH` characters.

    What comes out of this goes through it unchanged.
    """
    every = list(dict.fromkeys(cut(note) for note in notes))
    if len(every) <= MOST:
        return tuple(every)
    return (*every[: MOST - 1], f"and {len(every) - MOST + 1} more")


def cut(text: str) -> str:
    """One line of a text, of :data:`LENGTH` characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= LENGTH else f"{line[: LENGTH - 3]}..."
