"""The function ``stowplan.verify``, which checks a plan of any kind against its problem."""

from __future__ import annotations

from typing import Any

from stowplan.errors import UsageError
from stowplan.kernel.kind import check, describe_plan, kind_of
from stowplan.verification import Verification


def verify(problem: Any, plan: Any) -> Verification[Any]:
    """Checks a plan against its problem without any solver: every rule, and the figures that the plan states about itself.

    The verifier of a kind shares no code with the kind's models, bounds and heuristics.

    Parameters
    ----------
    problem
        A problem of any kind: from :func:`stowplan.read`, from ``result.problem`` of a result of :func:`stowplan.solve`, or
        built in Python.
    plan
        A plan of the same kind from any source; ``Plan.load`` reads a file.

    Returns
    -------
    Verification
        ``ok`` says whether the plan is valid. ``violations`` are the broken rules, each with a ``code`` for programs and a
        ``message`` for people. ``objective`` is computed anew from the plan.

    Raises
    ------
    UsageError
        ``problem`` is no problem, or ``plan`` is not a plan of its kind.
    """
    kind = kind_of(problem)
    if not isinstance(plan, kind.plan):
        raise UsageError(f"found {describe_plan(plan)}, expected a plan of {kind.name}")
    return check(kind, problem, plan)
