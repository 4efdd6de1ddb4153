"""Random loop bodies in the manner of real ones, to train policies on; the same for the same generator.

Their statistics are about those of the 112 graphs of the literature that ``docs/reference/ppo.md`` names: 1.1 to 1.3 edges an
instruction, a tenth to a third of the instructions without operands, three quarters of the values read once and one in thirty
four times or more, some 12 levels, cycles in a third of the graphs. Tile-memory variables are in no suite; here they are in
about half of the graphs.
"""

from __future__ import annotations

import math

import numpy as np

from stowplan.arguments import whole
from stowplan.errors import InputError
from stowplan.frontends.dfg import Dfg, lower
from stowplan.hardware.se.reference import OPERATIONS
from stowplan.models.modulo_scheduling.bounds import find_obstacle
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem, Variable

#: Instructions of a generated graph, before relays; sizes are spread evenly over their logarithm.
INSTRUCTIONS = 6, 64

#: Part of the instructions without operands, from the first to the last.
SOURCES = 0.08, 0.32

#: Parts of the other instructions with one, two and three operands.
OPERANDS = 0.62, 0.35, 0.03

#: Part of the operands that read a value which nothing reads yet: the more, the fewer values are read twice.
UNREAD = 0.75, 0.95

#: Part of the operands that read one of the last few values: the more, the more levels there are.
RECENT = 0.0, 0.3

#: Parts of the graphs with cycles, with instructions that read their own last value, with a value that many read, and with
#: tile-memory variables.
CYCLIC, ACCUMULATING, SPREAD, VARIABLES = 0.4, 0.25, 0.25, 0.5

#: Consumers of a value that many read, before relays.
CONSUMERS = 5, 12

#: Ops by the number of their operands.
_OPS = {count: [name for name in names if name in OPERATIONS] for count, names in enumerate((
    ("load", "input"), ("load", "neg", "abs", "copy"), ("add", "sub", "mul", "and", "or", "xor"), ("mac", "fma", "select"),
))}  # fmt: skip


def random_graph(rng: np.random.Generator, instructions: int) -> Dfg:
    """A loop body of so many instructions."""
    count = whole("instructions {}", instructions, 1)
    sources, unread, recent = rng.uniform(*SOURCES), rng.uniform(*UNREAD), rng.uniform(*RECENT)
    window = int(rng.integers(3, 4 + max(3, 2 * math.isqrt(count))))
    operands: list[list[tuple[int, int]]] = []
    readers, levels = [0] * count, [0] * count
    for number in range(count):
        own: list[tuple[int, int]] = []
        if number and rng.random() >= sources:
            wanted = 1 + int(rng.choice(len(OPERANDS), p=OPERANDS))
            while len(own) < min(wanted, number):
                own += [(source, 0) for source in _source(rng, number, readers, levels, own, unread, recent, window)]
        for source, _ in own:
            readers[source] += 1
            levels[number] = max(levels[number], levels[source] + 1)
        operands.append(own)
    _close_cycles(rng, operands)
    if count > CONSUMERS[0] and rng.random() < SPREAD:
        _spread(rng, operands)
    named: list[list[Operand]] = [
        [Operand(instruction=f"i{source}", distance=distance) for source, distance in own] for own in operands
    ]
    shared = _share(rng, named) if rng.random() < VARIABLES else ()
    made = []
    for number, each in enumerate(named):
        ops = _OPS[min(len(each), max(_OPS))]
        made.append(Instruction(id=f"i{number}", op=ops[int(rng.integers(len(ops)))], operands=tuple(each)))
    return Dfg(f"generated {count}", tuple(made), shared)


def _source(
    rng: np.random.Generator,
    number: int,
    readers: list[int],
    levels: list[int],
    own: list[tuple[int, int]],
    unread: float,
    recent: float,
    window: int,
) -> list[int]:
    """The producer of one more operand."""
    known = {source for source, _ in own}
    free = [producer for producer in range(number) if producer not in known]
    if rng.random() < unread:
        free = [producer for producer in free if not readers[producer]] or free
    if rng.random() < recent:
        free = free[-window:]
    # Of two, the one on the lower level: drawn evenly, graphs are half as deep again as real ones.
    return [min((free[int(rng.integers(len(free)))] for _ in range(2)), key=lambda producer: levels[producer])]


def _close_cycles(rng: np.random.Generator, operands: list[list[tuple[int, int]]]) -> None:
    """Edges of distance 1 from an instruction back to one that leads to it, or to itself."""
    count = len(operands)
    with_room = [number for number, own in enumerate(operands) if 1 <= len(own) <= 2]
    if with_room and rng.random() < ACCUMULATING:
        number = with_room[int(rng.integers(len(with_room)))]
        operands[number].append((number, 1))
    if rng.random() >= CYCLIC:
        return
    for _ in range(int(rng.integers(1, 4))):
        last = first = int(rng.integers(count))
        for _ in range(int(rng.geometric(0.12))):
            before = [source for source, distance in operands[first] if distance == 0]
            if not before:
                break
            first = before[int(rng.integers(len(before)))]
        if first != last and len(operands[first]) <= 2:
            operands[first].append((last, 1))


def _spread(rng: np.random.Generator, operands: list[list[tuple[int, int]]]) -> None:
    """One of the first values goes to many instructions after it."""
    source = int(rng.integers(max(1, len(operands) // 3)))
    later = [number for number in range(source + 1, len(operands)) if len(operands[number]) < 3]
    later = [number for number in later if source not in [producer for producer, _ in operands[number]]]
    wanted = min(len(later), int(rng.integers(CONSUMERS[0], CONSUMERS[1] + 1)))
    for number in rng.choice(later, size=wanted, replace=False) if later else ():
        operands[int(number)].append((source, 0))


def _share(rng: np.random.Generator, operands: list[list[Operand]]) -> tuple[Variable, ...]:
    """Variables that one to three instructions read."""
    with_room = [number for number, own in enumerate(operands) if len(own) < 3]
    variables = []
    for number in range(int(rng.integers(1, max(2, len(operands) // 6 + 1)))):
        readers = rng.choice(with_room, size=min(len(with_room), int(rng.integers(1, 4))), replace=False)
        variable = Variable(id=f"v{number}", words=int(2 ** rng.integers(0, 8)), streams=bool(rng.random() < 0.5))
        for reader in sorted(map(int, readers)):
            if len(operands[reader]) < 3:
                operands[reader].append(Operand(variable=variable.id))
        variables.append(variable)
    used = {operand.variable for own in operands for operand in own}
    return tuple(variable for variable in variables if variable.id in used)


def generated(
    rng: np.random.Generator, machine: Machine | None = None, *, instructions: int | tuple[int, int] = INSTRUCTIONS
) -> Problem:
    """A problem of a random loop body on a machine; one that shows an obstacle at once is drawn again.

    Parameters
    ----------
    machine
        The Streaming Engine where None.
    instructions
        Before relays: a number, or the least and the most.

    Raises
    ------
    InputError
        None of a hundred draws can be mapped.
    """
    low, high = (instructions, instructions) if isinstance(instructions, int) else instructions
    whole("instructions {}", low, 1)
    whole("instructions {}", high, low)
    for _ in range(100):
        count = round(math.exp(rng.uniform(math.log(low), math.log(high))))
        problem = lower(random_graph(rng, count), machine, inputs="instructions")
        obstacle = find_obstacle(problem)
        if obstacle is None:
            return problem
    raise InputError(f"found no graph of {low} to {high} instructions that can be mapped; of the last one, {obstacle}")
