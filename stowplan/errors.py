"""Everything the package raises on purpose, as a small tree under :class:`StowplanError`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

#: Characters of a message at most, and of a place in a file; what they quote of a user's file may be of any size.
MOST_MESSAGE, MOST_PLACE = 700, 160
#: Characters of one word of a message at most.
MOST_WORD = 200

_LONG_WORD = re.compile(rf"\S{{{MOST_WORD + 1},}}")


class StowplanError(Exception):
    """Base of all errors of this package. ``exit_code`` is what the command line returns for it."""

    exit_code = 2
    advice: tuple[str, ...] = ()
    """Lines that the command line shows below it: what to type instead."""


class InputError(StowplanError):
    """Bad input: says where, what was found and what was expected, in one line of a few hundred characters.

    Parameters
    ----------
    message
        What was found and what was expected. Long words in it, and the middle of a long message, become ``...``: they are text
        of the user's file.
    source
        File the input came from, if any.
    place
        Line, field or instruction inside it, for example ``"line 12"``.
    """

    def __init__(self, message: str, *, source: str | Path | None = None, place: str | None = None):
        self.message = brief(message)
        self.source = None if source is None else str(source)
        self.place = None if place is None else brief(place, MOST_PLACE)
        where = ": ".join(part for part in (None if source is None else _one_line(str(source)), self.place) if part)
        super().__init__(f"{where}: {self.message}" if where else self.message)

    def within(self, source: str | Path) -> InputError:
        """The same error with its file named, for readers that were given text only."""
        if self.source is not None:
            return self
        return type(self)(self.message, source=source, place=self.place)


class UsageError(StowplanError):
    """A call or command line that asks for something the package does not offer."""

    def __init__(self, message: str):
        super().__init__(brief(message))


class TimeLimitError(StowplanError):
    """The time limit was over before there was a problem to solve."""

    exit_code = 3


class VerificationError(StowplanError):
    """A plan that breaks the rules of its problem."""

    exit_code = 4


class MissingDependencyError(StowplanError):
    """An optional package is needed; the message names the extra that brings it."""


def to_install(extra: str) -> str:
    """How to get an extra of this package, which is in no index: from a clone of it."""
    return f"pip install '.[{extra}]' in a clone of stowplan"


@contextlib.contextmanager
def naming(source: str | Path | None) -> Iterator[None]:
    """Name a file in each :class:`InputError` from within that names none; None leaves them as they are."""
    try:
        yield
    except InputError as error:
        raise (error if source is None else error.within(source)) from error.__cause__


def first_line(error: BaseException) -> str:
    """What a foreign error says first: some run over pages, and some say nothing but their type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def brief(text: str, most: int = MOST_MESSAGE) -> str:
    """``text`` in one line of at most ``most`` characters: its long words and then its middle left out, ``...`` in their place.

    Characters that a terminal would take for commands stand as ``\\x1b``.
    """
    # Whatever is cut anyway need not be looked at: the text may be a whole file.
    if len(text) > 20 * most:
        text = f"{text[: 10 * most]} {text[-10 * most :]}"
    shortened = _LONG_WORD.sub(lambda match: _cut(match[0], MOST_WORD), _one_line(" ".join(text.split())))
    return _cut(shortened, most)


def _cut(text: str, most: int) -> str:
    """The beginning and the end of a text; the end, a quarter, is where messages say what was expected."""
    return text if len(text) <= most else f"{text[: most - most // 4 - 3]}...{text[len(text) - most // 4 :]}"


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in text)
