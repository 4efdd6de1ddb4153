"""Messages for people that are not part of results: the logger ``stowplan``, and notes about parts of inputs that are not
modelled.

The logger reports the progress of runs to any handler that is attached; without one, nothing is written. Anything that a user
must see is in the warnings of the result, and the logger does not repeat it as a warning.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

LOGGER = logging.getLogger("stowplan")
"""INFO: runs, plans, bounds and failures. DEBUG: starts and ends of candidates, and plans that are not better than the best
one."""

LOGGER.addHandler(logging.NullHandler())


#: MAX_NOTES is the maximum number of notes about one input. If there are more, the last one is replaced by a note that says how
#: many were left out. MAX_NOTE_LENGTH is the maximum number of characters of a note.
MAX_NOTES, MAX_NOTE_LENGTH = 20, 300


def bounded(notes: Iterable[str]) -> tuple[str, ...]:
    """Removes repeated notes, shortens each to :data:`MAX_NOTE_LENGTH` characters and keeps at most :data:`MAX_NOTES` of them.

    Applying it to its own result changes nothing.
    """
    every = list(dict.fromkeys(cut(note) for note in notes))
    if len(every) <= MAX_NOTES:
        return tuple(every)
    return (*every[: MAX_NOTES - 1], f"and {len(every) - MAX_NOTES + 1} more")


def cut(text: str) -> str:
    """A text in one line, shortened to :data:`MAX_NOTE_LENGTH` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_NOTE_LENGTH else f"{line[: MAX_NOTE_LENGTH - 3]}..."


class UnmodelledWarning(UserWarning):
    """Part of an input is not modelled, or only partly. The message says where, what it is, and how that may affect the
    plan."""


_UNMODELLED: ContextVar[dict[str, list[str]] | None] = ContextVar("unmodelled", default=None)


def warn_unmodelled(text: str, place: str) -> None:
    """Records, while a file is read, that part of it is not modelled.

    Inside :func:`collecting_unmodelled` the message is collected, and otherwise it is issued as an :class:`UnmodelledWarning`.

    Parameters
    ----------
    text
        What is not modelled and how that may affect the plan, without the place: equal texts are reported once.
    place
        The operator, tensor or instruction.
    """
    places = _UNMODELLED.get()
    if places is None:
        warnings.warn(f"{place}: {cut(text)}", UnmodelledWarning, stacklevel=2)
    else:
        places.setdefault(text, []).append(place)


@contextlib.contextmanager
def collecting_unmodelled() -> Iterator[dict[str, list[str]]]:
    """Collects the calls of :func:`warn_unmodelled` within the block. Yields a dictionary that maps each text to its places."""
    places: dict[str, list[str]] = {}
    token = _UNMODELLED.set(places)
    try:
        yield places
    finally:
        _UNMODELLED.reset(token)


def unmodelled_lines(places: dict[str, list[str]]) -> tuple[str, ...]:
    """One line for each text, with its first place and the number of other places."""
    rest = ((text, where[0], len(set(where)) - 1) for text, where in places.items())
    return bounded(f"{first}{f' and {more} more' if more else ''}: {text}" for text, first, more in rest)
