"""HLO modules, scheduled or not, as graphs of operators and tensors: the entry computation's instructions.

A loop, call or conditional is one operator: what its computations need for themselves is a tensor that lives while it runs.
Parameters that the caller keeps are there to the end; donated ones may go after their last reader. Constants stand elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan.deadline import check_reading
from stowplan.errors import naming
from stowplan.frontends.hlo.access import Access, fused_access, instruction_access
from stowplan.frontends.hlo.check import check_module
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.opcodes import ELEMENTWISE
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
        return _Reader(module, fused_access(module), {}).problem(module.entry, name, is_entry=True)


class _Reader(LeafWalk[int | None]):
    """Walks one computation."""

    def __init__(self, module: HloModule, access: dict[str, Access], scratch: dict[tuple[str, bool], int]):
        super().__init__(module)
        self._access, self._scratch = access, scratch
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._leaves: dict[str, _Leaves] = {}
        self._readers: dict[int, int] = {}

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
        before = self._control(computation)
        results = self._results(computation.root) if is_entry else ()
        return Problem(
            results=results,
            name=name,
            tensors=tuple(self._tensors),
            ops=tuple(self._ops),
            inputs=tuple(inputs),
            outputs=tuple(kept),
            precedences=before,
        )

    def _results(self, root: Instruction) -> tuple[int, ...]:
        """What a program returns; of what takes no bytes of the device's memory tensors that no operator touches."""
        results: list[int] = []
        for (index, leaf), number in zip(root.shape.leaves, self._leaves[root.name], strict=True):
            results.append(len(self._tensors) if number is None else number)
            if number is None:
                self._tensors.append(Tensor(id=f"result {root.name}{index_text(index)}", size=leaf.device_bytes))
        return tuple(results)

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
