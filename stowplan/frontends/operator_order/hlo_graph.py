"""HLO modules, scheduled or not, as graphs of operators and tensors: the entry computation's instructions.

A loop, call or conditional is one operator: what its computations need for themselves is a tensor that lives while it runs.
An asynchronous operation is two: its start, and its end, which reads again all that the start reads and writes.
Parameters that the caller keeps are there to the end; donated ones may go after their last reader. Constants stand elsewhere.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from stowplan.deadline import check_reading
from stowplan.errors import naming
from stowplan.frontends.hlo.access import Access, fused_access, instruction_access
from stowplan.frontends.hlo.check import check_module
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.opcodes import ELEMENTWISE, STARTING
from stowplan.frontends.hlo.parse import read_module
from stowplan.frontends.hlo.shape import index_text
from stowplan.frontends.hlo.walk import IN_LINE, LeafWalk, check_extent
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.structure import build, stable_order

_Leaves = list[int | None]


def read_hlo_order(path: str | Path, *, in_place: bool = True) -> Problem:
    """Problem of a plain or gzip file of HLO text; raises InputError naming the line.

    ``in_place`` says whether results will take the bytes of operands: an asynchronous operation that writes its result over an
    operand needs that operand's bytes to its end only through the result.
    """
    module = read_module(path)
    with naming(path):
        check_extent(module)
        check_module(module, timed=False)
        name = Path(path).name.split(".")[0] or module.name
        return _Reader(module, fused_access(module), {}).problem(module.entry, name, is_entry=True, in_place=in_place)


class _Reader(LeafWalk[int | None]):
    """Walks one computation."""

    def __init__(self, module: HloModule, access: dict[str, Access], scratch: dict[tuple[str, bool], int]):
        super().__init__(module)
        self._access, self._scratch = access, scratch
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._leaves: dict[str, _Leaves] = {}
        self._in_flight: dict[int, tuple[int, tuple[int, ...]]] = {}
        """Of what an asynchronous start writes: the number of that operator, and what it reads."""
        self._ended: dict[int, int] = {}
        """Of what an asynchronous operation writes: the operator that ends it, before which nothing else reads it."""
        self._ends: dict[int, int] = {}
        """Of each operator that ends an asynchronous operation, the one that starts it."""
        self._after: list[tuple[int, int]] = []
        """Pairs of operators: what the first ends, the second reads."""

    def problem(self, computation: Computation, name: str, *, is_entry: bool, in_place: bool = True) -> Problem:
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
        return Problem(
            name=name,
            tensors=tuple(self._tensors),
            ops=self._held_ops({*kept}, in_place),
            inputs=tuple(inputs),
            outputs=tuple(kept),
            precedences=tuple(dict.fromkeys((*self._control(computation), *self._after))),
        )

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
            if opcode.endswith("-done"):
                self._end(instruction, named)
            return named
        return self._op(instruction, computation, [self._leaves[name] for name in instruction.operands])

    def _end(self, instruction: Instruction, results: _Leaves) -> None:
        """An operator for the end of an asynchronous operation: until then all that it reads and writes is in memory."""
        started = {leaf for leaf in self._leaves[instruction.operands[0]] if leaf is not None}
        for leaf in results:
            start, operands = self._in_flight.pop(-1 if leaf is None else leaf, (-1, ()))
            started.update(operands)
            if start >= 0:
                self._ends[len(self._ops)] = start
        if started:
            self._ended |= {leaf: len(self._ops) for leaf in results if leaf is not None}
            self._ops.append(Op(id=instruction.name, reads=tuple(sorted(started)), kind=instruction.opcode))

    def _held_ops(self, kept: set[int], in_place: bool) -> tuple[Op, ...]:
        """The operators, once all readers are known.

        The end of an asynchronous operation does not read an operand whose place the result takes. That place can be taken only
        where nobody else reads the operand: any other reader might run while the operation writes there.
        """
        readers = Counter(tensor for op in self._ops for tensor in op.reads)
        for end, start in self._ends.items():
            one, other = self._ops[start], self._ops[end]
            pairs = tuple(pair for pair in one.in_place if in_place and readers[pair[0]] == 2 and pair[0] not in kept)
            replaced = {operand for operand, _ in pairs}
            self._ops[start] = msgspec.structs.replace(one, in_place=pairs)
            self._ops[end] = msgspec.structs.replace(other, reads=tuple(each for each in other.reads if each not in replaced))
        return tuple(self._ops)

    def _op(self, instruction: Instruction, computation: Computation, operands: list[_Leaves]) -> _Leaves:
        reads = list(dict.fromkeys(leaf for leaves in operands for leaf in leaves if leaf is not None))
        passed = self.passed(instruction, operands, None)
        results: _Leaves = []
        for number, (index, size) in enumerate(instruction.shape.sizes):
            results.append(passed[number] if number in passed else self._add(instruction.name + index, size))
        writes = [result for number, result in enumerate(results) if result is not None and number not in passed]
        scratch = self._needed(instruction)
        if scratch:
            self._tensors.append(Tensor(id=f"{instruction.name}.scratch", size=scratch))
            writes.append(len(self._tensors) - 1)
        pairs = self._pairs(instruction, computation, operands, results)
        if instruction.opcode in STARTING:
            self._in_flight |= dict.fromkeys(writes, (len(self._ops), tuple(reads)))
        self._after += [(self._ended[leaf], len(self._ops)) for leaf in reads if leaf in self._ended]
        if writes or reads:
            self._ops.append(
                Op(id=instruction.name, reads=tuple(reads), writes=tuple(writes), in_place=pairs, kind=instruction.opcode)
            )
        return results

    def _pairs(
        self, instruction: Instruction, computation: Computation, operands: list[_Leaves], results: _Leaves
    ) -> tuple[tuple[int, int], ...]:
        """Results that may take an operand's place: updates, what loops carry, and element-wise operators."""
        wanted: list[tuple[int | None, int | None]] = []
        if instruction.opcode == "while" and operands:
            wanted = list(zip(operands[0], results, strict=False))
        elif instruction.opcode in ELEMENTWISE and len(results) == 1:
            wanted = [(leaf, results[0]) for leaves in operands for leaf in leaves[:1]]
        elif instruction.opcode not in IN_LINE:
            for pair in instruction_access(instruction, computation, self._access).in_place:
                if pair.operand_leaf < len(operands[pair.operand]) and pair.output_leaf < len(results):
                    wanted.append((operands[pair.operand][pair.operand_leaf], results[pair.output_leaf]))
        pairs: list[tuple[int, int]] = []
        taken: set[int] = set()
        for operand, result in wanted:
            if operand is None or result is None or operand == result or taken & {operand, result}:
                continue
            if self._tensors[operand].size == self._tensors[result].size:
                taken |= {operand, result}
                pairs.append((operand, result))
        return tuple(pairs)

    def _needed(self, instruction: Instruction) -> int:
        """Bytes that the computations of an instruction need beside its operands and results."""
        if instruction.opcode not in IN_LINE:
            return 0
        return max((self._inside(name, instruction.opcode == "while") for name in instruction.called), default=0)

    def _inside(self, name: str, is_loop: bool) -> int:
        """Peak of a computation in its own order, beside its operands, which are held outside, and its results."""
        key = name, is_loop
        if key not in self._scratch:
            self._scratch[key] = 0
            computation = self.module.computations[name]
            reader = _Reader(self.module, self._access, self._scratch)
            inner = reader.problem(computation, name, is_entry=False)
            copied = reader.copied(computation, inner) if is_loop else []
            held = {*inner.inputs} | ({*inner.outputs} - {*copied})
            _hold_updated(inner, held)
            sizes = [0 if number in held else tensor.size for number, tensor in enumerate(inner.tensors)]
            tensors = tuple(msgspec.structs.replace(tensor, size=sizes[at]) for at, tensor in enumerate(inner.tensors))
            ops = tuple(
                msgspec.structs.replace(op, in_place=tuple(pair for pair in op.in_place if sizes[pair[0]] == sizes[pair[1]]))
                for op in inner.ops
            )
            structure = build(msgspec.structs.replace(inner, tensors=tensors, ops=ops))
            at_end = sum(inner.tensors[number].size for number in copied)
            self._scratch[key] = max(at_end, structure.peak(stable_order(structure)))
        return self._scratch[key]

    def copied(self, body: Computation, inner: Problem) -> list[int]:
        """What the next iteration of a loop gets that cannot stand where this one's is: that is still read, or is another's."""
        written = {tensor: at for at, op in enumerate(inner.ops) for tensor in op.writes}
        read: dict[int, int] = {tensor: at for at, op in enumerate(inner.ops) for tensor in op.reads}
        parameters = [instruction for instruction in body.instructions if instruction.opcode == "parameter"]
        given = [leaf for parameter in parameters for leaf in self._leaves[parameter.name]]
        copied: dict[int, None] = {}
        for before, after in zip(given, self._leaves[body.root.name], strict=False):
            if before is None or after is None or before == after:
                continue
            made = written.get(after, len(inner.ops))
            last = read.get(before, -1)
            takes_place = last < made or (last == made and (before, after) in inner.ops[made].in_place)
            if after not in written or not takes_place:
                copied[after] = None
        return list(copied)

    def _add(self, name: str, size: int) -> int | None:
        if size == 0:
            return None
        self._tensors.append(Tensor(id=name, size=size))
        return len(self._tensors) - 1


def _hold_updated(inner: Problem, held: set[int]) -> None:
    """Add to what is held what a held result takes the place of."""
    read = {tensor: at for at, op in enumerate(inner.ops) for tensor in op.reads}
    for at, op in reversed(list(enumerate(inner.ops))):
        ended = {operand for operand, _ in op.in_place if read[operand] == at} - {*inner.outputs}
        held |= {operand for operand, result in op.in_place if result in held and operand in ended}
