"""Turns the loads and stores of a loop body into asynchronous accesses, which divides the body into flows.

The *asynchronous fabric* of a CGRA is a network beside the links: over it, a tile reaches the memory and every other tile,
without a fixed latency. A *flow* is a set of instructions that are connected by values over links. A value that comes over the
asynchronous fabric, such as the answer of the memory to a load, does not connect two instructions in this sense.

Every instruction has a *level*: the largest number of loads and stores on a path to it within one iteration. Values between
instructions of one level use links, unless a load or store produces them; values from one level to another are sent over the
asynchronous fabric. A *recurrence* is a cycle of values through one or more iterations. All instructions of a recurrence
without memory accesses have the same level, so that the values between them use links.

The *distance* of an operand is the number of iterations between the production of the value and its use. In the first
iterations, in which there is no such value yet, the operand has an initial value.
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

#: Operations that access memory, with the kind of access (the field ``memory`` of an instruction).
ACCESSES: dict[str, Literal["load", "store"]] = {"load": "load", "store": "store"}


class _Reader(NamedTuple):
    """An operand whose value is sent over the asynchronous fabric."""

    instruction: int
    """Number of the instruction that reads the value."""
    distance: int
    """Distance of the operand, in iterations."""
    initial: float
    """Value of the operand in the first iterations."""


def make_asynchronous(graph: Dfg, machine: Machine) -> Dfg:
    """Turns loads and stores into memory accesses, and sends every value between two levels over the asynchronous fabric.

    A value that is sent has a single reader. If several instructions need it, the reader is an added instruction (op ``copy``),
    which passes the value on over links or to the next level. A graph without loads and stores is returned unchanged.

    Raises
    ------
    InputError
        The graph has loads or stores, and the machine has no memory interfaces, over which its fabric reaches the memory.
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
    used_names = set(number)
    copies: list[Instruction] = []
    changed: dict[tuple[_Reader, str], Operand] = {}
    for source, sent in readers.items():
        copies += _link(graph.instructions[source].id, sent, level, used_names, changed)

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
    """The level of each instruction, by its number.

    Levels are those that the docstring of the module defines, except that some instructions are moved up. An instruction that
    only higher levels read gets the lowest of these levels, unless more values would then have to be sent between levels.
    """
    component = graph.components
    with_access = {component[at] for at, access in enumerate(is_access) if access}
    # A unit is a set of instructions that get the same level. The instructions of a recurrence without memory accesses are one
    # unit. All other instructions are units of their own, because in a recurrence with accesses some value is sent in any case.
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
        # A unit without accesses that reads at most one other unit moves up to the lowest level that reads it. Then no more
        # values have to be sent than before.
        if after[one] and one not in accessing and len(before[one]) <= 1:
            height[one] = max(height[one], min(height.get(target, 0) for target in after[one]))
    # A cycle in which all distances are 0 cannot be ordered; the constructor of the problem reports it as an error.
    return [height.get(one, 0) for one in unit]


def _sent(graph: Dfg, number: dict[str, int], level: list[int], is_access: list[bool]) -> dict[int, list[_Reader]]:
    """For each value that is sent over the asynchronous fabric, by the number of its producer, the operands that read it."""
    readers: dict[int, dict[_Reader, None]] = defaultdict(dict)
    for at, instruction in enumerate(graph.instructions):
        for operand in instruction.operands:
            if operand.instruction is not None:
                source = number[operand.instruction]
                if is_access[source] or level[source] != level[at]:
                    readers[source][_Reader(at, operand.distance, operand.initial)] = None
    return {source: list(sent) for source, sent in readers.items()}


def _groups(readers: list[_Reader], level: list[int]) -> list[list[_Reader]]:
    """Groups of readers that can share one copy instruction, in the order of the copies in their chain.

    The readers of a group have the same level. If all of them read the value in later iterations, they also have the same
    initial value, because a copy has only one. Groups with a larger distance come later in the chain, because a value can be
    sent to a lower level only in a later iteration.
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
    producer: str, readers: list[_Reader], level: list[int], used_names: set[str], changed: dict[tuple[_Reader, str], Operand]
) -> list[Instruction]:
    """Makes a chain of copy instructions, one for each group of readers, and returns them.

    The first copy receives the value over the asynchronous fabric and sends it on to the second, and so on. ``changed`` gets
    the new operand of each reader. If the last group has a single instruction, it needs no copy and receives the value itself.
    """
    # ``name`` is the instruction that the next copy reads, and its value is ``age`` iterations old.
    name, age, initial = producer, 0, 0.0
    newest = producer
    copies: list[Instruction] = []
    groups = _groups(readers, level)
    for members in groups:
        least = min(reader.distance for reader in members)
        if age and initial != members[0].initial:
            # The previous copy has another initial value, so this one reads the newest copy.
            name, age = newest, 0
        if members is groups[-1] and len({reader.instruction for reader in members}) == 1:
            for reader in members:
                changed[reader, producer] = Operand(instruction=name, distance=reader.distance - age, asynchronous=True)
            continue
        copy = f"{producer}.copy{len(copies)}"
        while copy in used_names:
            copy += "'"
        used_names.add(copy)
        begins = members[0].initial if least else 0.0
        read = Operand(instruction=name, distance=least - age, initial=begins, asynchronous=True)
        copies.append(Instruction(id=copy, op="copy", operands=(read,)))
        name, age, initial = copy, least, begins
        newest = newest if age else copy
        for reader in members:
            changed[reader, producer] = Operand(instruction=name, distance=reader.distance - age)
    return copies
