"""From a graph to a problem on a machine: inputs become variables, multiply-adds are fused, large fan-outs are relayed."""

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
    """The graph with at most ``limit`` different consumers of each value.

    Consumers on a cycle with the producer come first, for a relay would make the cycle longer; then those with the longest way
    to the end of the loop body. Edges of earlier iterations keep their distance behind the relay.
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
    needs = (
        (reader, number[operand.instruction], 1)
        for reader, instruction in enumerate(graph.instructions)
        for operand in instruction.operands
        if operand.instruction and not operand.distance
    )
    return longest_paths(needs, [0] * len(graph.instructions))


def fuse_multiply_add(graph: Dfg) -> Dfg:
    """Fuse each addition of two operands with a multiplication of two, of this iteration, that nothing else reads.

    Of two that could be fused, the one that ends the shorter chain is left as it is: it is the addition's third operand, and
    ready sooner.
    """
    readers = Counter(operand.instruction for instruction in graph.instructions for operand in instruction.operands)
    by_id = {instruction.id: instruction for instruction in graph.instructions}
    depth: dict[str, int] = {}

    def fusable(operand: Operand) -> bool:
        source = by_id.get(operand.instruction or "")
        if source is None or operand.distance or readers[source.id] != 1:
            return False
        return source.op == "mul" and len(source.operands) == 2 and not source.writes

    def chain(name: str) -> int:
        """Instructions before and with this one, along edges of this iteration."""
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

    gone: set[str] = set()
    fused: dict[str, Instruction] = {}
    for addition in graph.instructions:
        if addition.op != "add" or len(addition.operands) != 2:
            continue
        choices = [place for place, operand in enumerate(addition.operands) if fusable(operand)]
        if not choices:
            continue
        place = max(choices, key=lambda at: chain(addition.operands[at].instruction or ""))
        product = by_id[addition.operands[place].instruction or ""]
        gone.add(product.id)
        fused[addition.id] = Instruction(
            id=addition.id, op="madd", operands=(*product.operands, addition.operands[1 - place]), writes=addition.writes
        )
    kept = tuple(fused.get(instruction.id, instruction) for instruction in graph.instructions if instruction.id not in gone)
    return Dfg(graph.name, kept, graph.variables)


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
    """Problem of a graph.

    Parameters
    ----------
    machine
        The Streaming Engine where None.
    inputs
        What becomes of loads, inputs, parameters and constants that nothing leads to. ``variables``: each is a tile-memory
        variable (constants: a constant), so that its readers share a tile. ``copies``: a variable for each reader.
        ``instructions``: an instruction as any other.
    fuse
        Whether a multiplication that only one addition reads becomes one instruction with it.
    fan_out
        Consumers of one value at most; others read it from relays (op ``copy``). None: one less than the tiles that a tile
        reaches, where siblings need different tiles and values do not pass through; 0: no relays.
    memory
        What loads and stores are that are left: ``instructions`` as any other, or ``asynchronous``: accesses to memory, whose
        answers start linked flows. What is sent to several readers gets copies (op ``copy``).
    pins
        Instructions with a fixed tile, time or slot.
    table
        Says latency and tiles of relays and fused instructions; those of the graph have theirs already.
    balance
        Whether to put instructions that pass a value on (op ``copy``) into shorter ways, where ``rules`` limit delays so that
        no times fit otherwise; as few as will do.

    Returns
    -------
    Problem
        Modulo scheduling of the graph, relays and fused instructions included.

    Raises
    ------
    InputError
        A graph that breaks a rule of the problem; names the place.
    """
    if inputs not in get_args(Inputs):
        raise UsageError(f"found inputs {inputs!r}, expected one of {', '.join(get_args(Inputs))}")
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
    problem = Problem(
        instructions=result.instructions if table is None else _filled(graph, result, table),
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
    # Imported here: listing formats loads no solver.
    from stowplan.frontends.dfg.balance import balanced

    return balanced(problem, (lambda made: made) if table is None else table.filled)


def _chosen(matters: bool, option: str, value: object, *others: object) -> tuple[Assumption, ...]:
    """An option with its value and the first of others to try, where they make other instructions."""
    other = next(one for one in others if one != value)
    return (Assumption(option, str(value), f"--set {option}={other}"),) if matters else ()


def _filled(graph: Dfg, result: Dfg, table: OpTable) -> tuple[Instruction, ...]:
    """Relays and fused instructions cost what the table says of their ops."""
    ops = {instruction.id: instruction.op for instruction in graph.instructions}
    return tuple(
        instruction if ops.get(instruction.id) == instruction.op else table.filled(instruction)
        for instruction in result.instructions
    )


def _default_fan_out(machine: Machine, rules: Rules) -> int:
    if rules.siblings == "none" or rules.pass_through:
        return 0
    reach = max(sum(clocks is not None for clocks in row) for row in machine.one_link)
    return max(2, reach - 1) if reach > 1 else 0


def _inputs_to_variables(graph: Dfg, *, copies: bool) -> Dfg:
    """Replace instructions that bring data from outside, and have no operands, by what their readers read."""
    outside = {
        instruction.id: instruction
        for instruction in graph.instructions
        if instruction.op in (*STREAMED, *INVARIANT) and not instruction.operands and not instruction.writes
    }
    read = {operand.instruction for instruction in graph.instructions for operand in instruction.operands}
    # Data that nothing reads is what the loop body is for: it stays.
    outside = {name: value for name, value in outside.items() if name in read}
    number = {name: at for at, name in enumerate(outside)}
    variables: dict[str, Variable] = {variable.id: variable for variable in graph.variables}

    def replaced(reader: Instruction, operand: Operand) -> Operand:
        source = outside.get(operand.instruction or "")
        if source is None:
            return operand
        if source.op == "constant":
            # The file says no value: any will do, but not the same for all.
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
    return Dfg(graph.name, tuple(instructions), tuple(variables.values()))
