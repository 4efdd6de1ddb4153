"""Two plans of one problem side by side: what moved, and what it costs."""

from __future__ import annotations

from typing import Any

import msgspec

from stowplan.errors import InputError
from stowplan.kernel.kind import Kind, check, describe_plan, kind_of
from stowplan.models.decisions import Part
from stowplan.verification import Verification


class PlanComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The second plan as seen from the first."""

    kind: str
    unit: str
    first: int
    """Objective in ``unit``, recomputed by the verifier; smaller is better."""
    second: int
    difference: int
    """second - first: below 0 where the second is better."""
    percent: float | None
    """Of the first's objective; None where that is 0, or where the unit is of two numbers."""
    facts: dict[str, tuple[int | float | None, int | float | None]]
    """Figures of the kind that differ, such as stalls or bytes moved, of both plans."""
    parts: tuple[Part, ...]
    """What the plans consist of, part by part, those without a change too."""

    @property
    def is_same(self) -> bool:
        """Whether nothing moved."""
        return not any(part.changes for part in self.parts)


def compare_plans(
    problem: Any, first: Any, second: Any, names: tuple[str, str] = ("first plan", "second plan")
) -> PlanComparison:
    """Verify two plans and say what the second does differently.

    Parameters
    ----------
    problem
        Of any kind.
    first, second
        Plans for it, both valid.
    names
        What errors call them: their files, say.

    Returns
    -------
    PlanComparison
        Objectives, and changes as the kind has them (``Kind.decisions``).

    Raises
    ------
    InputError
        A plan is of another kind, for another problem, or not valid.
    """
    kind = kind_of(problem)
    checks = [_checked(kind, problem, plan, name) for plan, name in zip((first, second), names, strict=True)]
    before, after = (check.objective or 0 for check in checks)
    facts = [kind.facts(problem, plan, check) for plan, check in zip((first, second), checks, strict=True)]
    return PlanComparison(
        kind=kind.name,
        unit=kind.unit.name,
        first=before,
        second=after,
        difference=after - before,
        percent=100 * (after - before) / before if before and kind.unit.has_ratios else None,
        facts=_unlike(*facts),
        parts=kind.diff(problem, first, second),
    )


def _checked(kind: Kind[Any, Any], problem: Any, plan: Any, name: str) -> Verification[Any]:
    """What the verifier says of a valid plan."""
    if not isinstance(plan, kind.plan):
        raise InputError(f"found {describe_plan(plan)}, expected a plan of {kind.name}", source=name)
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem, expected two plans of the same input", source=name)
    verification = check(kind, problem, plan)
    if not verification.ok or verification.objective is None:
        more = f" (and {len(verification.lines) - 1} more)" if len(verification.lines) > 1 else ""
        raise InputError(f"not a valid plan: {''.join(verification.lines[:1])}{more}", source=name)
    return verification


def _unlike(first: dict[str, Any], second: dict[str, Any]) -> dict[str, tuple[int | float | None, int | float | None]]:
    """Numbers that are not the same in both."""

    def number(value: object) -> int | float | None:
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    every = {name: (number(first.get(name)), number(second.get(name))) for name in dict.fromkeys((*first, *second))}
    return {name: pair for name, pair in every.items() if pair[0] != pair[1]}
