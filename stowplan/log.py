"""What people are told beside results: the logger ``stowplan``, what readers do not model, remarks short enough to be read.

The logger has the progress of runs, for whoever attaches a handler; without one nothing is written. What a run must not leave
unsaid is in the warnings of its result; the logger repeats none of that as a warning.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

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


class UnmodelledWarning(UserWarning):
    """An input has something that its reader does not model, or only in part; says where, what, and what it may cost."""


_UNMODELLED: ContextVar[dict[str, list[str]] | None] = ContextVar("unmodelled", default=None)


def warn_unmodelled(text: str, place: str) -> None:
    """Say, while a file is read, what of it is not modelled.

    Parameters
    ----------
    text
        What that is and what it may cost, without the place: what is said of several places is told once.
    place
        Operator, tensor or instruction.
    """
    places = _UNMODELLED.get()
    if places is None:
        warnings.warn(f"{place}: {cut(text)}", UnmodelledWarning, stacklevel=2)
    else:
        places.setdefault(text, []).append(place)


@contextlib.contextmanager
def collecting_unmodelled() -> Iterator[dict[str, list[str]]]:
    """Collects what :func:`warn_unmodelled` is told within: places by text."""
    places: dict[str, list[str]] = {}
    token = _UNMODELLED.set(places)
    try:
        yield places
    finally:
        _UNMODELLED.reset(token)


def unmodelled_lines(places: dict[str, list[str]]) -> tuple[str, ...]:
    """One line for each text, with its first place and how many more there are."""
    rest = ((text, where[0], len(set(where)) - 1) for text, where in places.items())
    return bounded(f"{first}{f' and {more} more' if more else ''}: {text}" for text, first, more in rest)
