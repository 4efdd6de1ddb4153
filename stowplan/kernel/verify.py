"""``stowplan.verify``: a plan of any kind against its problem."""

from __future__ import annotations

from typing import Any

from stowplan.errors import UsageError
from stowplan.kernel.kind import check, describe_plan, kind_of
from stowplan.verification import Verification


def verify(problem: Any, plan: Any) -> Verification[Any]:
    """Check a plan against its problem, without any solver: every rule, and what the plan says of itself.

    The verifier of a kind shares no code with its models, bounds and heuristics.

    Parameters
    ----------
    problem
        A problem of any kind: from :func:`stowplan.read`, or built by hand. Of what :func:`stowplan.solve` returned, it is
        ``result.problem``.
    plan
        A plan of the same kind, wherever it is from; read a file with ``Plan.load``.

    Returns
    -------
    Verification
        ``ok`` says whether the plan is valid; ``violations`` are the broken rules, each with a ``code`` for programs and a
        ``message`` for people; ``objective`` is recomputed from scratch.

    Raises
    ------
    UsageError
        No problem, or a plan that is not of its kind.
    """
    kind = kind_of(problem)
    if not isinstance(plan, kind.plan):
        raise UsageError(f"found {describe_plan(plan)}, expected a plan of {kind.name}")
    return check(kind, problem, plan)
