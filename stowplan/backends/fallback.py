"""Errors and warnings of the back ends, which plan graphs of frameworks such as PyTorch.

A *graph* is a part of a program as the framework compiles it. A *plan* decides, for example, in which order the operators of a
graph run, or at which offset each tensor is. If a back end cannot plan a graph, the framework's own plan is used, and a warning
gives the reason.
"""

from __future__ import annotations

import importlib.util
import warnings

from stowplan.errors import MissingDependencyError, StowplanError, brief, to_install


class UnsupportedError(StowplanError):
    """A back end cannot make a plan for this graph; the framework's own plan is used."""


class MemoryLimitError(StowplanError):
    """A memory limit is exceeded: no plan of a graph was found within it, or a training step that ran needed more.

    Attributes
    ----------
    limit
        The memory limit in bytes.
    least
        The smallest peak of the plans that were found, or the peak of the training step, in bytes.
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
        Names of top-level modules.
    extra
        The extra of stowplan that installs the packages, as in ``pip install '.[EXTRA]'``; the message names it.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"{what} needs {' and '.join(missing)}, not installed here: {to_install(extra)}")


def warn(text: str) -> None:
    """Issue a PlanningWarning with this text, shortened to one line of at most 700 characters.

    The text gives the fault, and the plan that is used instead.
    """
    warnings.warn(brief(text), PlanningWarning, stacklevel=3)


def reason(error: Exception) -> str:
    """Returns, as text for users, the reason why there is no plan: the message of the error.

    The type of the error comes first if the error is not an UnsupportedError.
    """
    return str(error) if isinstance(error, UnsupportedError) else f"{type(error).__name__}: {error}"
