"""Small random instances, by seed; and machines and graphs that several tests use."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from stowplan.errors import InputError
from stowplan.models.modulo_scheduling.machine import AsynchronousFabric, Interface, Link, Machine, Registers
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Pin, Problem, Rules, Variable

UP, DOWN = Link(name="up1", rows=-1, clocks=1), Link(name="down1", rows=1, clocks=1)
FAR_UP, FAR_DOWN = Link(name="up2", rows=-2, clocks=2), Link(name="down2", rows=2, clocks=2)


def line(tiles: int = 4, **changes: Any) -> Machine:
    """A row of tiles as the Streaming Engine has."""
    values: dict[str, Any] = {"name": "line", "rows": tiles, "links": (UP, DOWN, FAR_UP, FAR_DOWN), "spoke_depth": 4, **changes}
    return Machine(**values)


def graph(edges: str, machine: Machine | None = None, **changes: Any) -> Problem:
    """A problem from text such as ``a>b b>c c>a:1``: edges with distances."""
    operands: dict[str, list[Operand]] = {}
    for edge in edges.split():
        pair, _, distance = edge.partition(":")
        source, _, target = pair.partition(">")
        operands.setdefault(source, [])
        if target:
            operands.setdefault(target, []).append(Operand(instruction=source, distance=int(distance or 0)))
    instructions = tuple(Instruction(id=name, op="add", operands=tuple(each)) for name, each in operands.items())
    return Problem(instructions=instructions, machine=machine or line(), name=edges, **changes)


def random_machine(chance: random.Random) -> Machine:
    kind = chance.randrange(5)
    links: tuple[Link, ...] = (UP, DOWN)
    rows, columns, wraps = chance.choice([2, 3, 4]), 1, False
    if kind == 1:
        links = (UP, DOWN, FAR_UP, FAR_DOWN)
    elif kind == 2:
        rows, columns = 2, 2
        links = (UP, DOWN, Link(name="left", rows=0, columns=-1), Link(name="right", rows=0, columns=1))
        wraps = chance.random() < 0.5
    elif kind == 3:
        links, wraps = (DOWN,), True
    elif kind == 4:
        links = (Link(name="skip", rows=1, clocks=2), UP)
    return Machine(
        name=f"kind {kind}",
        rows=rows,
        columns=columns,
        links=links,
        wraps=wraps,
        latency=chance.choice([1, 1, 2, 3]),
        spoke_depth=chance.choice([2, 3, 3]),
        instruction_depth=chance.choice([1, 2, 3, 8]),
        memories=1,
        memory_depth=4,
    )


def random_problem(seed: int, most: int = 4) -> Problem:
    """Up to ``most`` instructions on up to four tiles; some with cycles, variables, pins or other rules, by seed."""
    chance = random.Random(seed)
    machine = random_machine(chance)
    count = chance.randint(1, most)
    variables = tuple(
        Variable(id=f"v{number}", words=chance.choice([1, 2, 3]), tile=chance.choice([None, None, 0, 1]))
        for number in range(chance.choice([0, 0, 1, 2]))
    )
    operands: list[list[Operand]] = [[] for _ in range(count)]
    density = chance.choice([0.3, 0.6])
    for target in range(count):
        for source in range(target):
            if chance.random() < density:
                operands[target].append(Operand(instruction=f"i{source}", distance=chance.choice([0, 0, 0, 1])))
        if variables and chance.random() < 0.4:
            operands[target].append(Operand(variable=chance.choice(variables).id))
        if chance.random() < 0.2:
            source = chance.randrange(target, count)
            operands[target].append(Operand(instruction=f"i{source}", distance=chance.choice([1, 1, 2, 3])))
    pins = []
    if chance.random() < 0.25:
        pins.append(
            Pin(
                instruction=f"i{chance.randrange(count)}",
                tile=chance.choice([None, 0, 1]),
                time=chance.choice([None, None, 3]),
                slot=chance.choice([None, None, 1]),
            )
        )
    rules = Rules(
        max_delay=chance.choice([None, None, None, 0, 1]),
        pass_through=chance.random() < 0.3,
        starts=chance.choice(["flow", "flow", "source"]),
        siblings=chance.choice(["consumers", "consumers", "consumers_and_producers", "none"]),
    )
    instructions = tuple(Instruction(id=f"i{at}", op="add", operands=tuple(each)) for at, each in enumerate(operands))
    return Problem(
        instructions=instructions, machine=machine, variables=variables, pins=tuple(pins), rules=rules, name=f"random {seed}"
    )


def random_fabric(chance: random.Random, tiles: int) -> AsynchronousFabric:
    def some() -> tuple[int, ...] | None:
        return tuple(tile for tile in range(tiles) if chance.random() < 0.6) if chance.random() < 0.5 else None

    interfaces = tuple(
        Interface(name=f"m{at}", ports=chance.choice([1, 1, 2]), tiles=some()) for at in range(chance.choice([1, 1, 2]))
    )
    return AsynchronousFabric(latency=chance.choice([0, 1, 2]), memory_latency=chance.choice([1, 2, 3]), interfaces=interfaces)


def linked_problem(seed: int, most: int = 4) -> Problem:
    """As the others, with loads, stores and values that are sent; the flows are in an order."""
    chance = random.Random(-seed - 7)
    problem = (varied_problem if chance.random() < 0.3 else random_problem)(seed, most)
    fabric = random_fabric(chance, problem.machine.tiles)
    depth = chance.choice([2, 4, 8, 8, 16])
    machine = msgspec.structs.replace(problem.machine, asynchronous=fabric, memory_depth=depth)

    def sends(operand: Operand) -> Operand:
        marked = operand.instruction is not None and chance.random() < 0.2
        return msgspec.structs.replace(operand, asynchronous=marked)

    while True:
        instructions = tuple(
            msgspec.structs.replace(
                each, memory=chance.choice([None, None, "load", "load", "store"]), operands=tuple(map(sends, each.operands))
            )
            for each in problem.instructions
        )
        try:
            return msgspec.structs.replace(problem, machine=machine, instructions=instructions, name=f"linked {seed}")
        except InputError:
            continue


def varied_problem(seed: int, most: int = 4) -> Problem:
    """As :func:`random_problem`, with instructions that take longer or shorter than others, or may not stand everywhere."""
    problem, chance = random_problem(seed, most), random.Random(-seed - 1)
    tiles = range(problem.machine.tiles)

    def varied(instruction: Instruction) -> Instruction:
        latency = chance.choice([None, 1, 2, 4])
        allowed = tuple(tile for tile in tiles if chance.random() < 0.6) if chance.random() < 0.4 else None
        return msgspec.structs.replace(instruction, latency=latency, tiles=allowed or None)

    instructions = tuple(map(varied, problem.instructions))
    return msgspec.structs.replace(problem, instructions=instructions, name=f"varied {seed}")


def register_problem(seed: int, most: int = 4) -> Problem:
    """As the others, on machines whose links take no clocks and whose values wait in registers."""
    chance = random.Random(seed + 99)
    problem = (varied_problem if chance.random() < 0.3 else random_problem)(seed, most)
    links = tuple(msgspec.structs.replace(link, clocks=0) for link in problem.machine.links)
    registers = Registers(count=chance.choice([None, 0, 0, 1, 1, 2]), output=chance.random() < 0.6)
    machine = msgspec.structs.replace(problem.machine, links=links, registers=registers, latency=chance.choice([1, 1, 2]))
    rules = msgspec.structs.replace(problem.rules, pass_through=False, siblings=chance.choice(["none", "none", "consumers"]))
    return msgspec.structs.replace(problem, machine=machine, rules=rules, name=f"registers {seed}")
