"""Costs of steps by the roofline model, or by the table model: a compiler's estimates, interpolated with the roofline.

*The roofline model.* The duration of a step is that of its computation or of its memory traffic, whichever is longer, plus a
fixed overhead (Williams, Waterman and Patterson, 2009):

::

    overhead + max(flops / compute + elements / elementwise,
                   bytes read / vector bandwidth             (steps without a matrix product only),
                   slow reads / slow read bandwidth + slow writes / slow write bandwidth
                   + fast reads / fast read bandwidth + fast writes / fast write bandwidth)

The speeds and the overhead are those of the target (:class:`~stowplan.hardware.targets.Target`). *Slow* and *fast* reads and
writes are bytes in slow and fast memory. A *use* is a read or a write of one tensor by one step. The times of slow and fast
traffic are added, so that a step never becomes slower if one more use moves to the faster memory.
``docs/results/costs.md`` compares this formula with others on a compiler's estimates. A step that neither computes nor moves
anything, such as the allocation of a buffer, takes no time.

*The table model.* A compiler has estimated two latencies of every step: with all uses in slow memory, and with its own plan.
The model is exact at both. For other choices of fast uses, the latency decreases from the first estimate by a saving for each
fast use, but not below a floor, as in the roofline model. The saving of the compiler's plan is divided among the plan's fast
uses in proportion to the roofline's savings. The other uses save in the same proportion, but no more than in the roofline
model.

Latencies are returned as *pieces* (:class:`~stowplan.models.memory_mapping.problem.Piece`), affine functions of the uses that
are in slow or fast memory. The latency is the maximum of the pieces. Nothing in this module raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowplan.hardware.program import ProgramStep
from stowplan.hardware.targets import Target
from stowplan.hardware.targets.toml_files import duration_ps
from stowplan.models.memory_mapping.problem import Piece


class StepCycles(msgspec.Struct, frozen=True):
    """A compiler's estimates for one run of one step, in clock cycles."""

    slow: int
    """Cycles if everything is in slow memory."""
    planned: int | None = None
    """Cycles if exactly the uses ``fast`` are served from fast memory; None if unknown."""
    fast: frozenset[tuple[int, bool]] = frozenset()
    """Uses, as pairs (tensor, is_output), that the compiler's plan serves from fast memory."""


class CycleTable(msgspec.Struct, frozen=True):
    """A compiler's estimates for the steps of a program."""

    steps: dict[str, StepCycles]
    """The estimates of each step, by its name; steps without an estimate have no entry."""


def roofline_pieces(step: ProgramStep, target: Target) -> tuple[Piece, ...]:
    """The latency of one run of a step by the roofline model, as the maximum of affine functions of its uses, in picoseconds.

    There is one piece for computation and one for memory traffic. A piece that is never larger than the other one is omitted.
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
    """Two tuples with an entry for each use of a step: its time in ps from slow memory, and its time in ps from fast memory."""
    speed = target.roofline
    slow = speed.slow_read_bandwidth, speed.slow_write_bandwidth
    fast = speed.fast_read_bandwidth, speed.fast_write_bandwidth
    return (
        tuple([duration_ps(use.bytes, slow[use.is_output]) for use in step.uses]),
        tuple([duration_ps(use.bytes, fast[use.is_output]) for use in step.uses]),
    )


def table_pieces(step: ProgramStep, estimate: StepCycles, target: Target) -> tuple[Piece, ...]:
    """The latency of one run of a step by the table model, as the maximum of affine functions of its uses, in picoseconds.

    For the two choices of fast uses that the compiler has estimated, the latency is equal to the estimate. If there is no
    second estimate, or if the compiler's plan leaves all uses of the step in slow memory, only the estimate for slow memory is
    used.
    """
    slow_ps = target.cycles_ps(estimate.slow)
    in_plan = [(use.tensor, use.is_output) in estimate.fast for use in step.uses]
    has_plan_estimate = estimate.planned is not None and any(in_plan)
    planned_ps = target.cycles_ps(estimate.planned) if estimate.planned is not None and has_plan_estimate else slow_ps

    pieces = roofline_pieces(step, target)
    modelled_ps = max(piece.base_ps + sum(piece.slow_ps) for piece in pieces)
    modelled_floor_ps = max(piece.base_ps + sum(map(min, piece.slow_ps, piece.fast_ps)) for piece in pieces)
    floor_ps = min(slow_ps, planned_ps)
    if modelled_ps:
        floor_ps = min(floor_ps, slow_ps * modelled_floor_ps // modelled_ps)

    savings = _savings(step, in_plan, slow_ps - planned_ps, target, (slow_ps, max(modelled_ps, 1)), has_plan_estimate)
    gains = tuple([max(saving, 0) for saving in savings])
    losses = tuple([max(-saving, 0) for saving in savings])
    line = Piece(slow_ps - sum(gains), gains, losses)
    if line.base_ps >= floor_ps:
        return (line,)
    none = (0,) * len(step.uses)
    return (Piece(floor_ps, none, none), line)


def _savings(
    step: ProgramStep, in_plan: Sequence[bool], saved_ps: int, target: Target, scale: tuple[int, int], has_plan_estimate: bool
) -> list[int]:
    """For each use, the time in ps that it saves if it is served from fast memory instead of slow memory; negative if it costs
    time.

    Parameters
    ----------
    step
        The step.
    in_plan
        For each use, whether the compiler's plan serves it from fast memory.
    saved_ps
        The saving of the compiler's plan, to which the savings of its fast uses add up.
    target
        The machine, with the speeds of the roofline model.
    scale
        A fraction, as numerator and denominator: the estimated latency over the modelled latency. Modelled savings are scaled
        by at most this.
    has_plan_estimate
        Whether there is an estimate for the compiler's plan.
    """
    modelled = [max(slow - fast, 0) for slow, fast in zip(*traffic_ps(step, target), strict=True)]
    planned_ps = sum(saving for saving, planned in zip(modelled, in_plan, strict=True) if planned)
    shares = modelled if saved_ps > 0 and planned_ps else [use.bytes for use in step.uses]
    if not any(share for share, planned in zip(shares, in_plan, strict=True) if planned):
        shares = [1] * len(step.uses)
    rate = scale
    if has_plan_estimate:
        # The rate is the fraction saved_ps / planned_ps, clipped to [0, scale].
        if saved_ps <= 0 or not planned_ps:
            rate = (0, 1)
        elif saved_ps * scale[1] < planned_ps * scale[0]:
            rate = (saved_ps, planned_ps)
    savings = [saving * rate[0] // rate[1] for saving in modelled]
    members = [position for position, planned in enumerate(in_plan) if planned]
    total, assigned_ps, running_share = sum(shares[position] for position in members), 0, 0
    for position in members if has_plan_estimate else ():
        # Rounding the running sum instead of each saving makes the total exact.
        running_share += shares[position]
        running_ps = saved_ps * running_share // total
        savings[position], assigned_ps = running_ps - assigned_ps, running_ps
    return savings
