"""Reads HLO modules, scheduled or not, as graphs of operators and tensors: the instructions of the entry computation.

A loop, call or conditional is a single operator; the memory that its computations need is a tensor that is live while it runs.
An asynchronous operation is two operators, its start and its end. The end reads all tensors of the start once more, so that
they are live until then. Parameters that the caller keeps are live to the end of the program; a donated parameter may end after
its last reader. Constants do not count as tensors. A *leaf* is an array in the value of an instruction, which may be a tuple.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import msgspec

from stowplan.deadline import check_reading
from stowplan.errors import naming
from stowplan.frontends.hlo.check import check_module
from stowplan.frontends.hlo.in_place import Group, InPlaceRules
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.opcodes import STARTING
from stowplan.frontends.hlo.parse import read_module
from stowplan.frontends.hlo.shape import ArrayShape, index_text
from stowplan.frontends.hlo.walk import IN_LINE, LeafWalk, check_extent
from stowplan.graph.graph import Graph, Op, Tensor
from stowplan.models.operator_order.structure import build, stable_order

#: The number of the tensor of each leaf of a value; None for a leaf that has no bytes on the device, or is a constant.
_Leaves = list[int | None]


def read_hlo(path: str | Path, *, in_place: bool = True) -> Graph:
    """Reads the graph of a plain or gzip file of HLO text.

    Parameters
    ----------
    path
        Path of the file.
    in_place
        Whether plans will write results over operands. If so, and if an asynchronous operation writes its result over an
        operand, the end of the operation does not read this operand.

    Raises
    ------
    InputError
        The file cannot be read, the text is not valid or not supported, or the module is too large when loops and calls are
        inlined (:func:`~stowplan.frontends.hlo.walk.check_extent`); the message names the line.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    module = read_module(path)
    with naming(path):
        check_extent(module)
        check_module(module, timed=False)
        name = Path(path).name.split(".")[0] or module.name
        return _Reader(module, InPlaceRules(module), {}).read(module.entry, name, is_entry=True, in_place=in_place)


class _Inside(NamedTuple):
    """A computation that a loop, call or conditional runs."""

    scratch: int
    """Bytes that it needs in addition to its operands and results."""
    untouched: dict[int, int]
    """For each leaf of its result that it returns unchanged, by number, the number of this leaf among those of its
    parameters."""


