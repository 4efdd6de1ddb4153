"""From a scheduled HLO module to a :class:`~stowplan.hardware.program.Program`.

The entry computation's instructions are the steps, in text order; the computations of loops, calls and branches stand in line.
Values that must share storage become one tensor: loop-carried values, in-place updates, declared aliases.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from stowplan.errors import InputError
from stowplan.hardware.frontends.hlo.access import Access, InPlace, fused_access, instruction_access
from stowplan.hardware.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.hardware.frontends.hlo.parse import read_module
from stowplan.hardware.frontends.hlo.shape import ArrayShape, Shape, TupleShape
from stowplan.hardware.frontends.hlo.storage import START, Values
from stowplan.hardware.frontends.hlo.trips import trip_count
from stowplan.hardware.frontends.hlo.work import computation_work, instruction_work
from stowplan.hardware.program import Program, ProgramLoop, ProgramStep, ProgramTensor, ProgramUse

#: Programs with more instructions than this, loops and calls in line, are refused.
MAX_INSTRUCTIONS = 2_000_000
#: Deeper nesting of loops and calls is refused, so that the walk may recurse.
MAX_NESTING = 64
#: A step that runs more often than this is refused, and so is one that computes more; sums then stay within 64 bits.
MAX_WEIGHT = 10**9
MAX_WORK = 1 << 53

_CYCLES = re.compile(r'"estimated_cycles":"([0-9]{1,15})"')
#: These pass their first operand on: no step, no storage.
_SAME_VALUE = frozenset({"bitcast", "optimization-barrier", "opt-barrier", "domain", "add-dependency"})
#: Computations that stand in line in the schedule.
_INLINED = frozenset({"while", "call", "conditional"})

_NOWHERE = -1
"""Stands for a leaf without storage: a token, an array without elements, a flag of an asynchronous copy."""


def read_program(path: str | Path) -> Program:
    """Program from a plain or gzip file of scheduled HLO text.

    Raises
    ------
    InputError
        As :func:`~stowplan.hardware.frontends.hlo.parse.read_module` and :func:`program_from_module` do.
    """
    module = read_module(path)
    return program_from_module(module)


def program_from_module(module: HloModule) -> Program:
    """Program of a scheduled module.

    Raises
    ------
    InputError
        The module is not scheduled, or an instruction does not fit its operands or computations; the message names the line.
    """
    try:
        if not module.is_scheduled:
            raise InputError("found a module without is_scheduled=true, expected a scheduled one", place="line 1")
        return _Lowering(module).program()
    except InputError as error:
        raise (error.within(module.source) if module.source else error) from error


class _Read(NamedTuple):
    value: int
    bytes: int
    full: int


class _Update(NamedTuple):
    """An in-place pair of a step: ``write`` bytes where the storage is shared, else all of both values."""

    operand: int
    result: int
    write: int


class _Step(NamedTuple):
    instruction: Instruction
    name: str
    opcode: str
    flops: int
    elementwise: int
    weight: int
    reads: list[_Read]
    writes: list[tuple[int, int]]
    updates: list[_Update]


class _Lowering:
    """One walk through the entry computation and all that stands in line in it."""

    def __init__(self, module: HloModule):
        self.module = module
        self.work = computation_work(module)
        self.access: dict[str, Access] = fused_access(module)
        self.values = Values()
        self.value_of: dict[str, int] = {}
        self.steps: list[_Step] = []
        self.loops: list[ProgramLoop] = []
        self.carried: list[tuple[int, int]] = []
        self.branch_results: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self.repeated: set[str] = set()
        self._leaf_cache: dict[int, list[tuple[str, int]]] = {}
        self._offset_cache: dict[int, list[int]] = {}

    def program(self) -> Program:
        _check_extent(self.module)
        self.repeated = _repeated_names(self.module)
        outputs = self._walk(self.module.entry, None, "", 1)
        for value in outputs:
            self._read_at(value, 2 * len(self.steps))
        refused = self._share_storage()
        return self._build({self.values.storage(value) for value in outputs if value != _NOWHERE}, refused)

    # The walk

    def _walk(self, computation: Computation, arguments: list[list[int]] | None, path: str, weight: int) -> list[int]:
        """Steps of one computation; ``arguments`` are the values of its parameters' leaves, None for the entry."""
        env: dict[str, list[int]] = {}
        for instruction in computation.instructions:
            name = f"{path}{instruction.name}" if path and instruction.name in self.repeated else instruction.name
            leaves = self._leaves(instruction.shape)
            opcode = instruction.opcode
            if opcode == "parameter":
                number = int(instruction.argument)
                values = self._inputs(instruction, name) if arguments is None else arguments[number]
            elif opcode == "constant":
                values = self._inputs(instruction, name)
            elif opcode == "tuple":
                values = [value for operand in instruction.operands for value in env[operand]]
            elif opcode == "get-tuple-element":
                values = self._element(instruction, computation, env)
            elif opcode in _SAME_VALUE or _custom_target(instruction) == "ConcatBitcast":
                values = self._first_operand(instruction, env)
            elif opcode in ("copy-done", "async-update", "async-done"):
                values = self._finished(instruction, computation, env)
            elif opcode == "while":
                values = self._loop(instruction, computation, env, path, weight)
            elif opcode == "call":
                operands = [env[operand] for operand in instruction.operands]
                values = self._inline(instruction, instruction.called[0], operands, path, weight)
            elif opcode == "conditional":
                values = self._branches(instruction, env, path, weight)
            else:
                values = self._step(instruction, computation, env, name, weight)
            if len(values) != len(leaves):
                raise instruction.error(f"found {len(values)} values, expected {len(leaves)} as in its shape")
            env[instruction.name] = values
            for (index, _), value in zip(leaves, values, strict=True):
                if value != _NOWHERE:
                    self.value_of[name + index] = value
        return env[computation.root.name]

    def _inputs(self, instruction: Instruction, name: str) -> list[int]:
        donated: set[tuple[int, ...]] = set()
        if instruction.opcode == "parameter":
            number = int(instruction.argument)
            donated = {alias.operand_index for alias in self.module.input_output_alias if alias.operand == number}
        return [
            self.values.add(name + _index_text(index), leaf.bytes, START, is_input=True, frozen=index not in donated)
            if leaf.bytes
            else _NOWHERE
            for index, leaf in instruction.shape.leaves()
        ]

    def _element(self, instruction: Instruction, computation: Computation, env: dict[str, list[int]]) -> list[int]:
        source = computation.by_name[instruction.operands[0]] if instruction.operands else None
        index = instruction.attribute("index") or ""
        if source is None or not isinstance(source.shape, TupleShape):
            raise instruction.error("expected a tuple as operand of get-tuple-element")
        if not (index.isdecimal() and len(index) < 9 and int(index) < len(source.shape.parts)):
            raise instruction.error(f"found index={index}, expected one below {len(source.shape.parts)}")
        offsets = self._offsets(source.shape)
        return env[source.name][offsets[int(index)] : offsets[int(index) + 1]]

    def _first_operand(self, instruction: Instruction, env: dict[str, list[int]]) -> list[int]:
        if not instruction.operands:
            raise instruction.error(f"found no operand, expected one of {instruction.opcode}")
        return env[instruction.operands[0]]

    def _finished(self, instruction: Instruction, computation: Computation, env: dict[str, list[int]]) -> list[int]:
        """The result of an asynchronous operation: part 0 of a copy-start, part 1 of an async-start."""
        values = self._first_operand(instruction, env)
        if instruction.opcode == "async-update":
            return values
        shape = computation.by_name[instruction.operands[0]].shape
        part = 0 if instruction.opcode == "copy-done" else 1
        if not isinstance(shape, TupleShape) or part >= len(shape.parts):
            raise instruction.error("expected the tuple of an asynchronous start as operand")
        offsets = self._offsets(shape)
        return values[offsets[part] : offsets[part + 1]]

    def _step(
        self, instruction: Instruction, computation: Computation, env: dict[str, list[int]], name: str, weight: int
    ) -> list[int]:
        moment = 2 * len(self.steps)
        access = instruction_access(instruction, computation, self.access)
        reads = []
        for operand, part in zip(instruction.operands, access.reads, strict=True):
            for value in env[operand]:
                if value != _NOWHERE:
                    full = self.values.sizes[value]
                    reads.append(_Read(value, full if part is None else min(part, full), full))
                    self.values.read(value, moment)
        flops, elementwise = instruction_work(instruction, computation, self.work)
        if max(flops, elementwise) > MAX_WORK:
            raise instruction.error(f"found {max(flops, elementwise)} operations, expected at most {MAX_WORK}")
        opcode = instruction.opcode
        if opcode == "custom-call" and _custom_target(instruction) == "AllocateBuffer":
            opcode = "AllocateBuffer"
        elif opcode == "copy-start":
            opcode = "copy"
        results = self._results(instruction, env, name, moment)
        updates = [self._update(pair, instruction, env, results) for pair in access.in_place]
        writes = [
            (value, 0 if opcode == "AllocateBuffer" else self.values.sizes[value])
            for value in results
            if value != _NOWHERE and self.values.defined[value] == moment
        ]
        kept = [update for update in updates if update is not None]
        self.steps.append(_Step(instruction, name, opcode, flops, elementwise, weight, reads, writes, kept))
        return results

    def _results(self, instruction: Instruction, env: dict[str, list[int]], name: str, moment: int) -> list[int]:
        """New values for the leaves a step writes. A start of an asynchronous operation passes its operands on."""
        leaves = self._leaves(instruction.shape)
        passed: dict[int, int] = {}
        if instruction.opcode in ("copy-start", "async-start") and isinstance(instruction.shape, TupleShape):
            offsets = self._offsets(instruction.shape)
            source, result = (1, 0) if instruction.opcode == "copy-start" else (0, 1)
            operands = [value for operand in instruction.operands for value in env[operand]]
            if len(offsets) < 3 or offsets[source + 1] - offsets[source] != len(operands):
                raise instruction.error(f"expected a tuple of results and operands as shape of {instruction.opcode}")
            passed = dict.fromkeys(range(len(leaves)), _NOWHERE)
            passed.update(zip(range(offsets[source], offsets[source + 1]), operands, strict=True))
            for leaf in range(offsets[result], offsets[result + 1]):
                del passed[leaf]
        return [
            passed[number] if number in passed else self.values.add(name + index, size, moment) if size else _NOWHERE
            for number, (index, size) in enumerate(leaves)
        ]

    def _update(self, pair: InPlace, instruction: Instruction, env: dict[str, list[int]], results: list[int]) -> _Update | None:
        operand = env[instruction.operands[pair.operand]]
        if pair.output_leaf >= len(results) or pair.operand_leaf >= len(operand):
            raise instruction.error("found a computation whose result does not fit, expected the instruction's shape")
        value, result = operand[pair.operand_leaf], results[pair.output_leaf]
        if _NOWHERE in (value, result):
            return None
        size = self.values.sizes[result]
        return _Update(value, result, size if pair.write is None else min(pair.write, size))

    def _inline(self, instruction: Instruction, called: str, operands: list[list[int]], path: str, weight: int) -> list[int]:
        computation = self.module.computations[called]
        if len(computation.parameters) != len(operands):
            raise instruction.error(f"found {len(operands)} operands, expected the {len(computation.parameters)} of %{called}")
        return self._walk(computation, operands, f"{path}{instruction.name}/", weight)

    def _loop(
        self, instruction: Instruction, computation: Computation, env: dict[str, list[int]], path: str, weight: int
    ) -> list[int]:
        if len(instruction.called) != 2 or len(instruction.operands) != 1:
            raise instruction.error("expected one operand, a condition and a body")
        trips = trip_count(instruction, computation, self.module)
        if trips is None:
            self.notes.append(f"trip count of {instruction.name} unknown, taken as 1")
        # A loop that never runs keeps its place: its values need storage in the compiled program as well.
        weight *= max(1, trips or 1)
        if weight > MAX_WEIGHT:
            raise instruction.error(f"found steps that run {weight} times, expected at most {MAX_WEIGHT}")
        start = len(self.steps)
        carried = env[instruction.operands[0]]
        self._inline(instruction, instruction.called[0], [carried], path, weight)
        results = self._inline(instruction, instruction.called[1], [carried], path, weight)
        end = len(self.steps)
        if len(results) != len(carried):
            raise instruction.error(f"found a body with {len(results)} results, expected {len(carried)} as in its operand")
        for before, after in zip(carried, results, strict=True):
            self._read_at(after, 2 * end - 1)
            if before != after and _NOWHERE not in (before, after):
                self.carried.append((before, after))
        if end > start:
            self.loops.append(ProgramLoop(start, end, max(1, trips or 1), instruction.name, trips is not None))
        return results

    def _branches(self, instruction: Instruction, env: dict[str, list[int]], path: str, weight: int) -> list[int]:
        """All branches, one after the other: each might run."""
        if len(instruction.operands) != len(instruction.called) + 1:
            raise instruction.error(f"found {len(instruction.called)} branches, expected {len(instruction.operands) - 1}")
        self._read_by_nobody(env[instruction.operands[0]])
        self.notes.append(f"branches of {instruction.name} stand one after the other, each counted once")
        results: list[int] = []
        for called, operand in zip(instruction.called, instruction.operands[1:], strict=True):
            found = self._inline(instruction, called, [env[operand]], path, weight)
            if results and len(results) != len(found):
                raise instruction.error("found branches with results of different shapes, expected the same")
            self.branch_results += [pair for pair in zip(results, found, strict=bool(results)) if _NOWHERE not in pair]
            results = found
        return results

    def _read_by_nobody(self, values: list[int]) -> None:
        for value in values:
            self._read_at(value, 2 * len(self.steps) - 1)

    def _read_at(self, value: int, moment: int) -> None:
        if value != _NOWHERE:
            self.values.read(value, moment)

    def _leaves(self, shape: Shape) -> list[tuple[str, int]]:
        """Index text and bytes of each leaf. The parser makes one object of equal shapes, so identity is the key."""
        if isinstance(shape, ArrayShape):
            return [("", shape.bytes)]
        found = self._leaf_cache.get(id(shape))
        if found is None:
            found = self._leaf_cache[id(shape)] = [(_index_text(index), leaf.bytes) for index, leaf in shape.leaves()]
        return found

    def _offsets(self, shape: TupleShape) -> list[int]:
        """First leaf of each part, and the number of leaves at the end."""
        found = self._offset_cache.get(id(shape))
        if found is None:
            found = [0]
            for part in shape.parts:
                found.append(found[-1] + sum(1 for _ in part.leaves()))
            self._offset_cache[id(shape)] = found
        return found

    # Storage and the result

    def _share_storage(self) -> set[int]:
        """Put values together that must share storage; results of in-place updates that could not be."""
        overlapping = sum(not self.values.share(before, after, forced=True) for before, after in self.carried)
        if overlapping:
            self.notes.append(f"{overlapping} loop-carried values overlap in time with what shares their storage")
        apart = sum(not self.values.share(first, second) for first, second in self.branch_results)
        if apart:
            self.notes.append(f"{apart} results of branches have storage of their own")
        refused = {
            update.result
            for step in self.steps
            for update in step.updates
            if not self.values.share(update.operand, update.result)
        }
        if refused:
            self.notes.append(
                f"{len(refused)} in-place updates write storage of their own: what they update is read later or kept"
            )
        return refused

    def _build(self, outputs: set[int], refused: set[int]) -> Program:
        values = self.values
        number: dict[int, int] = {}
        members: list[list[int]] = []
        for value in range(len(values.names)):
            storage = values.storage(value)
            if storage not in number:
                number[storage] = len(members)
                members.append([])
            members[number[storage]].append(value)
        tensors = tuple(
            ProgramTensor(
                name=values.names[group[0]],
                size=max(values.sizes[value] for value in group),
                is_input=any(values.is_input[value] for value in group),
                is_output=values.storage(group[0]) in outputs,
                members=tuple(values.names[value] for value in group) if len(group) > 1 else (),
            )
            for group in members
        )
        tensor_of = [number[values.storage(value)] for value in range(len(values.names))]
        steps = tuple(_finish(step, tensors, tensor_of, refused) for step in self.steps)
        return Program(
            name=_program_name(self.module),
            steps=steps,
            tensors=tensors,
            loops=tuple(sorted(self.loops, key=lambda loop: (loop.start, -loop.end))),
            value_tensor={name: tensor_of[value] for name, value in self.value_of.items()},
            notes=tuple(self.notes),
        )


