"""What is guessed of a problem's best plan: values of its decisions, or a whole plan. One file format for all kinds.

A hint guides searches and exact models. It proves nothing and forbids nothing: whatever it says, plans are verified.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stowplan import kinds
from stowplan.errors import InputError, UsageError, brief
from stowplan.models.document import Document

FORMAT = "stowplan.hint"
VERSION = 1

#: Decisions with a lower confidence than this are left to whoever follows a hint.
TRUST = 0.5

#: Characters of a name in a message.
NAME = 40


class Hint(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Values in [0, 1] for the decisions of a problem, or a plan, or both.

    Which decisions a kind has, and in which order, its ``hint`` module says
    (:mod:`stowplan.models.memory_mapping.hint`). :func:`check` says whether a hint fits a problem.
    """

    kind: str
    """Kind of the problem."""
    problem: str
    """Digest of the problem that it is for."""
    values: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """By the name of each sort of decision: a value in [0, 1] for every decision of that sort. Some may be left out."""
    confidence: tuple[float, ...] = ()
    """How far to trust the values, in [0, 1], a number for every place in the lists of values; empty for full trust."""
    plan: dict[str, Any] | None = None
    """A plan of the kind, as in its files."""
    source: str = ""
    """Who says so, for people."""
    format: str = FORMAT
    version: int = VERSION


def of_values(
    problem: Any, values: Mapping[str, Sequence[float]], *, confidence: Sequence[float], plan: Any, source: str
) -> Hint:
    """A hint for a problem of any kind; :func:`check` says whether it fits. ``plan`` is a plan of the kind, or None."""
    return Hint(
        kind=kinds.of_problem(problem).name,
        problem=problem.digest,
        values={name: tuple(map(float, each)) for name, each in values.items()},
        confidence=tuple(map(float, confidence)),
        plan=None if plan is None else msgspec.json.decode(msgspec.json.encode(plan)),
        source=source,
    )


def check(problem: Any, hint: Hint) -> None:
    """Check that a hint is one for this problem; the validity of its plan is not looked at.

    Parameters
    ----------
    problem
        Of any kind.
    hint
        Anything that was read as a hint.

    Raises
    ------
    InputError
        It is for another kind or problem, says nothing, or has values of a wrong name, number or range.
    UsageError
        It has values, and the kind takes only plans as hints.
    """
    modules = kinds.of_problem(problem)
    if hint.kind != modules.name:
        raise InputError(f"found a hint for {brief(hint.kind, NAME)}, expected one for {modules.name}", place="kind")
    if hint.problem != problem.digest:
        found, expected = brief(hint.problem, NAME), brief(problem.digest, NAME)
        raise InputError(f"found a hint for the problem {found}, expected {expected}", place="problem")
    if not hint.values and hint.plan is None:
        raise InputError("found neither values nor a plan, expected one of them", place="values")
    if not hint.values:
        if hint.confidence:
            raise InputError("found confidences without values, expected none", place="confidence")
        return
    if not modules.hint:
        raise UsageError(f"found values as a hint for {modules.title}, expected a plan: that kind takes no values")
    module = importlib.import_module(modules.hint)
    _check_values(hint, module.counts(problem), getattr(module, "OPTIONAL", ()))


def plan_of(hint: Hint) -> Any:
    """The plan of a hint, decoded; None where it has none. Raises InputError where it is no plan of the hint's kind."""
    if hint.plan is None:
        return None
    return kinds.named(hint.kind).decode_plan(msgspec.json.encode(hint.plan))


def _check_values(hint: Hint, counts: Mapping[str, int], optional: Sequence[str]) -> None:
    required = {*counts} - {*optional}
    if not required <= {*hint.values} <= {*counts}:
        found, expected = ", ".join(hint.values), ", ".join(name for name in counts if name in required)
        more = f" and perhaps {', '.join(optional)}" if optional else ""
        raise InputError(f"found values named {brief(found, NAME)}, expected {expected}{more}", place="values")
    for name, values in hint.values.items():
        _check_list(f"values.{name}", values, counts[name])
    if hint.confidence:
        _check_list("confidence", hint.confidence, max(counts.values()))


def _check_list(place: str, values: tuple[float, ...], count: int) -> None:
    if len(values) != count:
        raise InputError(f"found {len(values)} numbers, expected {count}", place=place)
    for number, value in enumerate(values):
        # Not a number is in no range.
        if not 0.0 <= value <= 1.0:
            shown = f"{value:g}" if math.isfinite(value) else "no finite number"
            raise InputError(f"found {shown}, expected a number from 0 to 1", place=f"{place}[{number}]")