class _Reader(LeafWalk[int | None]):
    """Reads one computation."""

    def __init__(self, module: HloModule, rules: InPlaceRules, insides: dict[tuple[str, bool], _Inside]):
        super().__init__(module)
        self._rules, self._insides = rules, insides
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._leaves: dict[str, _Leaves] = {}
        self._groups: list[list[tuple[list[int], list[int]]]] = []
        """For each operator, groups (operands, results) of tensors; any result of a group may be written over any operand of
        the same group."""
        self._in_flight: dict[int, tuple[int, tuple[int, ...]]] = {}
        """For each tensor that a started asynchronous operation writes, the operator that starts it, and the tensors that this
        operator reads."""
        self._ended: dict[int, int] = {}
        """For each result of an asynchronous operation, the operator that ends the operation. No other operator reads the
        tensor before that."""
        self._ends: dict[int, int] = {}
        """For each operator that ends an asynchronous operation, the operator that starts it."""
        self._after: list[tuple[int, int]] = []
        """Pairs of operators: the second reads a result of the asynchronous operation that the first ends."""

    def read(self, computation: Computation, name: str, *, is_entry: bool, in_place: bool = True) -> Graph:
        """Reads the graph of a computation.

        ``is_entry`` says whether it is the program. Then parameters that the caller keeps, that is, does not donate, are live
        to the end. The caller of any other computation holds its parameters and results.
        """
        donated = {(alias.operand, alias.operand_index) for alias in self.module.input_output_alias} if is_entry else set()
        inputs: list[int] = []
        live_at_end: dict[int, None] = {}
        for instruction in computation.instructions:
            check_reading()
            if instruction.opcode == "parameter":
                leaves: _Leaves = []
                for index, leaf in instruction.shape.leaves:
                    leaves.append(self._add(instruction.name + index_text(index), leaf))
                    if leaves[-1] is not None:
                        inputs.append(leaves[-1])
                        if is_entry and (instruction.parameter_number, index) not in donated:
                            live_at_end[leaves[-1]] = None
            else:
                leaves = self._instruction(instruction, computation)
            self.expect_leaves(instruction, leaves)
            self._leaves[instruction.name] = leaves
        live_at_end |= {leaf: None for leaf in self._leaves[computation.root.name] if leaf is not None}
        results = self._results(computation.root) if is_entry else ()
        ops = self._ops_in_place(live_at_end, {} if is_entry else {*inputs}, {} if is_entry else self._carried(computation))
        return Graph(
            results=results,
            name=name,
            tensors=tuple(self._tensors),
            ops=self._without_unsafe_pairs(ops, {*live_at_end}, in_place),
            inputs=tuple(inputs),
            outputs=tuple(live_at_end),
            precedences=tuple(dict.fromkeys((*self._control(computation), *self._after))),
        )

    def _results(self, root: Instruction) -> tuple[int, ...]:
        """The tensors that a program returns; a result without bytes on the device becomes a tensor that no operator uses."""
        results: list[int] = []
        for (index, leaf), number in zip(root.shape.leaves, self._leaves[root.name], strict=True):
            results.append(len(self._tensors) if number is None else number)
            if number is None:
                self._tensors.append(_tensor(f"result {root.name}{index_text(index)}", leaf))
        return tuple(results)

    def _ops_in_place(
        self, live_at_end: Container[int], stored_outside: Container[int], carried: dict[int, int]
    ) -> tuple[Op, ...]:
        """Returns the operators, each with pairs of an operand and the result that may be written over it.

        A result of a loop's body is written over the value that it replaces in the next iteration, if possible. For every other
        result, the operand is chosen by these rules, the most important first:

        - No later operator reads the operand.
        - The operand is not in ``stored_outside``. To overwrite a tensor that is stored outside of the computation saves no
          bytes.
        - The operand has few readers.
        - The operand is written late.

        Parameters
        ----------
        live_at_end
            Tensors that must not be overwritten, because they are live at the end.
        stored_outside
            Parameters of a computation whose bytes the caller holds.
        carried
            For each result of a loop's body, the parameter that it replaces in the next iteration.
        """
        last = {tensor: at for at, op in enumerate(self._ops) for tensor in op.reads}
        readers = Counter(tensor for op in self._ops for tensor in op.reads)
        ops = []
        for at, op in enumerate(self._ops):
            pairs: dict[int, int] = {}
            overwriting: set[int] = set()
            for operands, results in self._groups[at]:
                free = {operand for operand in operands if operand not in live_at_end and operand not in pairs}
                waiting = [result for result in results if result not in overwriting]
                befores = {carried.get(result, -1): result for result in waiting}
                chosen = {before: result for before, result in befores.items() if before in free and last[before] == at}
                ranked = sorted(
                    (last[each] > at, each in stored_outside, readers[each], -each) for each in free if each not in chosen
                )
                others = (result for result in waiting if carried.get(result) not in chosen)
                chosen |= {-rank[-1]: result for rank, result in zip(ranked, others, strict=False)}
                pairs |= chosen
                overwriting |= {*chosen.values()}
            ops.append(msgspec.structs.replace(op, in_place=tuple(pairs.items())))
        return tuple(ops)

    def _control(self, computation: Computation) -> tuple[tuple[int, int], ...]:
        """Pairs of operators of which the first must run before the second because of a control dependence."""
        number = {op.id: at for at, op in enumerate(self._ops)}
        pairs: dict[tuple[int, int], None] = {}
        for instruction in computation.instructions:
            text = instruction.attribute("control-predecessors")
            for name in (text or "").strip("{}").replace("%", "").split(","):
                if name.strip() in number and instruction.name in number:
                    pairs[number[name.strip()], number[instruction.name]] = None
        return tuple(pairs)

    def _instruction(self, instruction: Instruction, computation: Computation) -> _Leaves:
        """Adds the operator of an instruction, if it is one, and returns the tensors of its leaves."""
        opcode = instruction.opcode
        if opcode in ("constant", "after-all"):
            return [None for _ in instruction.shape.leaves]
        named = self.named(instruction, computation, self._leaves)
        if named is not None:
            if opcode.endswith("-done"):
                self._end(instruction, named)
            return named
        return self._op(instruction, computation, [self._leaves[name] for name in instruction.operands])

    def _end(self, instruction: Instruction, results: _Leaves) -> None:
        """Adds an operator for the end of an asynchronous operation, until which its operands and results are live."""
        started = {leaf for leaf in self._leaves[instruction.operands[0]] if leaf is not None}
        for leaf in results:
            start, operands = self._in_flight.pop(-1 if leaf is None else leaf, (-1, ()))
            started.update(operands)
            if start >= 0:
                self._ends[len(self._ops)] = start
        if started:
            self._ended |= {leaf: len(self._ops) for leaf in results if leaf is not None}
            self._ops.append(Op(id=instruction.name, reads=tuple(sorted(started)), kind=instruction.opcode))
            self._groups.append([])

    def _without_unsafe_pairs(self, paired_ops: tuple[Op, ...], live_at_end: set[int], in_place: bool) -> tuple[Op, ...]:
        """The operators without pairs that would be unsafe because an asynchronous operation is still running.

        The result of an asynchronous operation can be written over an operand only if no other operator reads the operand,
        because that operator might run at the same time. The end of the operation does not read an operand over which the
        result is written.
        """
        ops = [*paired_ops]
        readers = Counter(tensor for op in ops for tensor in op.reads)
        for end, start in self._ends.items():
            one, other = ops[start], ops[end]
            pairs = tuple(pair for pair in one.in_place if in_place and readers[pair[0]] == 2 and pair[0] not in live_at_end)
            replaced = {operand for operand, _ in pairs}
            ops[start] = msgspec.structs.replace(one, in_place=pairs)
            ops[end] = msgspec.structs.replace(other, reads=tuple(each for each in other.reads if each not in replaced))
        return tuple(ops)

    def _op(self, instruction: Instruction, computation: Computation, operands: list[_Leaves]) -> _Leaves:
        """Adds the operator of an instruction that computes, and returns the tensors of its leaves."""
        reads = list(dict.fromkeys(leaf for leaves in operands for leaf in leaves if leaf is not None))
        names = instruction.called if instruction.opcode in IN_LINE else ()
        insides = [self._inside(name, instruction.opcode == "while") for name in names]
        operand_leaves = [leaf for leaves in operands for leaf in leaves]
        untouched = insides[-1].untouched if instruction.opcode in ("while", "call") else {}
        passed = self.passed(instruction, operands, None)
        passed |= {after: operand_leaves[before] for after, before in untouched.items() if before < len(operand_leaves)}
        results: _Leaves = []
        for number, (index, leaf) in enumerate(instruction.shape.leaves):
            name = instruction.name + index_text(index)
            results.append(passed[number] if number in passed else self._add(name, leaf))
        writes = [result for number, result in enumerate(results) if result is not None and number not in passed]
        scratch = max((inside.scratch for inside in insides), default=0)
        if scratch:
            self._tensors.append(Tensor(id=f"{instruction.name}.scratch", size=scratch))
            writes.append(len(self._tensors) - 1)
        if instruction.opcode in STARTING:
            self._in_flight |= dict.fromkeys(writes, (len(self._ops), tuple(reads)))
        self._after += [(self._ended[leaf], len(self._ops)) for leaf in reads if leaf in self._ended]
        if writes or reads:
            self._ops.append(Op(id=instruction.name, reads=tuple(reads), writes=tuple(writes), kind=instruction.opcode))
            self._groups.append(self._tensor_groups(instruction, computation, operands, results))
        return results

    def _tensor_groups(
        self, instruction: Instruction, computation: Computation, operands: list[_Leaves], results: _Leaves
    ) -> list[tuple[list[int], list[int]]]:
        """Groups (operands, results) of the tensors of an instruction that may share bytes.

        They come from updates in place, from values that a loop carries, and from element-wise instructions.
        """
        carried = [Group([(0, leaf)], [leaf]) for leaf in range(len(results))] if instruction.opcode == "while" else []
        groups = carried if instruction.opcode in IN_LINE else self._rules.groups(instruction, computation)
        total = Counter(leaf for leaves in operands for leaf in leaves)
        tensor_groups = []
        for group in groups:
            here = Counter(operands[number][leaf] for number, leaf in {*group.operands} if leaf < len(operands[number]))
            group_results = [results[leaf] for leaf in group.results if leaf < len(results)]
            written = [tensor for tensor in group_results if tensor is not None and tensor not in total]
            # The same tensor may also be another operand, which must not be overwritten.
            free = [tensor for tensor, count in here.items() if tensor is not None and count == total[tensor]]
            sizes = {self._tensors[tensor].size for tensor in (*free, *written)}
            tensor_groups += [(free, written)] if len(sizes) == 1 else []
        return tensor_groups

    def _inside(self, name: str, is_loop: bool) -> _Inside:
        """The memory that a computation needs in the order of its text, without its operands and results, which the caller
        holds. ``is_loop`` says whether a while loop runs it, as its condition or its body."""
        key = name, is_loop
        if key not in self._insides:
            computation = self.module.computations[name]
            reader = _Reader(self.module, self._rules, self._insides)
            inner = reader.read(computation, name, is_entry=False)
            without_bytes, copied = _find_tensors_without_bytes(inner, reader._carried(computation) if is_loop else {})
            sizes = [0 if number in without_bytes else tensor.size for number, tensor in enumerate(inner.tensors)]
            tensors = tuple(msgspec.structs.replace(tensor, size=sizes[at]) for at, tensor in enumerate(inner.tensors))
            ops = tuple(
                msgspec.structs.replace(op, in_place=tuple(pair for pair in op.in_place if sizes[pair[0]] == sizes[pair[1]]))
                for op in inner.ops
            )
            structure = build(msgspec.structs.replace(inner, tensors=tensors, ops=ops))
            at_end = sum(inner.tensors[number].size for number in copied)
            scratch = max(at_end, structure.peak(stable_order(structure)))
            self._insides[key] = _Inside(scratch, reader._untouched(computation, is_loop))
        return self._insides[key]

    def _untouched(self, computation: Computation, is_loop: bool) -> dict[int, int]:
        """Finds the leaves of a computation's result that it returns unchanged.

        The keys are the numbers of these leaves, and the values are the numbers of the same tensors among the leaves of all
        parameters. In the body of a loop, a leaf counts only if both numbers are equal, because it otherwise changes its place
        in each iteration.
        """
        number = {leaf: at for at, leaf in enumerate(self._parameter_leaves(computation)) if leaf is not None}
        found = {at: number[leaf] for at, leaf in enumerate(self._leaves[computation.root.name]) if leaf in number}
        return {after: before for after, before in found.items() if after == before or not is_loop}

    def _parameter_leaves(self, computation: Computation) -> _Leaves:
        """Leaves of all parameters of a computation, in the order of the parameters."""
        return [leaf for parameter in computation.parameters for leaf in self._leaves[parameter.name]]

    def _carried(self, body: Computation) -> dict[int, int]:
        """For each result of a loop's body, the parameter that it replaces in the next iteration, unless it is the same
        tensor."""
        pairs = zip(self._leaves[body.root.name], self._parameter_leaves(body), strict=False)
        return {after: before for after, before in pairs if after is not None and before is not None and after != before}

    def _add(self, name: str, leaf: ArrayShape) -> int | None:
        """Adds a tensor for a leaf and returns its number; None if the leaf has no bytes on the device."""
        if leaf.device_bytes == 0:
            return None
        self._tensors.append(_tensor(name, leaf))
        return len(self._tensors) - 1


