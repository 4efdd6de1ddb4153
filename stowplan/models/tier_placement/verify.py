"""The verifier of tier placement: checks all rules of a plan and recomputes its latency by stepping through the layers.

It is written from docs/reference/tier-placement.md alone, uses no solver, and shares no code with models, bounds, heuristics or
hardware. Layer ``i`` of the network runs at step ``i``. Tensors have offsets if the problem says that its tiers are *address
spaces*.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from stowplan import verification
from stowplan.models.overlaps import MOST_OVERLAPS, overlaps
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

#: The rules that a plan can break; docs/reference/tier-placement.md explains each of them.
Code = Literal[
    "wrong_problem",
    "wrong_count",
    "wrong_objective",
    "unknown_tier",
    "over_capacity",
    "missing_offsets",
    "negative_offset",
    "misaligned",
    "beyond_tier",
    "overlap",
]


Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


class _Stay(NamedTuple):
    """A tensor at its offset in its tier, live from step ``first`` to step ``last``, both inclusive."""

    offset: int
    """Offset in bytes from the start of the tier."""
    size: int
    """Size in bytes."""
    tier: int
    """Number of the tier."""
    first: int
    last: int
    layer: int
    """Number of the layer that the tensor belongs to."""
    name: str
    """Description of the tensor for messages."""


def verify(problem: Problem, plan: Plan) -> Verification:
    """Check a plan against all rules of tier placement.

    The objective that the plan states must equal the recomputed latency, since people read it.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        All violations found, and the latency in ps. The latency is None if ``weight_tiers`` or ``output_tiers`` of the plan do
        not have one entry for each layer or name an unknown tier. Overlaps are left out once
        :data:`~stowplan.models.overlaps.MOST_OVERLAPS` violations of rules about offsets are listed.
    """
    violations = verification.of_problem(problem, plan)
    count = len(problem.layers)
    for name, tiers in (("weight_tiers", plan.weight_tiers), ("output_tiers", plan.output_tiers)):
        if len(tiers) != count:
            violations.append(Violation("wrong_count", f"{name} has {len(tiers)} entries for {count} layers"))
    if any(violation.code == "wrong_count" for violation in violations):
        return Verification(tuple(violations), None)
    for number, layer in enumerate(problem.layers):
        for sort, tier in (("weights", plan.weight_tiers[number]), ("output", plan.output_tiers[number])):
            if not 0 <= tier < len(problem.tiers):
                message = f"{sort} of layer {layer.name}: found tier {tier}, expected 0 to {len(problem.tiers) - 1}"
                violations.append(Violation("unknown_tier", message, {"layers": (number,)}))
    if any(violation.code == "unknown_tier" for violation in violations):
        return Verification(tuple(violations), None)
    last = [max(readers, default=number) for number, readers in enumerate(_readers(problem))]
    latency = sum(_latency(problem, plan, number) for number in range(count))
    if plan.objective != latency:
        violations.append(Violation("wrong_objective", f"the plan says {plan.objective} ps, the network takes {latency} ps"))
    violations.extend(_overflows(problem, plan, last))
    violations.extend(_offsets(problem, plan, last))
    return Verification(tuple(violations), latency)


def _readers(problem: Problem) -> list[list[int]]:
    """[layers] numbers of the layers that read each layer's output."""
    readers: list[list[int]] = [[] for _ in problem.layers]
    for number, layer in enumerate(problem.layers):
        for source in layer.inputs:
            readers[source].append(number)
    return readers


def _latency(problem: Problem, plan: Plan, number: int) -> int:
    """Latency of a layer in ps. The layer reads inputs of the network (``external_bytes``) from tier 0."""
    layer = problem.layers[number]
    weights = layer.weight_bytes if layer.weight_read_bytes is None else layer.weight_read_bytes
    moved = [(0, layer.external_bytes), (plan.weight_tiers[number], weights), (plan.output_tiers[number], layer.output_bytes)]
    moved += [(plan.output_tiers[source], problem.layers[source].output_bytes) for source in layer.inputs]
    memory = 0
    for tier, size in moved:
        # Each transfer is rounded to the nearest picosecond, halves up.
        quotient, remainder = divmod(size * 10**12, problem.tiers[tier].bandwidth)
        memory += quotient + (2 * remainder >= problem.tiers[tier].bandwidth)
    return layer.overhead_ps + max(layer.compute_ps, memory)


