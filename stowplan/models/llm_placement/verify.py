"""The verifier of LLM placement: checks all rules of a plan and recomputes the time of the request, layer by layer.

It is written from docs/reference/llm-placement.md alone, uses no solver, and shares no code with the model, the bounds, the
search or the costs of problems. A part of a layer is *spilled* if it is on the host although the layer is on a device. A
*micro-batch* is the tokens of a prompt that are computed at once, and a *request* is a prompt and a number of steps of
generation. Nothing here raises an error.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Literal

from stowplan import verification
from stowplan.models.llm_placement.plan import Plan
from stowplan.models.llm_placement.problem import Device, Layer, Part, Problem

#: The rules that a plan can break; docs/reference/llm-placement.md explains each of them.
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
    """Check a plan against all rules of LLM placement.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        All violations found, and the recomputed time of the request in ps. The time is None if the plan has a wrong number of
        entries or if an entry is out of range.
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
    """The layers that are out of order, as violations.

    The layers on the host must come first, and the layers of a device must be consecutive.
    """
    violations, earlier_memories = list[Violation](), set[int]()
    for number in range(1, len(plan.memories)):
        before, memory = plan.memories[number - 1], plan.memories[number]
        if before == memory:
            continue
        name = problem.layers[number].name
        if memory == 0:
            message = f"layer {name} is on the host, behind layers of {problem.devices[before - 1].name}"
            violations.append(Violation("host_behind_device", message, {"layers": (number,)}))
        elif memory in earlier_memories:
            message = f"layer {name} is on {problem.devices[memory - 1].name}, apart from that device's other layers"
            violations.append(Violation("not_contiguous", message, {"layers": (number,)}))
        earlier_memories.add(before)
    return violations


def _overflows(problem: Problem, plan: Plan) -> list[Violation]:
    """The memories whose weights, caches and buffers exceed the bytes that may be used, as violations.

    Only the host and the devices that have layers are checked.
    """
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
        needed = used[memory] + device.compute_bytes[plan.micro_batch]
        if needed + device.margin > device.capacity:
            message = f"the plan takes {needed} bytes of {device.name}, where {device.capacity - device.margin} may be used"
            violations.append(Violation("over_capacity", message, {"memories": (memory,)}))
    return violations


def _request(problem: Problem, plan: Plan) -> int:
    """The time in ps of all steps of generation and all micro-batches of the prompt."""
    order = [memory for memory in dict.fromkeys(plan.memories) if memory]
    copying = [memory for memory in order if problem.devices[memory - 1].copies_weights]
    copying_device = problem.devices[copying[0] - 1] if copying else None
    total = 0
    for number, layer in enumerate(problem.layers):
        is_last = number == len(problem.layers) - 1
        memory, spilled = plan.memories[number], plan.spilled[number]
        device = problem.devices[memory - 1] if memory else problem.host
        total += _layer(problem, plan.micro_batch, layer, device, None if is_last else copying_device, memory == 0, spilled)
    for place, memory in enumerate(order):
        directions = 1 if place == len(order) - 1 else 2
        total += directions * _nanoseconds(_transfers(problem, plan.micro_batch, problem.devices[memory - 1]))
    return total


def _layer(
    problem: Problem, batch: int, layer: Layer, device: Device, helper: Device | None, on_host: bool, spilled: int
) -> int:
    """The time in ps of a layer in the request, rounded to nanoseconds.

    ``batch`` is the number of the chosen size of micro-batch, and ``device`` is where the layer is. ``helper`` is the device
    that computes prompts with weights that it copies from the host; None if there is none for this layer. ``spilled`` is the
    number of the layer's spilled parts.
    """
    chosen = problem.micro_batches[batch]
    copying_device = helper if chosen.tokens >= 32 else None
    step_ps, batch_ps = device.layer_ps + _seconds(layer.step_cache_bytes, device.cache_rate), device.layer_ps
    read = layer.batch_cache_bytes[batch] if layer.batch_cache_bytes else 0
    work = layer.batch_cache_flops[batch] if layer.batch_cache_flops else 0
    if on_host and copying_device:
        batch_ps += _seconds(read, copying_device.link_rate) + _seconds(work, copying_device.compute_rate)
    else:
        batch_ps += max(_seconds(read, device.cache_rate), _seconds(work, device.compute_rate))
    local_parts: list[Part] = [layer.fixed, *layer.spillable[spilled:]]
    spilled_parts: list[Part] = [*layer.spillable[:spilled]]
    for part, holder, is_part_on_host in [
        *((part, device, on_host) for part in local_parts),
        *((part, problem.host, True) for part in spilled_parts),
    ]:
        step_ps += _seconds(part.step_bytes, holder.weight_rate)
        if is_part_on_host and copying_device:
            batch_ps += _seconds(part.batch_bytes[batch], copying_device.link_rate)
            batch_ps += _seconds(part.batch_flops[batch], copying_device.compute_rate)
        else:
            reading, computing = (
                _seconds(part.batch_bytes[batch], holder.weight_rate),
                _seconds(part.batch_flops[batch], holder.compute_rate),
            )
            batch_ps += max(reading, computing)
    total = problem.steps * step_ps + chosen.batches * batch_ps
    if spilled:
        total += 2 * _transfers(problem, batch, device)
    return _nanoseconds(total)


def _transfers(problem: Problem, batch: int, device: Device) -> int:
    """The time in ps of all transfers of activations between a device and the host, in every step and every micro-batch, one
    way."""
    chosen = problem.micro_batches[batch]
    step = device.link_ps + _seconds(problem.slots * problem.hidden_bytes, device.link_rate)
    prompt = device.link_ps + _seconds(chosen.tokens * problem.hidden_bytes, device.link_rate)
    return problem.steps * step + chosen.batches * prompt


def _seconds(amount: int, rate: int) -> int:
    """The time in ps for an amount of bytes or operations at a rate per second, rounded to the nearest number, halves up."""
    return floor(Fraction(amount * 10**12, rate) + Fraction(1, 2))


def _nanoseconds(picoseconds: int) -> int:
    """A time in ps, rounded to whole nanoseconds, halves up."""
    return 1000 * floor(Fraction(picoseconds, 1000) + Fraction(1, 2))
