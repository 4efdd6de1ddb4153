"""Errors and warnings for graphs that a back end cannot plan: the framework's own plan is kept, and a warning says why."""

from __future__ import annotations

import importlib.util
import warnings

from stowplan.errors import MissingDependencyError, StowplanError, brief, to_install


class UnsupportedError(StowplanError):
    """A back end cannot make a plan for this graph; the framework's own plan is used."""


class MemoryLimitError(StowplanError):
    """No plan of a graph, or a training step that ran, is within the memory limit.

    Attributes
    ----------
    limit
        The memory limit in bytes.
    least
        The lowest peak that was found, or the peak of the step, in bytes.
    bound
        A proven lower bound on the peak of every plan, in bytes; 0 if nothing is proven.
    """

    def __init__(self, message: str, limit: int, least: int, bound: int):
        super().__init__(message)
        self.limit, self.least, self.bound = limit, least, bound


class PlanningWarning(UserWarning):
    """A graph runs with the framework's own plan, or above its memory limit; the message gives the reason."""


def require(what: str, packages: tuple[str, ...], extra: str) -> None:
    """Raise MissingDependencyError if any of the packages is not installed.

    Parameters
    ----------
    what
        The feature that needs the packages; it begins the message.
    packages
        Names of modules.
    extra
        The extra of stowplan that installs the packages; the message names it.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"{what} needs {' and '.join(missing)}, not installed here: {to_install(extra)}")


def warn(text: str) -> None:
    """Issue a PlanningWarning of one line, which says what could not be done and what is done instead."""
    warnings.warn(brief(text), PlanningWarning, stacklevel=3)


def reason(error: Exception) -> str:
    """Returns the reason why there is no plan, as text for users; the type of an unexpected error precedes its message."""
    return str(error) if isinstance(error, UnsupportedError) else f"{type(error).__name__}: {error}"
