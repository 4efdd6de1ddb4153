"""Lists the assumptions of a problem, under which a status ``optimal`` or ``infeasible`` holds.

There are two sorts: choices of the *front end*, which is the code that made the problem from a file, and rules of the problem
that the caller could change, such as a capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stowplan.frontends.options import OPTIONS, spelt
from stowplan.kernel.kind import Kind
from stowplan.result import Assumption, Result
from stowplan.units import BYTES

#: Maximum number of different values that are listed for a rule.
MAX_VALUES = 4


def assumptions(kind: Kind[Any, Any], problem: Any, result: Result[Any] | None = None) -> tuple[Assumption, ...]:
    """Returns the assumptions of a problem: the choices of its front end, then the rules that forbid something in it.

    The rules are the ones that :attr:`Kind.assumptions` names. Each assumption comes with advice that says what to try instead.
    If the status of ``result`` is ``infeasible``, rules whose change cannot lead to a plan are left out. The advice on the
    capacity then names a lower bound on the capacity that is needed. The function raises no error of its own.
    """
    found: list[Assumption] = [*getattr(problem, "choices", ())]
    is_infeasible = result is not None and result.status == "infeasible"
    helpless = kind.helpless(problem) if is_infeasible else ()
    least = _least_capacity(kind, problem, result) if is_infeasible else ""
    for path, _, free in (rule.partition("=") for rule in kind.assumptions):
        words = dict.fromkeys(_word(value) for value in _values(problem, path.split(".")) if value is not None)
        binding = [word for word in words if word != free]
        if binding and path not in helpless:
            shown = ", ".join(binding[:MAX_VALUES]) + (", ..." if len(binding) > MAX_VALUES else "")
            instead = _instead(kind, path, free)
            found.append(Assumption(path.removeprefix("rules."), shown, instead + (least if path == "capacity" else "")))
    return tuple(found)


def _least_capacity(kind: Kind[Any, Any], problem: Any, result: Result[Any] | None) -> str:
    """The end of the advice on the capacity: text with the best known lower bound. It is empty if the kind computes none.

    The run has proven that the capacity of the problem is too small. If the objective is in bytes, it is the amount of memory
    that the capacity limits, so that the bound of the run is also a bound on the capacity.
    """
    if kind.least_capacity is None:
        return ""
    proven = result.bound if result is not None and result.unit == BYTES else None
    return f", at least {max(kind.least_capacity(problem), (problem.capacity or 0) + 1, proven or 0)}"


def _values(problem: Any, path: list[str]) -> Iterable[Any]:
    """Values of a field by its path. If a part of the path is a tuple, the values of all its members are returned."""
    values = [problem]
    for name in path:
        fields = (getattr(value, name) for value in values)
        values = [member for value in fields for member in (value if isinstance(value, tuple) else (value,))]
    return values


def _word(value: Any) -> str:
    """A value as text."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _instead(kind: Kind[Any, Any], path: str, free: str) -> str:
    """Text that says what to try instead of a rule's value: the option that sets it, if there is one.

    ``path`` is the path of the rule's field in the problem, such as ``rules.stalls``. ``free`` is the value with which the rule
    forbids nothing; it is empty if there is no such value.
    """
    rule, _, name = path.rpartition(".")
    if rule == "rules":
        return f"--set {name}={free or 'none'}"
    if name in ("capacity", "limit") and "capacity" in kind.amends:
        return "a larger --capacity"
    if path in OPTIONS:
        return spelt(name, free) if OPTIONS[name].words else f"no {spelt(name)}"
    return f"{free or 'another'} in the file"
