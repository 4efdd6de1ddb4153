"""The answer to a problem of rematerialization: the runs of the operators, first to last. Data, no rules."""

from __future__ import annotations

from collections import Counter

from stowplan.models.decisions import Decision, Values
from stowplan.models.document import PlanDocument
from stowplan.models.rematerialization.problem import Problem


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Runs of operators; :func:`stowplan.models.rematerialization.verify.verify` says whether they are valid.

    The objective is the added cost: that of all runs, less that of each operator once.
    """

    peak: int
    """Bytes: the most that are live while an operator runs."""
    sequence: tuple[int, ...]
    """Numbers of the operators in the order in which they run; one that runs again comes again."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    format: str = "stowplan.rematerialization.plan"
    version: int = 1


def _runs(problem: Problem, plan: Plan) -> dict[int, Values]:
    return {op: {"runs": count} for op, count in Counter(plan.sequence).items()}


DECISIONS = (Decision("operator", lambda problem, op: problem.ops[op].id, _runs),)
