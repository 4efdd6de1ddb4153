"""Everything the package raises on purpose, as a small tree under :class:`StowplanError`."""

from __future__ import annotations

from pathlib import Path


class StowplanError(Exception):
    """Base of all errors of this package. ``exit_code`` is what the command line returns for it."""

    exit_code = 2


class InputError(StowplanError):
    """Bad input: says where, what was found and what was expected, in one line.

    Parameters
    ----------
    message
        What was found and what was expected.
    source
        File the input came from, if any.
    place
        Line, field or instruction inside it, for example ``"line 12"``.
    """

    def __init__(self, message: str, *, source: str | Path | None = None, place: str | None = None):
        self.message = " ".join(message.split())
        self.source = None if source is None else str(source)
        self.place = place
        where = ": ".join(part for part in (self.source, place) if part)
        super().__init__(f"{where}: {self.message}" if where else self.message)

    def within(self, source: str | Path) -> InputError:
        """The same error with its file named, for readers that were given text only."""
        if self.source is not None:
            return self
        return type(self)(self.message, source=source, place=self.place)


class UsageError(StowplanError):
    """A call or command line that asks for something the package does not offer."""


class VerificationError(StowplanError):
    """A plan that breaks the rules of its problem."""

    exit_code = 4


class MissingDependencyError(StowplanError):
    """An optional package is needed; the message names the extra that brings it."""
