"""Says whether an LLM placement is valid, and how long the request takes with it: a walk over the layers, without any solver.

Written from docs/reference/llm-placement.md alone; it shares no code with the model, the bounds, the search or the costs of
problems.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Literal

from stowplan import verification
from stowplan.models.llm_placement.plan import Plan
from stowplan.models.llm_placement.problem import Device, Layer, Part, Problem

Code = Literal[
    "wrong_problem",
    "wrong_count",
    "wrong_objective",
    "no_such_memory",
    "no_such_micro_batch",
    "wrong_spill",
    "host_behind_device",
    "not_contiguous",
    "over_capacity",
]

Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


def verify(problem: Problem, plan: Plan) -> Verification:
    """All rules a plan breaks, and the time of the request.

    Parameters
    ----------
    plan
        Any that decodes; what is malformed is a violation, not an error.

    Returns
    -------
    Verification
        Violations, and the recomputed request time in ps.
    """
    violations = verification.of_problem(problem, plan)
    count = len(problem.layers)
    if not len(plan.memories) == len(plan.spilled) == count:
        counts = f"{len(plan.memories)} memories and {len(plan.spilled)} numbers of spilled parts for {count} layers"
        return Verification((*violations, Violation("wrong_count", counts)), None)
    if not 0 <= plan.micro_batch < len(problem.micro_batches):
        message = f"the plan has micro-batch {plan.micro_batch} of {len(problem.micro_batches)}"
        return Verification((*violations, Violation("no_such_micro_batch", message)), None)
    for number, (layer, memory, spilled) in enumerate(zip(problem.layers, plan.memories, plan.spilled, strict=True)):
        if not 0 <= memory <= len(problem.devices):
            message = f"layer {layer.name} is in memory {memory}, expected 0 to {len(problem.devices)}"
            violations.append(Violation("no_such_memory", message, {"layers": (number,)}))
        most = len(layer.spillable) if memory else 0
        if not 0 <= spilled <= most:
            message = f"layer {layer.name} has {spilled} spilled parts, expected 0 to {most}"
            violations.append(Violation("wrong_spill", message, {"layers": (number,)}))
    if any(violation.code in ("no_such_memory", "wrong_spill") for violation in violations):
        return Verification(tuple(violations), None)
    violations.extend(_out_of_order(problem, plan))
    violations.extend(_overflows(problem, plan))
    time = _request(problem, plan)
    if plan.objective != time:
        violations.append(Violation("wrong_objective", f"the plan says {plan.objective} ps, the request takes {time} ps"))
    return Verification(tuple(violations), time)


def _out_of_order(problem: Problem, plan: Plan) -> list[Violation]:
    """Layers on the host come first, and those of a device follow one another."""
    violations, left = list[Violation](), set[int]()
    for number in range(1, len(plan.memories)):
        before, here = plan.memories[number - 1], plan.memories[number]
        if before == here:
            continue
        name = problem.layers[number].name
        if here == 0:
            message = f"layer {name} is on the host, behind layers of {problem.devices[before - 1].name}"
            violations.append(Violation("host_behind_device", message, {"layers": (number,)}))
        elif here in left:
            message = f"layer {name} is on {problem.devices[here - 1].name}, apart from that device's other layers"
            violations.append(Violation("not_contiguous", message, {"layers": (number,)}))
        left.add(before)
    return violations


def _overflows(problem: Problem, plan: Plan) -> list[Violation]:
    """Weights, caches and buffers of each memory that the plan uses take no more than it has."""
    used = [0] * (1 + len(problem.devices))
    used[0] = problem.host_bytes
    for layer, memory, spilled in zip(problem.layers, plan.memories, plan.spilled, strict=True):
        used[memory] += layer.cache_bytes + layer.fixed.bytes
        for number, part in enumerate(layer.spillable):
            used[0 if number < spilled else memory] += part.bytes
    violations = []
    for memory, device in enumerate((problem.host, *problem.devices)):
        if memory and memory not in plan.memories:
            continue
        taken = used[memory] + device.compute_bytes[plan.micro_batch]
        if taken + device.margin > device.capacity:
            message = f"the plan takes {taken} bytes of {device.name}, where {device.capacity - device.margin} may be used"
            violations.append(Violation("over_capacity", message, {"memories": (memory,)}))
    return violations


def _request(problem: Problem, plan: Plan) -> int:
    """Picoseconds of all steps of generation and all batches of the prompt."""
    order = [memory for memory in dict.fromkeys(plan.memories) if memory]
    copying = [memory for memory in order if problem.devices[memory - 1].copies_weights]
    helper = problem.devices[copying[0] - 1] if copying else None
    total = 0
    for number, layer in enumerate(problem.layers):
        is_last = number == len(problem.layers) - 1
        memory, spilled = plan.memories[number], plan.spilled[number]
        device = problem.devices[memory - 1] if memory else problem.host
        total += _layer(problem, plan.micro_batch, layer, device, None if is_last else helper, memory == 0, spilled)
    for place, memory in enumerate(order):
        ways = 1 if place == len(order) - 1 else 2
        total += ways * _nanoseconds(_transfers(problem, plan.micro_batch, problem.devices[memory - 1]))
    return total


def _layer(
    problem: Problem, batch: int, layer: Layer, device: Device, helper: Device | None, on_host: bool, spilled: int
) -> int:
    chosen = problem.micro_batches[batch]
    helps = helper if chosen.tokens >= 32 else None
    of_steps, of_batches = device.layer_ps + _seconds(layer.step_cache_bytes, device.cache_rate), device.layer_ps
    read = layer.batch_cache_bytes[batch] if layer.batch_cache_bytes else 0
    work = layer.batch_cache_flops[batch] if layer.batch_cache_flops else 0
    if on_host and helps:
        of_batches += _seconds(read, helps.link_rate) + _seconds(work, helps.compute_rate)
    else:
        of_batches += max(_seconds(read, device.cache_rate), _seconds(work, device.compute_rate))
    here: list[Part] = [layer.fixed, *layer.spillable[spilled:]]
    away: list[Part] = [*layer.spillable[:spilled]]
    for part, place, is_away in [*((part, device, on_host) for part in here), *((part, problem.host, True) for part in away)]:
        of_steps += _seconds(part.step_bytes, place.weight_rate)
        if is_away and helps:
            of_batches += _seconds(part.batch_bytes[batch], helps.link_rate)
            of_batches += _seconds(part.batch_flops[batch], helps.compute_rate)
        else:
            reading, computing = (
                _seconds(part.batch_bytes[batch], place.weight_rate),
                _seconds(part.batch_flops[batch], place.compute_rate),
            )
            of_batches += max(reading, computing)
    total = problem.steps * of_steps + chosen.batches * of_batches
    if spilled:
        total += 2 * _transfers(problem, batch, device)
    return _nanoseconds(total)


def _transfers(problem: Problem, batch: int, device: Device) -> int:
    """Activations of every step and batch, one way."""
    chosen = problem.micro_batches[batch]
    step = device.link_ps + _seconds(problem.slots * problem.hidden_bytes, device.link_rate)
    prompt = device.link_ps + _seconds(chosen.tokens * problem.hidden_bytes, device.link_rate)
    return problem.steps * step + chosen.batches * prompt


def _seconds(amount: int, rate: int) -> int:
    """The time in picoseconds, rounded to the nearest, halves up."""
    return floor(Fraction(amount * 10**12, rate) + Fraction(1, 2))


def _nanoseconds(picoseconds: int) -> int:
    """Rounded to whole nanoseconds, halves up; in picoseconds."""
    return 1000 * floor(Fraction(picoseconds, 1000) + Fraction(1, 2))
