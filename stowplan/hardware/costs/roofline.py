"""What a step costs: by the roofline, or by a compiler's estimates of it, between which the roofline gives the shape.

The roofline: a step takes as long as its computation or its traffic, whichever is longer, and a fixed overhead.

::

    overhead + max(flops / compute + elements / elementwise,
                   bytes read / vector bandwidth             (steps without a matrix product only),
                   slow reads / slow read bandwidth + slow writes / slow write bandwidth
                   + fast reads / fast read bandwidth + fast writes / fast write bandwidth)

Slow and fast traffic are added, not overlapped, so that no further fast use makes a step slower on a target whose fast memory
is the faster one. ``docs/results/costs.md`` compares this form with others on a compiler's estimates. A step that neither
computes nor moves anything (a buffer being allocated) takes no time.

The table model: every step passes through two latencies that a compiler estimated, without and with its own plan. Between and
beyond the two points a step has the roofline's shape: straight down from "all slow", as uses become fast, to a floor. The
saving of the compiler's plan is divided among its fast uses as the roofline divides it. The other uses save at the same rate,
but never more than the roofline says.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowplan.hardware.program import ProgramStep
from stowplan.hardware.targets import Target
from stowplan.hardware.targets.toml_files import duration_ps
from stowplan.models.memory_mapping.problem import Piece


class StepCycles(msgspec.Struct, frozen=True):
    """What a compiler estimated for one run of one step, in clock cycles."""

    slow: int
    """With everything in slow memory."""
    planned: int | None = None
    """With the uses ``fast`` served from fast memory; None where that is not known."""
    fast: frozenset[tuple[int, bool]] = frozenset()
    """Uses (tensor, is_output) that the compiler's plan serves from fast memory."""


class CycleTable(msgspec.Struct, frozen=True):
    """Estimates of a program's steps, by the step's name. Steps without an estimate are left out."""

    steps: dict[str, StepCycles]


def roofline_pieces(step: ProgramStep, target: Target) -> tuple[Piece, ...]:
    """Latency of one run of the step as the larger of two affine pieces: computation, traffic.

    A piece that never decides is left out.
    """
    speed = target.roofline
    none = (0,) * len(step.uses)
    if not (step.flops or step.elementwise or any(use.bytes for use in step.uses)):
        return (Piece(0, none, none),)
    slow, fast = traffic_ps(step, target)
    compute_ps = duration_ps(step.flops, speed.compute) + duration_ps(step.elementwise, speed.elementwise)
    if not step.flops:
        read = sum(use.bytes for use in step.uses if not use.is_output)
        compute_ps = max(compute_ps, duration_ps(read, speed.vector_bandwidth))
    computation = Piece(speed.overhead + compute_ps, none, none)
    traffic = Piece(int(speed.overhead), slow, fast)
    if compute_ps >= sum(map(max, slow, fast)):
        return (computation,)
    if compute_ps <= sum(map(min, slow, fast)):
        return (traffic,)
    return (computation, traffic)


def traffic_ps(step: ProgramStep, target: Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Time that each use of the step takes from slow memory, and from fast memory, ps."""
    speed = target.roofline
    slow = speed.slow_read_bandwidth, speed.slow_write_bandwidth
    fast = speed.fast_read_bandwidth, speed.fast_write_bandwidth
    return (
        tuple([duration_ps(use.bytes, slow[use.is_output]) for use in step.uses]),
        tuple([duration_ps(use.bytes, fast[use.is_output]) for use in step.uses]),
    )


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