def _overflows(problem: Problem, plan: Plan, last: list[int]) -> list[Violation]:
    """The tiers that overflow, as violations: one for every series of consecutive steps at which a tier overflows.

    ``last`` is the last step at which each output is live.
    """
    used = [0] * len(problem.tiers)
    for tier, layer in zip(plan.weight_tiers, problem.layers, strict=True):
        used[tier] += layer.weight_bytes
    leaving: list[list[int]] = [[] for _ in problem.layers]
    for number, step in enumerate(last):
        leaving[step].append(number)
    violations: list[Violation] = []
    is_over = [False] * len(problem.tiers)
    for step, layer in enumerate(problem.layers):
        used[plan.output_tiers[step]] += layer.output_bytes
        for number, memory in enumerate(problem.tiers):
            if used[number] > memory.capacity and not is_over[number]:
                message = f"{memory.name} holds {used[number]} bytes at layer {layer.name}, capacity {memory.capacity}"
                violations.append(Violation("over_capacity", message, {"layers": (step,)}))
            is_over[number] = used[number] > memory.capacity
        for number in leaving[step]:
            used[plan.output_tiers[number]] -= problem.layers[number].output_bytes
    return violations


def _offsets(problem: Problem, plan: Plan, last: list[int]) -> list[Violation]:
    """The violations of rules about offsets, which are checked if tiers are address spaces or the plan has offsets."""
    count = len(problem.layers)
    offset_lists = (("weight_offsets", plan.weight_offsets), ("output_offsets", plan.output_offsets))
    violations: list[Violation] = []
    if not problem.address_spaces and not any(offsets for _, offsets in offset_lists):
        return violations
    for name, offsets in offset_lists:
        if not offsets:
            violations.append(Violation("missing_offsets", f"{name} is empty, but the tiers are address spaces"))
        elif len(offsets) != count:
            violations.append(Violation("wrong_count", f"{name} has {len(offsets)} entries for {count} layers"))
    if violations:
        return violations
    stays: list[_Stay] = []
    for number, layer in enumerate(problem.layers):
        tier, offset = plan.weight_tiers[number], plan.weight_offsets[number]
        stays.append(_Stay(offset, layer.weight_bytes, tier, 0, count - 1, number, f"the weights of {layer.name}"))
        tier, offset = plan.output_tiers[number], plan.output_offsets[number]
        stays.append(_Stay(offset, layer.output_bytes, tier, number, last[number], number, f"the output of {layer.name}"))
    stays = [stay for stay in stays if stay.size]
    for stay in stays:
        memory = problem.tiers[stay.tier]
        if stay.offset < 0:
            violations.append(
                Violation("negative_offset", f"{stay.name}: found offset {stay.offset}", {"layers": (stay.layer,)})
            )
        if stay.offset % memory.alignment:
            message = f"{stay.name}: found offset {stay.offset}, not a multiple of {memory.alignment}"
            violations.append(Violation("misaligned", message, {"layers": (stay.layer,)}))
        if stay.offset + stay.size > memory.capacity:
            message = f"{stay.name}: ends at {stay.offset + stay.size}, beyond the {memory.capacity} bytes of {memory.name}"
            violations.append(Violation("beyond_tier", message, {"layers": (stay.layer,)}))
    for number, memory in enumerate(problem.tiers):
        boxes = (
            (stay.first, stay.last + 1, stay.offset, stay.offset + stay.size, at)
            for at, stay in enumerate(stays)
            if stay.tier == number
        )
        for pair in overlaps(boxes, MOST_OVERLAPS - len(violations)):
            one, two = (stays[number] for number in pair)
            message = f"{one.name} and {two.name} share bytes of {memory.name}"
            violations.append(Violation("overlap", message, {"layers": (one.layer, two.layer)}))
    return violations
