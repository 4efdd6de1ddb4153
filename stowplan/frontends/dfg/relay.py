"""Relays for values that more instructions read than a tile reaches: copies that pass a value on."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from stowplan.components import strong_components
from stowplan.errors import UsageError
from stowplan.frontends.dfg.graph import Dfg
from stowplan.models.modulo_scheduling.problem import Instruction, Operand


def relay_fan_out(graph: Dfg, limit: int) -> Dfg:
    """The graph with at most ``limit`` different consumers of each value.

    Consumers on a cycle with the producer come first, for a relay would make the cycle longer; then those with the longest way
    to the end of the loop body. Edges of earlier iterations keep their distance behind the relay.
    """
    if limit < 2:
        raise UsageError(f"found a fan-out of {limit}, expected 2 or more: a relay is a consumer too")
    number = {each.id: at for at, each in enumerate(graph.instructions)}
    consumers: dict[int, list[int]] = defaultdict(list)
    for at, each in enumerate(graph.instructions):
        for operand in each.operands:
            if operand.instruction is not None and at not in consumers[number[operand.instruction]]:
                consumers[number[operand.instruction]].append(at)
    component = strong_components(
        len(number), [(source, target) for source, targets in consumers.items() for target in targets]
    )
    height = _heights(graph, number)
    reads_from: dict[tuple[int, int], str] = {}
    relays: list[Instruction] = []
    for source in range(len(number)):
        targets = consumers.get(source, [])
        if len(targets) <= limit:
            continue
        order = sorted(targets, key=lambda at: (component[at] != component[source], -height[at], at))
        _spread(graph.instructions[source].id, source, order, limit, reads_from, relays, number)
    changed = [
        msgspec.structs.replace(each, operands=tuple(_moved(operand, number, at, reads_from) for operand in each.operands))
        for at, each in enumerate(graph.instructions)
    ]
    return Dfg(graph.name, (*changed, *relays), graph.variables)


def _spread(
    producer: str,
    source: int,
    targets: list[int],
    limit: int,
    reads_from: dict[tuple[int, int], str],
    relays: list[Instruction],
    number: dict[str, int],
) -> None:
    """Let the first targets read from the producer, and the others from as few relays as can serve them."""
    if len(targets) <= limit:
        for target in targets:
            reads_from[source, target] = producer
        return
    # The first always reads directly: it may be on a cycle.
    count = next((n for n in range(1, limit) if limit - n + n * limit >= len(targets)), limit - 1)
    direct, rest = targets[: limit - count], targets[limit - count :]
    for target in direct:
        reads_from[source, target] = producer
    share = -(-len(rest) // count)
    for first in range(0, len(rest), share):
        name = f"{producer}.relay{len(relays)}"
        while name in number:
            name += "'"
        relays.append(Instruction(id=name, op="copy", operands=(Operand(instruction=producer),)))
        _spread(name, source, rest[first : first + share], limit, reads_from, relays, number)


def _moved(operand: Operand, number: dict[str, int], target: int, reads_from: dict[tuple[int, int], str]) -> Operand:
    if operand.instruction is None:
        return operand
    source = reads_from.get((number[operand.instruction], target), operand.instruction)
    return msgspec.structs.replace(operand, instruction=source)


def _heights(graph: Dfg, number: dict[str, int]) -> list[int]:
    """Instructions from each to the end of the iteration; 0 on and before cycles without a distance, an error elsewhere."""
    needs = [[number[o.instruction] for o in each.operands if o.instruction and not o.distance] for each in graph.instructions]
    height, waiting = [0] * len(needs), [0] * len(needs)
    for sources in needs:
        for source in sources:
            waiting[source] += 1
    ready = [at for at, count in enumerate(waiting) if not count]
    while ready:
        target = ready.pop()
        for source in needs[target]:
            height[source] = max(height[source], height[target] + 1)
            waiting[source] -= 1
            if not waiting[source]:
                ready.append(source)
    return height
