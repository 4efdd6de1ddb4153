"""Where a back end cannot do what it is asked for: the framework's own plan is kept, and a warning says why."""

from __future__ import annotations

import importlib.util
import warnings

from stowplan.errors import MissingDependencyError, StowplanError, brief, to_install


class UnsupportedError(StowplanError):
    """A graph that a back end makes no plan for: the framework's own has to do."""


class MemoryLimitError(StowplanError):
    """No plan, or no step, is within the memory limit; says the least that was reached, and what is proven.

    Attributes
    ----------
    limit, least, bound
        Bytes: what was asked for, the least peak found, and what no plan is below.
    """

    def __init__(self, message: str, limit: int, least: int, bound: int):
        super().__init__(message)
        self.limit, self.least, self.bound = limit, least, bound


class PlanningWarning(UserWarning):
    """A graph has the framework's own plan, or does not run within its limit; says why."""


def require(what: str, packages: tuple[str, ...], extra: str) -> None:
    """Raise MissingDependencyError, naming the extra that brings them, where packages that something needs are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"{what} needs {' and '.join(missing)}, not installed here: {to_install(extra)}")


def warn(text: str) -> None:
    """Say in one line what is not as it was asked for, and what is done instead."""
    warnings.warn(brief(text), PlanningWarning, stacklevel=3)


def reason(error: Exception) -> str:
    """Why there is no plan, for people; of an error that nobody expected, its type as well."""
    return str(error) if isinstance(error, UnsupportedError) else f"{type(error).__name__}: {error}"
