"""The table model: every step passes through two latencies that a compiler estimated, without and with its own plan.

Between and beyond the two points a step has the roofline's shape: straight down from "all slow", as uses become fast, to a
floor. The saving of the compiler's plan is divided among its fast uses as the roofline divides it; the other uses save at the
same rate, but never more than the roofline says.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.hardware.costs.cycles import StepCycles
from stowplan.hardware.costs.roofline import roofline_pieces, traffic_ps
from stowplan.hardware.program import ProgramStep
from stowplan.hardware.targets import Target
from stowplan.models.memory_mapping.problem import Piece


def table_pieces(step: ProgramStep, estimate: StepCycles, target: Target) -> tuple[Piece, ...]:
    """Latency of one run of the step, exact to the picosecond at both estimates.

    Where the compiler's plan leaves every use of the step slow, only the first estimate counts.
    """
    slow_ps = target.cycles_ps(estimate.slow)
    in_plan = [(use.tensor, use.is_output) in estimate.fast for use in step.uses]
    known = estimate.planned is not None and any(in_plan)
    planned_ps = target.cycles_ps(estimate.planned) if estimate.planned is not None and known else slow_ps

    pieces = roofline_pieces(step, target)
    modelled_ps = max(piece.base_ps + sum(piece.slow_ps) for piece in pieces)
    modelled_floor_ps = max(piece.base_ps + sum(map(min, piece.slow_ps, piece.fast_ps)) for piece in pieces)
    floor_ps = min(slow_ps, planned_ps)
    if modelled_ps:
        floor_ps = min(floor_ps, slow_ps * modelled_floor_ps // modelled_ps)

    savings = _savings(step, in_plan, slow_ps - planned_ps, target, (slow_ps, max(modelled_ps, 1)), known)
    gains = tuple([max(saving, 0) for saving in savings])
    losses = tuple([max(-saving, 0) for saving in savings])
    line = Piece(slow_ps - sum(gains), gains, losses)
    if line.base_ps >= floor_ps:
        return (line,)
    none = (0,) * len(step.uses)
    return (Piece(floor_ps, none, none), line)


def _savings(
    step: ProgramStep, in_plan: Sequence[bool], saved_ps: int, target: Target, scale: tuple[int, int], known: bool
) -> list[int]:
    """What each use saves when it becomes fast, ps; those of the plan add up to ``saved_ps``.

    ``scale`` is estimated over modelled latency, the most that a modelled saving may be scaled by.
    """
    modelled = [max(slow - fast, 0) for slow, fast in zip(*traffic_ps(step, target), strict=True)]
    of_plan = sum(saving for saving, planned in zip(modelled, in_plan, strict=True) if planned)
    shares = modelled if saved_ps > 0 and of_plan else [use.bytes for use in step.uses]
    if not any(share for share, planned in zip(shares, in_plan, strict=True) if planned):
        shares = [1] * len(step.uses)
    rate = scale
    if known:
        # As fractions: saved_ps / of_plan, clipped to [0, scale].
        if saved_ps <= 0 or not of_plan:
            rate = (0, 1)
        elif saved_ps * scale[1] < of_plan * scale[0]:
            rate = (saved_ps, of_plan)
    savings = [saving * rate[0] // rate[1] for saving in modelled]
    members = [position for position, planned in enumerate(in_plan) if planned]
    total, given, seen = sum(shares[position] for position in members), 0, 0
    for position in members if known else ():
        # Rounding the running sum, not each part, keeps the total exact.
        seen += shares[position]
        upto = saved_ps * seen // total
        savings[position], given = upto - given, upto
    return savings
