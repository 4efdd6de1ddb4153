"""Lowers a data-flow graph to a problem on a machine: turns inputs into variables, fuses multiply-adds, and adds relays.

A *relay* is an added instruction (op ``copy``) that reads a value and passes it on, so that a value with many consumers need
not reach all of their tiles directly. The *distance* of an operand is the number of iterations between the production of the
value and its use.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, get_args

import msgspec

from stowplan.errors import UsageError
from stowplan.frontends.dfg.graph import Dfg
from stowplan.frontends.dfg.memory import make_asynchronous
from stowplan.frontends.dfg.op_table import OpTable
from stowplan.hardware.se.machines import streaming_engine
from stowplan.hardware.se.reference import INVARIANT, STREAMED
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Pin, Problem, Rules, Variable
from stowplan.models.modulo_scheduling.structure import longest_paths
from stowplan.result import Assumption


def relay_fan_out(graph: Dfg, limit: int) -> Dfg:
    """Returns a graph with at most ``limit`` different consumers of each value; further consumers read it from relays.

    Consumers on a cycle with the producer are the first to read the value directly, because a relay would make the cycle
    longer. The consumers with the longest path to the end of the loop body follow. An operand that is read from a relay keeps
    its distance.

    Raises
    ------
    UsageError
        The limit is less than 2.
    """
    if limit < 2:
        raise UsageError(f"found a fan-out of {limit}, expected 2 or more: a relay is a consumer too")
    number, component = graph.number, graph.components
    height = _heights(graph, number)
    reads_from: dict[tuple[int, int], str] = {}
    relays: list[Instruction] = []
    for source in range(len(number)):
        targets = graph.consumers.get(source, [])
        if len(targets) <= limit:
            continue
        order = sorted(targets, key=lambda at: (component[at] != component[source], -height[at], at))
        _spread(graph.instructions[source].id, source, order, limit, reads_from, relays, number)
    changed = [
        msgspec.structs.replace(
            instruction, operands=tuple(_moved(operand, number, at, reads_from) for operand in instruction.operands)
        )
        for at, instruction in enumerate(graph.instructions)
    ]
    return Dfg(graph.name, (*changed, *relays), graph.variables, results=graph.results)


def _spread(
    producer: str,
    source: int,
    targets: list[int],
    limit: int,
    reads_from: dict[tuple[int, int], str],
    relays: list[Instruction],
    number: dict[str, int],
) -> None:
    """Lets the first of ``targets`` read from the producer, and the others from the smallest sufficient number of relays.

    ``producer`` is the original instruction, whose number is ``source``, or a relay that passes on its value.
    ``reads_from`` gets, for each pair (source, target), the id of the instruction that the target reads instead of the source.
    New relays are appended to ``relays``.
    """
    if len(targets) <= limit:
        for target in targets:
            reads_from[source, target] = producer
        return
    # The first target always reads directly, because it may be on a cycle with the producer.
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
    """The operand of instruction ``target``, read from a relay if ``reads_from`` says so."""
    if operand.instruction is None:
        return operand
    source = reads_from.get((number[operand.instruction], target), operand.instruction)
    return msgspec.structs.replace(operand, instruction=source)


def _heights(graph: Dfg, number: dict[str, int]) -> list[int]:
    """For each instruction, the length of the longest path from it to the end of the iteration, in edges.

    It is 0 for instructions on a cycle in which all distances are 0, and for those before it. The constructor of the problem
    reports such cycles as errors.
    """
    needs = (
        (reader, number[operand.instruction], 1)
        for reader, instruction in enumerate(graph.instructions)
        for operand in instruction.operands
        if operand.instruction and not operand.distance
    )
    return longest_paths(needs, [0] * len(graph.instructions))


def fuse_multiply_add(graph: Dfg) -> Dfg:
    """Fuses each addition of two operands with a multiplication of two operands whose product nothing else needs.

    These conditions must hold:

    - No other instruction reads the product, and it is no result of the loop body.
    - The addition reads the product of the same iteration.

    If both operands of the addition are such products, the product at the end of the longer chain of instructions is fused, and
    the other one becomes the third operand.
    """
    readers = Counter(operand.instruction for instruction in graph.instructions for operand in instruction.operands)
    by_id = {instruction.id: instruction for instruction in graph.instructions}
    depth: dict[str, int] = {}

    def fusable(operand: Operand) -> bool:
        source = by_id.get(operand.instruction or "")
        if source is None or operand.distance or readers[source.id] != 1 or source.id in graph.results:
            return False
        return source.op == "mul" and len(source.operands) == 2 and not source.writes

    def chain(name: str) -> int:
        """Length of the longest chain of instructions up to this one, along edges of this iteration."""
        stack = [name]
        while stack:
            top = stack[-1]
            needs = [o.instruction for o in by_id[top].operands if o.instruction is not None and o.distance == 0]
            open_needs = [need for need in needs if need not in depth and need not in stack]
            if open_needs:
                stack.append(open_needs[0])
                continue
            depth[top] = 1 + max((depth.get(need, 0) for need in needs), default=0)
            stack.pop()
        return depth[name]

    products: set[str] = set()
    fused: dict[str, Instruction] = {}
    for addition in graph.instructions:
        if addition.op != "add" or len(addition.operands) != 2:
            continue
        choices = [place for place, operand in enumerate(addition.operands) if fusable(operand)]
        if not choices:
            continue
        place = max(choices, key=lambda at: chain(addition.operands[at].instruction or ""))
        product = by_id[addition.operands[place].instruction or ""]
        products.add(product.id)
        fused[addition.id] = Instruction(
            id=addition.id, op="madd", operands=(*product.operands, addition.operands[1 - place]), writes=addition.writes
        )
    remaining = tuple(
        fused.get(instruction.id, instruction) for instruction in graph.instructions if instruction.id not in products
    )
    return Dfg(graph.name, remaining, graph.variables, results=graph.results)


#: The values of the parameters ``inputs`` and ``memory`` of :func:`lower`, which explains them.
Inputs = Literal["variables", "copies", "instructions"]
Memory = Literal["instructions", "asynchronous"]


def lower(
    graph: Dfg,
    machine: Machine | None = None,
    *,
    rules: Rules | None = None,
    inputs: Inputs = "variables",
    fuse: bool = False,
    fan_out: int | None = None,
    memory: Memory = "instructions",
    pins: tuple[Pin, ...] = (),
    table: OpTable | None = None,
    balance: bool = False,
) -> Problem:
    """Makes the problem of scheduling a graph on a machine.

    Parameters
    ----------
    graph
        The graph.
    machine
        The machine; by default the Streaming Engine (:func:`stowplan.hardware.se.machines.streaming_engine`).
    rules
        Variants of the machine's constraints; by default those of docs/reference/modulo-scheduling.md.
    inputs
        How loads, inputs, parameters and constants without operands are modelled. ``variables``: each is a variable in the
        memory of one tile, on which all its readers must run; a constant is a constant operand of its readers instead.
        ``copies``: one variable for each reader. ``instructions``: ordinary instructions. An input that nothing reads remains
        an instruction in any case.
    fuse
        Whether a multiplication that only one addition reads is fused with it.
    fan_out
        The largest number of consumers of one value; further consumers read it from relays. 0: no relays. None: the number of
        other tiles that a tile reaches over one link, but at least 2; no relays if consumers of one value may share a tile, if
        values may pass through tiles, or if the machine has no links.
    memory
        How the remaining loads and stores are modelled. ``instructions``: ordinary instructions. ``asynchronous``: accesses to
        memory, whose answers arrive over the asynchronous fabric, the machine's second network
        (:mod:`stowplan.frontends.dfg.memory`).
    pins
        Instructions with a fixed tile, time or slot (the time modulo the initiation interval).
    table
        Op tables with the latency and tiles of relays and fused instructions; instructions of the graph have theirs already.
        None: relays and fused instructions have the latency of the machine, and may be on any tile.
    balance
        Whether to insert as few copies (op ``copy``) as possible into shorter paths, if ``rules`` limit delays so that there is
        no schedule otherwise (:mod:`stowplan.frontends.dfg.balance`).

    Returns
    -------
    Problem
        The problem of modulo scheduling, with relays and fused instructions.

    Raises
    ------
    UsageError
        ``inputs`` or ``memory`` is unknown, or ``fan_out`` is less than 2 and not 0.
    InputError
        The graph breaks a rule of the problem, or it has asynchronous accesses and the machine has no memory interfaces; the
        message names the place.
    """
    if inputs not in get_args(Inputs):
        raise UsageError(f"found inputs {inputs!r}, expected one of {', '.join(get_args(Inputs))}")
    if memory not in get_args(Memory):
        raise UsageError(f"found memory {memory!r}, expected one of {', '.join(get_args(Memory))}")
    target = machine or streaming_engine()
    reading = rules or Rules()
    variables = _inputs_to_variables(graph, copies=inputs == "copies")
    result = graph if inputs == "instructions" else variables
    fused = fuse_multiply_add(result)
    accesses = target.interfaces and any(instruction.op in ("load", "store") for instruction in result.instructions)
    choices = [
        _chosen(variables.instructions != graph.instructions, "inputs", inputs, "copies", "instructions"),
        _chosen(fused.instructions != result.instructions, "fuse", "no" if not fuse else "yes", "yes", "no"),
        _chosen(bool(accesses), "memory", memory, "asynchronous", "instructions"),
    ]
    if fuse:
        result = fused
    if memory == "asynchronous":
        result = make_asynchronous(result, target)
    limit = _default_fan_out(target, reading) if fan_out is None else fan_out
    widest = max(map(len, result.consumers.values()), default=0)
    choices.append(_chosen(widest > 2, "fan_out", limit, 2, 3))
    if limit:
        result = relay_fan_out(result, limit)
    instructions = result.instructions if table is None else _filled(graph, result, table)
    problem = Problem(
        instructions=tuple(_on_memory_tiles(instruction, target) for instruction in instructions),
        machine=target,
        variables=result.variables,
        rules=reading,
        pins=pins,
        name=result.name,
        notes=graph.notes,
        choices=sum(choices, ()),
    )
    if not balance:
        return problem
    # This is imported here, so that listing formats does not load a solver.
    from stowplan.frontends.dfg.balance import balanced

    return balanced(problem, (lambda copy: copy) if table is None else table.filled)


def _chosen(matters: bool, option: str, value: object, *others: object) -> tuple[Assumption, ...]:
    """Returns an assumption about the value of an option, which the result reports together with another value to try.

    The tuple is empty unless ``matters``, which says that the option makes a difference. The value to try is the first of
    ``others`` that differs from ``value``.
    """
    other = next(one for one in others if one != value)
    return (Assumption(option, str(value), f"--set {option}={other}"),) if matters else ()


def _filled(graph: Dfg, result: Dfg, table: OpTable) -> tuple[Instruction, ...]:
    """The instructions of ``result``; those that ``graph`` does not have get their latency and tiles from the table."""
    ops = {instruction.id: instruction.op for instruction in graph.instructions}
    return tuple(
        instruction if ops.get(instruction.id) == instruction.op else table.filled(instruction)
        for instruction in result.instructions
    )


def _on_memory_tiles(instruction: Instruction, machine: Machine) -> Instruction:
    """The instruction; a load or store of a fixed latency is restricted to the machine's memory tiles, if it names some.

    Tiles that an op table names take precedence.
    """
    is_elsewhere = instruction.op not in ("load", "store") or instruction.memory is not None
    if not machine.memory_tiles or is_elsewhere or instruction.tiles is not None:
        return instruction
    return msgspec.structs.replace(instruction, tiles=machine.memory_tiles)


def _default_fan_out(machine: Machine, rules: Rules) -> int:
    """The limit on the consumers of a value if none is given (:func:`lower`); 0 for no limit."""
    if rules.siblings == "none" or rules.pass_through:
        return 0
    reach = max(sum(clocks is not None for clocks in row) for row in machine.one_link)
    return max(2, reach - 1) if reach > 1 else 0


def _inputs_to_variables(graph: Dfg, *, copies: bool) -> Dfg:
    """Returns a graph without the instructions that bring data from outside the loop body.

    Their readers get variables or constants as operands instead. ``copies`` says whether each reader gets a variable of its
    own.
    """
    outside = {
        instruction.id: instruction
        for instruction in graph.instructions
        if instruction.op in (*STREAMED, *INVARIANT) and not instruction.operands and not instruction.writes
    }
    read = {operand.instruction for instruction in graph.instructions for operand in instruction.operands}
    # An instruction that nothing reads is a result of the loop body, so it stays.
    outside = {name: value for name, value in outside.items() if name in read}
    number = {name: at for at, name in enumerate(outside)}
    variables: dict[str, Variable] = {variable.id: variable for variable in graph.variables}

    def replaced(reader: Instruction, operand: Operand) -> Operand:
        source = outside.get(operand.instruction or "")
        if source is None:
            return operand
        if source.op == "constant":
            # The file has no value for this constant, so it gets an arbitrary one, a different one for each constant.
            return Operand(constant=1.0 + number[source.id] / 8)
        name = f"{source.id}@{reader.id}" if copies else source.id
        while name in variables and variables[name].streams != (source.op in STREAMED):
            name += "'"
        variables[name] = Variable(id=name, streams=source.op in STREAMED)
        return Operand(variable=name)

    instructions = [
        msgspec.structs.replace(instruction, operands=tuple(replaced(instruction, operand) for operand in instruction.operands))
        for instruction in graph.instructions
        if instruction.id not in outside
    ]
    return Dfg(graph.name, tuple(instructions), tuple(variables.values()), results=graph.results)