def _tensor(name: str, leaf: ArrayShape) -> Tensor:
    """The tensor of a leaf."""
    return Tensor(id=name, size=leaf.device_bytes, dtype=leaf.dtype, shape=leaf.dims)


def _find_tensors_without_bytes(inner: Graph, carried: dict[int, int]) -> tuple[set[int], list[int]]:
    """Finds the tensors of a computation that need no bytes besides those that its caller holds, and the tensors that a loop
    copies at the end of an iteration.

    The caller holds parameters and results. If a result is written over another tensor, the bytes of this tensor are held as
    well. A value for the next iteration must be copied if it is itself a parameter, or if it cannot be written over the current
    value, because the current value is still read.

    Parameters
    ----------
    inner
        The graph of the computation.
    carried
        For each result of a loop's body, the parameter that it replaces in the next iteration; empty for other computations.
    """
    last = {tensor: at for at, op in enumerate(inner.ops) for tensor in op.reads}
    written = {tensor: at for at, op in enumerate(inner.ops) for tensor in op.writes}

    def may_follow(before: int, after: int) -> bool:
        """Whether ``after`` is written when ``before`` is no longer needed, so that it may use the same bytes."""
        written_at, read = written.get(after, -1), last.get(before, -1)
        return read < written_at or (read == written_at >= 0 and (before, after) in inner.ops[written_at].in_place)

    copied = [after for after, before in carried.items() if after in inner.inputs or not may_follow(before, after)]
    without_bytes = {*inner.inputs} | ({*inner.outputs} - {*copied})
    for at, op in reversed(list(enumerate(inner.ops))):
        for operand, result in op.in_place:
            before = carried.get(result, operand)
            is_free = before == operand or may_follow(before, operand)
            if result in without_bytes and last[operand] == at and operand not in inner.outputs and is_free:
                without_bytes.add(operand)
                carried.setdefault(operand, before)
    return without_bytes, copied
