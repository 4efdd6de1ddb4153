"""Loads and stores over the asynchronous fabric: a loop body cut into flows that the answers of memory link.

An instruction is one level above the loads it depends on. Instructions of one level stay in one flow where values lead from one
to the other; what goes from level to level is sent over the asynchronous fabric. Recurrences without memory in them stay whole.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Literal, NamedTuple

import msgspec

from stowplan.errors import InputError
from stowplan.frontends.dfg.graph import Dfg
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.problem import Instruction, Operand

#: Operations that access memory, and how.
ACCESSES: dict[str, Literal["load", "store"]] = {"load": "load", "store": "store"}


class _Reader(NamedTuple):
    """An operand that reads a value that is sent."""

    instruction: int
    distance: int
    initial: float


def make_asynchronous(graph: Dfg, machine: Machine) -> Dfg:
    """The graph with its loads and stores as memory accesses, and every value between two levels sent.

    What is sent has one reader: a copy (op ``copy``) where there would be more, which passes it on over links, or to the next
    level.

    Raises
    ------
    InputError
        The machine has no memory interfaces.
    """
    kind = [ACCESSES.get(instruction.op) for instruction in graph.instructions]
    if not any(kind):
        return graph
    if not machine.interfaces:
        raise InputError(
            f"found loads and stores over the asynchronous fabric, expected memory=instructions: {machine.name} has no memory "
            "interfaces"
        )
    number = graph.number
    level = _levels(graph, number, [access is not None for access in kind])
    readers = _sent(graph, number, level, [access is not None for access in kind])
    taken = set(number)
    copies: list[Instruction] = []
    changed: dict[tuple[_Reader, str], Operand] = {}
    for source, sent in readers.items():
        copies += _link(graph.instructions[source].id, sent, level, taken, changed)

    def moved(at: int, operand: Operand) -> Operand:
        replacement = changed.get((_Reader(at, operand.distance, operand.initial), operand.instruction or ""))
        return operand if replacement is None else msgspec.structs.replace(replacement, initial=operand.initial)

    instructions = tuple(
        msgspec.structs.replace(
            instruction, memory=kind[at], operands=tuple(moved(at, operand) for operand in instruction.operands)
        )
        for at, instruction in enumerate(graph.instructions)
    )
    return dataclasses.replace(graph, instructions=(*instructions, *copies))


def _levels(graph: Dfg, number: dict[str, int], is_access: list[bool]) -> list[int]:
    """Level of each instruction: loads and stores on the longest way to it, less where it can wait for its consumers."""
    component = graph.components
    with_access = {component[at] for at, access in enumerate(is_access) if access}
    # Recurrences without memory in them are one unit; others are cut somewhere anyway.
    unit = [-1 - at if component[at] in with_access else component[at] for at in range(len(number))]
    before: dict[int, set[tuple[int, bool]]] = {one: set() for one in unit}
    after: dict[int, set[int]] = {one: set() for one in unit}
    for at, instruction in enumerate(graph.instructions):
        for operand in instruction.operands:
            if operand.instruction is not None and not operand.distance:
                source = number[operand.instruction]
                if unit[source] != unit[at]:
                    before[unit[at]].add((unit[source], is_access[source]))
                    after[unit[source]].add(unit[at])
    waiting = {one: len({source for source, _ in sources}) for one, sources in before.items()}
    order = [one for one, count in waiting.items() if not count]
    height: dict[int, int] = {}
    for one in order:
        height[one] = max((height[source] + is_load for source, is_load in before[one]), default=0)
        for target in after[one]:
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    accessing = {unit[at] for at, access in enumerate(is_access) if access}
    for one in reversed(order):
        # What only later levels read is computed there, unless more values would have to be sent for it.
        if after[one] and one not in accessing and len(before[one]) <= 1:
            height[one] = max(height[one], min(height.get(target, 0) for target in after[one]))
    # A cycle without a distance has no order; the problem says which it is.
    return [height.get(one, 0) for one in unit]


def _sent(graph: Dfg, number: dict[str, int], level: list[int], is_access: list[bool]) -> dict[int, list[_Reader]]:
    """Readers of each value that is sent."""
    readers: dict[int, dict[_Reader, None]] = defaultdict(dict)
    for at, instruction in enumerate(graph.instructions):
        for operand in instruction.operands:
            if operand.instruction is not None:
                source = number[operand.instruction]
                if is_access[source] or level[source] != level[at]:
                    readers[source][_Reader(at, operand.distance, operand.initial)] = None
    return {source: list(sent) for source, sent in readers.items()}


def _groups(readers: list[_Reader], level: list[int]) -> list[list[_Reader]]:
    """Readers that can read from one copy, in the order of the copies.

    A copy of an earlier iteration has one initial value. Later iterations last: no value goes back to a lower level within one.
    """
    by_level: dict[int, list[_Reader]] = defaultdict(list)
    for reader in readers:
        by_level[level[reader.instruction]].append(reader)
    groups: dict[tuple[int, int, float], list[_Reader]] = defaultdict(list)
    for stage, members in by_level.items():
        has_this = any(reader.distance == 0 for reader in members)
        for reader in members:
            initial = 0.0 if has_this else reader.initial
            groups[int(not has_this), stage, initial].append(reader)
    return sorted(groups.values(), key=lambda group: (min(reader.distance for reader in group), level[group[0].instruction]))


def _link(
    producer: str, readers: list[_Reader], level: list[int], taken: set[str], changed: dict[tuple[_Reader, str], Operand]
) -> list[Instruction]:
    """Let the readers of a value that is sent read it one level after the other; returns the copies that it takes."""
    name, age, initial = producer, 0, 0.0
    newest = producer
    copies: list[Instruction] = []
    groups = _groups(readers, level)
    for members in groups:
        least = min(reader.distance for reader in members)
        if age and initial != members[0].initial:
            # The copy before begins with another value.
            name, age = newest, 0
        if members is groups[-1] and len({reader.instruction for reader in members}) == 1:
            for reader in members:
                changed[reader, producer] = Operand(instruction=name, distance=reader.distance - age, asynchronous=True)
            continue
        copy = f"{producer}.copy{len(copies)}"
        while copy in taken:
            copy += "'"
        taken.add(copy)
        begins = members[0].initial if least else 0.0
        read = Operand(instruction=name, distance=least - age, initial=begins, asynchronous=True)
        copies.append(Instruction(id=copy, op="copy", operands=(read,)))
        name, age, initial = copy, least, begins
        newest = newest if age else copy
        for reader in members:
            changed[reader, producer] = Operand(instruction=name, distance=reader.distance - age)
    return copies
