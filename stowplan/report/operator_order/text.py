"""An operator order for people to read."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.report.operator_order.profile import build_profile
from stowplan.report.units import format_bytes, printable, shorten

#: Letters of an operator's name.
_NAME = 44


def summarize_order(problem: Problem, plan: Plan, others: Sequence[tuple[str, Plan]] = (), top: int | None = 40) -> str:
    """Peak and arena beside those of other plans; then the operators in order with what is live.

    Parameters
    ----------
    top
        Operators listed at most; None for all.
    """
    profile = build_profile(problem, plan)
    above = plan.arena / profile.peak - 1 if profile.peak else 0.0
    lines = [
        f"{printable(problem.name or 'graph')}: {len(problem.ops):,} operators, {len(problem.tensors):,} tensors",
        f"  peak   {profile.peak:,} bytes live at once",
        f"  arena  {plan.arena:,} bytes, {above:.1%} above the peak",
    ]
    for name, other in others:
        found = build_profile(problem, other)
        lines.append(f"  {shorten(printable(name), 12):<12}  peak {found.peak:,}, arena {other.arena:,} bytes")
    rows = [("step", "live", "operator")]
    for at, number in enumerate(plan.order[:top]):
        op = problem.ops[number]
        kind = f" ({shorten(printable(op.kind), 20)})" if op.kind else ""
        mark = "  <- peak" if int(profile.live[at]) == profile.peak else ""
        rows.append((f"{at:,}", format_bytes(int(profile.live[at])), shorten(printable(op.id), _NAME) + kind + mark))
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    lines += ["  " + "  ".join([*(row[at].rjust(widths[at]) for at in range(2)), row[2]]) for row in rows]
    rest = len(plan.order) - (len(rows) - 1)
    return "\n".join([*lines, f"  … and {rest:,} more"] if rest else lines)
