"""A reference of LLM placement: the rules as one sentence each, and times as exact fractions, rounded where the rules round."""

from __future__ import annotations

from fractions import Fraction
from itertools import groupby
from math import floor

from stowplan.models.llm_placement.plan import Plan
from stowplan.models.llm_placement.problem import Device, Problem


def is_valid(problem: Problem, plan: Plan) -> bool:
    """Whether a plan of the right lengths keeps every rule and states its time."""
    memories = [problem.host, *problem.devices]
    if plan.micro_batch not in range(len(problem.micro_batches)) or any(at not in range(len(memories)) for at in plan.memories):
        return False
    for layer, at, parts in zip(problem.layers, plan.memories, plan.spilled, strict=True):
        if parts not in range(1 + (len(layer.spillable) if at else 0)):
            return False
    runs = [at for at, _ in groupby(plan.memories)]
    if len(runs) != len({*runs}) or (0 in runs and runs[0] != 0):
        return False
    for number, memory in enumerate(memories):
        here = [
            part.bytes
            for layer, at, parts in zip(problem.layers, plan.memories, plan.spilled, strict=True)
            for place, part in enumerate((layer.fixed, *layer.spillable))
            if number == (0 if 0 < place <= parts else at)
        ]
        caches = [layer.cache_bytes for layer, at in zip(problem.layers, plan.memories, strict=True) if at == number]
        used = sum(here) + sum(caches) + memory.compute_bytes[plan.micro_batch] + (0 if number else problem.host_bytes)
        if (number == 0 or number in plan.memories) and used + memory.margin > memory.capacity:
            return False
    return plan.objective == request(problem, plan)


def request(problem: Problem, plan: Plan) -> int:
    """Picoseconds."""
    batch, chosen = plan.micro_batch, problem.micro_batches[plan.micro_batch]
    order = [at for at, _ in groupby(plan.memories) if at]
    copiers = [problem.devices[at - 1] for at in order if problem.devices[at - 1].copies_weights and chosen.tokens >= 32]

    def hop(device: Device, tokens: int) -> int:
        return device.link_ps + _ps(tokens * problem.hidden_bytes, device.link_rate)

    def hops(device: Device) -> int:
        return problem.steps * hop(device, problem.slots) + chosen.batches * hop(device, chosen.tokens)

    total = sum((2 if at != order[-1] else 1) * _ns(hops(problem.devices[at - 1])) for at in order)
    for number, (layer, at, parts) in enumerate(zip(problem.layers, plan.memories, plan.spilled, strict=True)):
        device = problem.devices[at - 1] if at else problem.host
        copier = copiers[0] if copiers and number < len(problem.layers) - 1 else None
        loads = [
            (part.step_bytes, part.batch_bytes[batch], part.batch_flops[batch]) for part in (layer.fixed, *layer.spillable)
        ]
        places = [problem.host if 0 < place <= parts else device for place in range(len(loads))]
        step = device.layer_ps + _ps(layer.step_cache_bytes, device.cache_rate)
        step += sum(_ps(read, place.weight_rate) for (read, _, _), place in zip(loads, places, strict=True))
        cached = layer.batch_cache_bytes[batch] if layer.batch_cache_bytes else 0
        worked = layer.batch_cache_flops[batch] if layer.batch_cache_flops else 0
        prompt = device.layer_ps
        rows = [(cached, worked, device, device.cache_rate)]
        rows += [(size, flops, place, place.weight_rate) for (_, size, flops), place in zip(loads, places, strict=True)]
        for size, flops, place, rate in rows:
            if place is problem.host and copier is not None:
                prompt += _ps(size, copier.link_rate) + _ps(flops, copier.compute_rate)
            else:
                prompt += max(_ps(size, rate), _ps(flops, place.compute_rate))
        total += _ns(problem.steps * step + chosen.batches * prompt + (2 * hops(device) if parts else 0))
    return total


def _ps(amount: int, rate: int) -> int:
    return floor(Fraction(amount * 10**12, rate) + Fraction(1, 2))


def _ns(picoseconds: int) -> int:
    return floor(Fraction(picoseconds, 1000) + Fraction(1, 2)) * 1000