def _finish(step: _Step, tensors: tuple[ProgramTensor, ...], tensor_of: list[int], refused: set[int]) -> ProgramStep:
    in_place = {update.result: update.write for update in step.updates if update.result not in refused}
    copied = {update.operand for update in step.updates if update.result in refused}
    read: dict[int, int] = {}
    for value, part, full in step.reads:
        tensor = tensor_of[value]
        read[tensor] = min(read.get(tensor, 0) + (full if value in copied else part), tensors[tensor].size)
    written: dict[int, int] = {}
    for value, size in step.writes:
        tensor = tensor_of[value]
        written[tensor] = min(written.get(tensor, 0) + in_place.get(value, size), tensors[tensor].size)
    uses = [ProgramUse(tensor, False, moved) for tensor, moved in read.items()]
    uses += [ProgramUse(tensor, True, moved) for tensor, moved in written.items()]
    cycles = _CYCLES.search(step.instruction.attributes_text)
    return ProgramStep(
        name=step.name,
        opcode=step.opcode,
        flops=step.flops,
        elementwise=step.elementwise,
        weight=step.weight,
        uses=tuple(uses),
        cycles=int(cycles[1]) if cycles else None,
    )


def _index_text(index: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, index)) + "}" if index else ""


def _custom_target(instruction: Instruction) -> str | None:
    if instruction.opcode != "custom-call":
        return None
    return (instruction.attribute("custom_call_target") or "").strip('"')


