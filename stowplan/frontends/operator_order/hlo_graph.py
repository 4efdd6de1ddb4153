"""HLO modules, scheduled or not, as graphs of operators and tensors: the entry computation's instructions.

A loop, call or conditional is one operator: what its computations need for themselves is a tensor that lives while it runs.
Parameters that the caller keeps are there to the end; donated ones may go after their last reader. Constants stand elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from stowplan.deadline import check_reading
from stowplan.errors import naming
from stowplan.frontends.hlo.check import check_module
from stowplan.frontends.hlo.in_place import Group, InPlaceRules
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.parse import read_module
from stowplan.frontends.hlo.shape import index_text
from stowplan.frontends.hlo.walk import IN_LINE, LeafWalk, check_extent
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.structure import build, stable_order

_Leaves = list[int | None]


def read_hlo_order(path: str | Path) -> Problem:
    """Problem of a plain or gzip file of HLO text; raises InputError naming the line."""
    module = read_module(path)
    with naming(path):
        check_extent(module)
        check_module(module, timed=False)
        name = Path(path).name.split(".")[0] or module.name
        return _Reader(module, InPlaceRules(module), {}).problem(module.entry, name, is_entry=True)


class _Inside(NamedTuple):
    """What is known of a computation that a loop, call or conditional runs."""

    scratch: int
    """Bytes that it needs beside its operands and results."""
    passed: dict[int, int]
    """Leaves of its result that are leaves of its parameters, by number."""


class _Reader(LeafWalk[int | None]):
    """Walks one computation."""

    def __init__(self, module: HloModule, rules: InPlaceRules, insides: dict[tuple[str, bool], _Inside]):
        super().__init__(module)
        self._rules, self._insides = rules, insides
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._leaves: dict[str, _Leaves] = {}
        self._groups: list[list[tuple[list[int], list[int]]]] = []
        """Of each operator groups of operands and of results: any of these may take the bytes of any of those."""

    def problem(self, computation: Computation, name: str, *, is_entry: bool) -> Problem:
        """The problem of a computation; of the entry, what the caller keeps stays."""
        donated = {(alias.operand, alias.operand_index) for alias in self.module.input_output_alias} if is_entry else set()
        inputs: list[int] = []
        kept: dict[int, None] = {}
        for instruction in computation.instructions:
            check_reading()
            if instruction.opcode == "parameter":
                leaves: _Leaves = []
                for index, leaf in instruction.shape.leaves:
                    leaves.append(self._add(instruction.name + index_text(index), leaf.device_bytes))
                    if leaves[-1] is not None:
                        inputs.append(leaves[-1])
                        if is_entry and (instruction.parameter_number, index) not in donated:
                            kept[leaves[-1]] = None
            else:
                leaves = self._instruction(instruction, computation)
            self.expect_leaves(instruction, leaves)
            self._leaves[instruction.name] = leaves
        kept |= {leaf: None for leaf in self._leaves[computation.root.name] if leaf is not None}
        precedences = self._control(computation)
        held = {} if is_entry else dict.fromkeys(inputs)
        return Problem(
            name=name,
            tensors=tuple(self._tensors),
            ops=self._ops_in_place(kept, held, {} if is_entry else dict(self.carried(computation))),
            inputs=tuple(inputs),
            outputs=tuple(kept),
            precedences=precedences,
        )

    def _ops_in_place(self, kept: Container[int], held: Container[int], carried: Mapping[int, int]) -> tuple[Op, ...]:
        """The operators, each result with the operand whose bytes it may take.

        A result of a loop's body takes those of what it replaces in the next iteration, if it can. All others take those of an
        operand that no operator reads later in the order given, and that has the fewest readers; those of what is ``held``
        outside, which saves nothing, come last.
        """
        last = {tensor: at for at, op in enumerate(self._ops) for tensor in op.reads}
        readers = Counter(tensor for op in self._ops for tensor in op.reads)
        ops = []
        for at, (op, groups) in enumerate(zip(self._ops, self._groups, strict=True)):
            pairs: dict[int, int] = {}
            for operands, results in groups:
                taken = {*pairs.values()}
                free = {operand for operand in operands if operand not in kept and operand not in pairs}
                replacing = {result: before for result in results if last.get(before := carried.get(result, -1)) == at}
                chosen = [(before, result) for result, before in replacing.items() if before in free and result not in taken]
                free -= {operand for operand, _ in chosen}
                taken |= {result for _, result in chosen}
                ranked = sorted((last[operand] > at, operand in held, readers[operand], operand) for operand in free)
                chosen += zip((each[-1] for each in ranked), (each for each in results if each not in taken), strict=False)
                sizes = [tuple(self._tensors[tensor].size for tensor in pair) for pair in chosen]
                pairs |= {
                    operand: result for (operand, result), (one, other) in zip(chosen, sizes, strict=True) if one == other
                }
            ops.append(msgspec.structs.replace(op, in_place=tuple(pairs.items())))
        return tuple(ops)

    def _control(self, computation: Computation) -> tuple[tuple[int, int], ...]:
        """Pairs of operators that control dependencies keep in order."""
        number = {op.id: at for at, op in enumerate(self._ops)}
        pairs: dict[tuple[int, int], None] = {}
        for instruction in computation.instructions:
            text = instruction.attribute("control-predecessors")
            for name in (text or "").strip("{}").replace("%", "").split(","):
                if name.strip() in number and instruction.name in number:
                    pairs[number[name.strip()], number[instruction.name]] = None
        return tuple(pairs)

    def _instruction(self, instruction: Instruction, computation: Computation) -> _Leaves:
        opcode = instruction.opcode
        if opcode in ("constant", "after-all"):
            return [None for _ in instruction.shape.leaves]
        named = self.named(instruction, computation, self._leaves)
        if named is not None:
            return named
        return self._op(instruction, computation, [self._leaves[name] for name in instruction.operands])

    def _op(self, instruction: Instruction, computation: Computation, operands: list[_Leaves]) -> _Leaves:
        reads = list(dict.fromkeys(leaf for leaves in operands for leaf in leaves if leaf is not None))
        insides = self._insides_of(instruction)
        passed = self.passed(instruction, operands, None) | self._untouched(instruction, operands, insides)
        results: _Leaves = []
        for number, (index, size) in enumerate(instruction.shape.sizes):
            results.append(passed[number] if number in passed else self._add(instruction.name + index, size))
        writes = [result for number, result in enumerate(results) if result is not None and number not in passed]
        scratch = max((inside.scratch for inside in insides), default=0)
        if scratch:
            self._tensors.append(Tensor(id=f"{instruction.name}.scratch", size=scratch))
            writes.append(len(self._tensors) - 1)
        if writes or reads:
            self._ops.append(Op(id=instruction.name, reads=tuple(reads), writes=tuple(writes), kind=instruction.opcode))
            self._groups.append(self._tensor_groups(instruction, computation, operands, results))
        return results

    def _tensor_groups(
        self, instruction: Instruction, computation: Computation, operands: list[_Leaves], results: _Leaves
    ) -> list[tuple[list[int], list[int]]]:
        """Operands and results of an instruction that may share bytes: updates, what loops carry, what is read in place."""
        if instruction.opcode == "while":
            groups = [Group([(0, leaf)], [leaf]) for leaf in range(len(results))]
        else:
            groups = [] if instruction.opcode in IN_LINE else self._rules.groups(instruction, computation)
        places: dict[int | None, set[tuple[int, int]]] = {}
        for number, leaves in enumerate(operands):
            for leaf, tensor in enumerate(leaves):
                places.setdefault(tensor, set()).add((number, leaf))
        tensor_groups = []
        for group in groups:
            # The same tensor may be another operand, too, which no rule lets a result overwrite.
            own = {*group.operands}
            free = {operands[number][leaf]: None for number, leaf in group.operands if leaf < len(operands[number])}
            free = {tensor: None for tensor in free if tensor is not None and places[tensor] <= own}
            made = [results[leaf] for leaf in group.results if leaf < len(results)]
            tensor_groups.append(([*free], [tensor for tensor in made if tensor is not None and tensor not in places]))
        return tensor_groups

    def _insides_of(self, instruction: Instruction) -> list[_Inside]:
        """What the computations of a loop, call or conditional need; empty for all else."""
        is_loop = instruction.opcode == "while"
        return [self._inside(name, is_loop) for name in instruction.called] if instruction.opcode in IN_LINE else []

    def _untouched(self, instruction: Instruction, operands: list[_Leaves], insides: list[_Inside]) -> dict[int, int | None]:
        """Leaves of a loop's or call's result that are leaves of its operands: nothing new is written."""
        if instruction.opcode not in ("while", "call"):
            return {}
        given = [leaf for leaves in operands for leaf in leaves]
        passed = insides[-1].passed.items()
        return {after: given[before] for after, before in passed if instruction.opcode == "call" or after == before}

    def _inside(self, name: str, is_loop: bool) -> _Inside:
        """Peak of a computation in its own order, beside its operands, which are held outside, and its results."""
        key = name, is_loop
        if key not in self._insides:
            computation = self.module.computations[name]
            reader = _Reader(self.module, self._rules, self._insides)
            inner = reader.problem(computation, name, is_entry=False)
            copied = reader.copied(computation, inner) if is_loop else []
            held = {*inner.inputs} | ({*inner.outputs} - {*copied})
            _hold_updated(inner, held, dict(reader.carried(computation)) if is_loop else {})
            sizes = [0 if number in held else tensor.size for number, tensor in enumerate(inner.tensors)]
            tensors = tuple(msgspec.structs.replace(tensor, size=sizes[at]) for at, tensor in enumerate(inner.tensors))
            ops = tuple(
                msgspec.structs.replace(op, in_place=tuple(pair for pair in op.in_place if sizes[pair[0]] == sizes[pair[1]]))
                for op in inner.ops
            )
            structure = build(msgspec.structs.replace(inner, tensors=tensors, ops=ops))
            at_end = sum(inner.tensors[number].size for number in copied)
            self._insides[key] = _Inside(max(at_end, structure.peak(stable_order(structure))), reader.passed_on(computation))
        return self._insides[key]

    def given(self, computation: Computation) -> _Leaves:
        """Leaves of the parameters of a computation, one parameter after the other."""
        return [leaf for parameter in computation.parameters for leaf in self._leaves[parameter.name]]

    def passed_on(self, computation: Computation) -> dict[int, int]:
        """Numbers of the leaves of a computation's root that are leaves of its parameters, and the numbers of those."""
        number = {leaf: at for at, leaf in enumerate(self.given(computation)) if leaf is not None}
        return {at: number[leaf] for at, leaf in enumerate(self._leaves[computation.root.name]) if leaf in number}

    def carried(self, body: Computation) -> list[tuple[int, int]]:
        """Results of a loop's body with what each replaces in the next iteration."""
        pairs = zip(self._leaves[body.root.name], self.given(body), strict=False)
        return [(after, before) for after, before in pairs if None not in (after, before) and after != before]

    def copied(self, body: Computation, inner: Problem) -> list[int]:
        """What the next iteration of a loop gets that cannot stand where this one's is: that is still read, or is another's."""
        carried = self.carried(body)
        lives = _Lives(inner)
        return [
            after for after, before in dict(carried).items() if after in inner.inputs or not lives.may_follow(before, after)
        ]

    def _add(self, name: str, size: int) -> int | None:
        if size == 0:
            return None
        self._tensors.append(Tensor(id=name, size=size))
        return len(self._tensors) - 1


class _Lives:
    """Which operators write and last read each tensor in the order given."""

    def __init__(self, problem: Problem):
        self._ops = problem.ops
        self.read = {tensor: at for at, op in enumerate(problem.ops) for tensor in op.reads}
        self.written = {tensor: at for at, op in enumerate(problem.ops) for tensor in op.writes}

    def may_follow(self, before: int, after: int) -> bool:
        """Whether a tensor is written when another has been read for the last time, or in its place."""
        made, last = self.written.get(after, -1), self.read.get(before, -1)
        return last < made or (last == made >= 0 and (before, after) in self._ops[made].in_place)


def _hold_updated(inner: Problem, held: set[int], carried: dict[int, int]) -> None:
    """Add to what is held what a held result takes the place of, if what that replaces in a loop is no longer needed then."""
    lives = _Lives(inner)
    for at, op in reversed(list(enumerate(inner.ops))):
        for operand, result in op.in_place:
            before = carried.get(result)
            if result not in held or lives.read[operand] != at or operand in inner.outputs:
                continue
            if before is None or before == operand or lives.may_follow(before, operand):
                held.add(operand)
                carried |= {} if before is None else {operand: before}
