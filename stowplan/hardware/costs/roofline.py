"""The roofline: a step takes as long as its computation or its traffic, whichever is longer, and a fixed overhead.

``overhead + max(flops / compute + elements / elementwise, slow bytes / slow bandwidth + fast bytes / fast bandwidth)``.
Slow and fast traffic are added, not overlapped, so that no further fast use ever makes a step slower; ``docs/costs.md`` says
what that costs in accuracy. A step that neither computes nor moves anything (a buffer being allocated) takes no time.
"""

from __future__ import annotations

from stowplan.hardware.program import ProgramStep
from stowplan.hardware.targets import Target
from stowplan.hardware.targets.units import duration_ps
from stowplan.models.memory_mapping.problem import Piece


def roofline_pieces(step: ProgramStep, target: Target) -> tuple[Piece, ...]:
    """Latency of one run of the step as the larger of two affine pieces: computation, traffic."""
    speed = target.roofline
    compute_ps = duration_ps(step.flops, speed.compute) + duration_ps(step.elementwise, speed.elementwise)
    slow = tuple(duration_ps(use.bytes, speed.slow_bandwidth) for use in step.uses)
    fast = tuple(duration_ps(use.bytes, speed.fast_bandwidth) for use in step.uses)
    none = (0,) * len(step.uses)
    if not (step.flops or step.elementwise or any(use.bytes for use in step.uses)):
        return (Piece(0, none, none),)
    computation = Piece(speed.overhead + compute_ps, none, none)
    traffic = Piece(int(speed.overhead), slow, fast)
    if compute_ps >= sum(map(max, slow, fast)):
        return (computation,)
    if compute_ps <= sum(map(min, slow, fast)):
        return (traffic,)
    return (computation, traffic)
