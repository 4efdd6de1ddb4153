"""The roofline: a step takes as long as its computation or its traffic, whichever is longer, and a fixed overhead.

::

    overhead + max(flops / compute + elements / elementwise,
                   bytes read / vector bandwidth             (steps without a matrix product only),
                   slow reads / slow read bandwidth + slow writes / slow write bandwidth
                   + fast reads / fast read bandwidth + fast writes / fast write bandwidth)

Slow and fast traffic are added, not overlapped, so that no further fast use makes a step slower on a target whose fast memory
is the faster one. ``docs/results/costs.md`` compares this form with others on a compiler's estimates. A step that neither
computes nor moves anything (a buffer being allocated) takes no time.
"""

from __future__ import annotations

from stowplan.hardware.program import ProgramStep
from stowplan.hardware.targets import Target
from stowplan.hardware.targets.toml_files import duration_ps
from stowplan.models.memory_mapping.problem import Piece


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
