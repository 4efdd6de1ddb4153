"""Compares two plans of one problem: which decisions differ, and how the objective and other figures change.

The command ``stowplan compare`` uses it. A *decision* is one choice that a plan makes, such as the offset of one buffer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stowplan.errors import InputError
from stowplan.kernel.kind import Kind, check, describe_plan, kind_of
from stowplan.models.decisions import Part
from stowplan.verification import Verification


class PlanComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two plans of one problem, seen from the first plan."""

    kind: str
    """Name of the kind of problem, such as ``packing``."""
    unit: str
    """Name of the unit of both objectives, such as ``bytes``."""
    first: int
    """Objective of the first plan in ``unit``, recomputed by the verifier; smaller is better."""
    second: int
    """Objective of the second plan in ``unit``, also recomputed by the verifier."""
    difference: int
    """``second - first``: negative if the second plan is better."""
    percent: float | None
    """The difference in per cent of the first objective. It is None if the first objective is 0, or if an objective encodes two
    numbers in one integer, so that ratios mean nothing."""
    facts: dict[str, tuple[int | float | None, int | float | None]]
    """The figures of :attr:`Kind.facts <stowplan.kernel.kind.Kind.facts>` that differ between the plans, such as stalls or
    bytes moved, as pairs (value in the first plan, value in the second plan). A value is None if the plan does not have this
    figure, or if it is no number."""
    parts: tuple[Part, ...]
    """The changed decisions, one :class:`~stowplan.models.decisions.Part` for each sort of decision, such as all offsets. A
    sort without a change has an entry as well."""

    @property
    def is_same(self) -> bool:
        """Whether the two plans make the same decisions."""
        return not any(part.changes for part in self.parts)


def compare_plans(
    problem: Any, first: Any, second: Any, names: tuple[str, str] = ("first plan", "second plan")
) -> PlanComparison:
    """Verify two plans and list the decisions that the second makes differently.

    Parameters
    ----------
    problem
        A problem of any kind.
    first, second
        Valid plans for it.
    names
        The names that error messages use for the first and the second plan, such as their file names.

    Returns
    -------
    PlanComparison
        Both objectives, the figures that differ, and the changed decisions as the kind describes them (``Kind.decisions``).

    Raises
    ------
    InputError
        A plan belongs to another kind or to another problem, or the verifier rejects it.
    UsageError
        ``problem`` is not a problem of any kind.
    """
    kind = kind_of(problem)
    unit = kind.unit_for(problem)
    checks = [_verify(kind, problem, plan, name) for plan, name in zip((first, second), names, strict=True)]
    before, after = (check.objective or 0 for check in checks)
    facts = [kind.facts(problem, plan, check) for plan, check in zip((first, second), checks, strict=True)]
    return PlanComparison(
        kind=kind.name,
        unit=unit.name,
        first=before,
        second=after,
        difference=after - before,
        percent=100 * (after - before) / before if before and unit.has_ratios else None,
        facts=_differing_facts(*facts),
        parts=kind.diff(problem, first, second),
    )


def _verify(kind: Kind[Any, Any], problem: Any, plan: Any, name: str) -> Verification[Any]:
    """Returns the verifier's report on a valid plan; raises InputError as :func:`compare_plans` does.

    ``name`` is the plan's name in the error message.
    """
    if not isinstance(plan, kind.plan):
        raise InputError(f"found {describe_plan(plan)}, expected a plan of {kind.name}", source=name)
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem, expected two plans of the same input", source=name)
    verification = check(kind, problem, plan)
    if not verification.ok or verification.objective is None:
        omitted = f" (and {len(verification.lines) - 1} more)" if len(verification.lines) > 1 else ""
        raise InputError(f"not a valid plan: {''.join(verification.lines[:1])}{omitted}", source=name)
    return verification


def _differing_facts(first: dict[str, Any], second: dict[str, Any]) -> dict[str, tuple[int | float | None, int | float | None]]:
    """The entries of two dictionaries whose numbers differ, as pairs (first number, second number).

    A missing value, or one that is no number, is None in the pair.
    """

    def number(value: object) -> int | float | None:
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    pairs = {name: (number(first.get(name)), number(second.get(name))) for name in dict.fromkeys((*first, *second))}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
