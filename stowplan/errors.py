"""The errors that the package raises on purpose, all of them subclasses of :class:`StowplanError`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

#: Maximum number of characters of a message, and of a place in a file. Both may quote text of a user's file, which can have any
#: size.
MAX_MESSAGE_LENGTH, MAX_PLACE_LENGTH = 700, 160
#: Maximum number of characters of one word of a message.
MAX_WORD_LENGTH = 200

_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_LENGTH + 1},}}")


class StowplanError(Exception):
    """Base class of all errors of this package. ``exit_code`` is the exit code with which the command line ends after it."""

    exit_code = 2
    advice: tuple[str, ...] = ()
    """Lines that the command line prints below the error: what to type instead."""


class InputError(StowplanError):
    """The input is not valid. The message says in one line of a few hundred characters where, what was found and what was
    expected.

    Parameters
    ----------
    message
        What was found and what was expected. Long words in it, and the middle of a long message, are replaced by ``...``,
        because they quote text of the user's file.
    source
        File that the input came from, if any.
    place
        Line, field or instruction in that file, for example ``"line 12"``.
    """

    def __init__(self, message: str, *, source: str | Path | None = None, place: str | None = None):
        self.message = brief(message)
        self.source = None if source is None else str(source)
        self.place = None if place is None else brief(place, MAX_PLACE_LENGTH)
        where = ": ".join(part for part in (None if source is None else _escaped(str(source)), self.place) if part)
        super().__init__(f"{where}: {self.message}" if where else self.message)

    def within(self, source: str | Path) -> InputError:
        """Returns this error with ``source`` as its file, for readers that were given only the text of a file. An error that
        names a file already is returned unchanged."""
        if self.source is not None:
            return self
        return type(self)(self.message, source=source, place=self.place)


class UsageError(StowplanError):
    """A call or a command line asks for something that the package does not offer, or has an argument that is not valid."""

    def __init__(self, message: str):
        super().__init__(brief(message))


class TimeLimitError(StowplanError):
    """The time limit was over before the problem had been read."""

    exit_code = 3


class VerificationError(StowplanError):
    """A plan breaks the rules of its problem."""

    exit_code = 4


class MissingDependencyError(StowplanError):
    """An optional package is needed. The message names the extra that installs it."""


def to_install(extra: str) -> str:
    """The text of the command that installs an extra, a set of optional packages. The package is in no package index, so it is
    installed from a clone."""
    return f"pip install '.[{extra}]' in a clone of stowplan"


@contextlib.contextmanager
def naming(source: str | Path | None) -> Iterator[None]:
    """Context manager that adds the name of a file to an :class:`InputError` that is raised in its block, unless the error
    names a file already. With None, errors are left unchanged."""
    try:
        yield
    except InputError as error:
        raise (error if source is None else error.within(source)) from error.__cause__


def first_line(error: BaseException) -> str:
    """The first line of the message of another package's error, because some of these messages fill pages. An empty message is
    replaced by the type of the error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def brief(text: str, most: int = MAX_MESSAGE_LENGTH) -> str:
    """Shortens a text to one line of at most ``most`` characters: ``...`` replaces the middle of long words, then the middle of
    the text.

    Characters that a terminal would interpret as commands are written as ``\\x1b``.
    """
    # The text may be a whole file. Text that will be cut anyway is dropped before the slower steps below.
    if len(text) > 20 * most:
        text = f"{text[: 10 * most]} {text[-10 * most :]}"
    shortened = _LONG_WORD.sub(lambda match: _cut_middle(match[0], MAX_WORD_LENGTH), _escaped(" ".join(text.split())))
    return _cut_middle(shortened, most)


def _cut_middle(text: str, most: int) -> str:
    """The beginning and the end of a text. The end, a quarter of it, is where messages say what was expected."""
    return text if len(text) <= most else f"{text[: most - most // 4 - 3]}...{text[len(text) - most // 4 :]}"


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in text)