def _program_name(module: HloModule) -> str:
    if module.source is None:
        return module.name
    return f"{Path(module.source).name.split('.hlo')[0].split('.txt')[0]}/{module.name}"


def _in_line(computation: Computation) -> list[Instruction]:
    return [instruction for instruction in computation.instructions if instruction.opcode in _INLINED]


def _check_extent(module: HloModule) -> None:
    """Refuse programs that would explode when loops and calls stand in line."""
    size: dict[str, int] = {}
    depth: dict[str, int] = {}
    for computation in module.computations.values():
        called = [name for instruction in _in_line(computation) for name in instruction.called]
        size[computation.name] = len(computation.instructions) + sum(size[name] for name in called)
        depth[computation.name] = 1 + max((depth[name] for name in called), default=0)
    name = module.entry.name
    if size[name] > MAX_INSTRUCTIONS:
        raise InputError(
            f"found a program of {size[name]} instructions with its calls in line, expected at most {MAX_INSTRUCTIONS}"
        )
    if depth[name] > MAX_NESTING:
        raise InputError(f"found loops and calls nested {depth[name]} deep, expected at most {MAX_NESTING}")


def _repeated_names(module: HloModule) -> set[str]:
    """Instruction names that occur more than once when loops and calls stand in line."""
    names: Counter[str] = Counter()
    waiting = [module.entry]
    while waiting:
        computation = waiting.pop()
        names.update(instruction.name for instruction in computation.instructions)
        waiting += [module.computations[name] for instruction in _in_line(computation) for name in instruction.called]
    return {name for name, count in names.items() if count > 1}
