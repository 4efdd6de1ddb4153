"""Reads XLA's decisions from its module: which values are in fast memory, during which steps, and which steps use them there.

The module is the original one after memory-space assignment: it has the same steps in the same order, with copies between them.
One walk over it, with loops inlined, tracks for every array its memory and the tensor of the original program. It follows
copies (``copy-start`` and ``copy-done``), prefetches in slices (one ``async-start`` for each slice, joined by a
``ConcatBitcast``), bitcasts and tuples. A *stay* is a period in which a tensor is in fast memory. *Boundary* ``t`` is the
moment before step ``t``.
"""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.frontends.hlo import ArrayShape, Computation, HloModule, Instruction
from stowplan.frontends.hlo.shape import index_text
from stowplan.frontends.hlo.walk import LeafWalk, check_extent
from stowplan.frontends.xla_plan.stays import Array, Eviction, Placement, Source, Stay
from stowplan.hardware.program import Program

#: Opcodes of steps that XLA may replace by a copy, after which their result is in fast memory.
_REPLACEABLE = frozenset({"copy", "copy-done", "slice", "dynamic-slice"})
#: Opcodes of instructions that must have an operand.
_WITH_OPERAND = frozenset({"copy-start", "copy-done", "async-done", "while"})

T = TypeVar("T")


class Trace(LeafWalk[Array]):
    """The stays of all tensors; the constructor finds all of them.

    Parameters
    ----------
    program
        The original program.
    module
        XLA's module after memory-space assignment.
    placements
        The place of each value in fast memory, by its name (:func:`~stowplan.frontends.xla_plan.stays.read_offsets`).
    fast_space
        Number of the memory space of fast memory in layouts.

    Raises
    ------
    InputError
        The module belongs to another program or is too large when loops and calls are inlined, an instruction does not fit its
        operands, or a value in fast memory has no offset.
    TimeLimitError
        The time limit for reading inputs is over.
    """

    def __init__(self, program: Program, module: HloModule, placements: dict[str, Placement], fast_space: int):
        super().__init__(module)
        self._fast_space = fast_space
        self.stays: list[Stay] = []
        self.mixed_reads = 0
        """Number of reads that get one tensor from both memories at once."""
        self.replaced: list[str] = []
        """Names of the steps of the program that XLA has replaced by copies."""
        self.foreign: list[str] = []
        """Names of the instructions that XLA has added and that are neither steps nor copies."""
        self.homeless: list[str] = []
        """Names of the values in fast memory that belong to no tensor of the program."""
        self._program = program
        self._placements = placements
        self._now = 0
        """The current boundary."""
        self._sequence = 0
        """Number of copies so far."""
        self._evictions: dict[str, tuple[Stay, Eviction]] = {}
        """The copies to slow memory that have not ended, with their stays, by the name of the instruction that starts them."""
        self._first_use = [0]
        """For each step, the number of its first use; the last entry is the number of all uses."""
        for step in program.steps:
            self._first_use.append(self._first_use[-1] + len(step.uses))
        check_extent(module)
        self._walk(module.entry, None, "")
        self._skip_to(len(program.steps), module.entry.root)

    def _walk(self, computation: Computation, arguments: list[list[Array]] | None, path: str) -> list[Array]:
        """Walks through a computation, and returns the arrays of its root.

        ``arguments`` are the arrays of its parameters, None for the entry. ``path`` names the loops and calls around it.
        """
        if arguments is not None and len(arguments) != len(computation.parameters):
            raise InputError(
                f"found {len(arguments)} operands for {len(computation.parameters)} parameters of %{computation.name}",
                place=f"line {computation.line}",
            )
        check_reading()
        arrays: dict[str, list[Array]] = {}
        for instruction in computation.instructions:
            if instruction.opcode == "parameter" and arguments is not None:
                leaves = arguments[int(instruction.argument)]
            else:
                leaves = self._instruction(instruction, arrays, computation, path)
            self.expect_leaves(instruction, leaves)
            arrays[instruction.name] = leaves
        return arrays[computation.root.name]

    def _instruction(
        self, instruction: Instruction, arrays: dict[str, list[Array]], computation: Computation, path: str
    ) -> list[Array]:
        """The arrays of an instruction; ``arrays`` has those of earlier instructions of the computation."""
        opcode = instruction.opcode
        operands = [arrays[name] for name in instruction.operands]
        step = self._find(self._program.step_index, path, instruction.name)
        if step is not None:
            named = self.named(instruction, computation, arrays)
            return self._step(step, instruction, list(chain.from_iterable(operands)), path, named)
        if opcode in ("parameter", "constant"):
            return self._inputs(instruction, path)
        if opcode in _WITH_OPERAND and not (operands and operands[0]):
            raise instruction.error("found no operand, expected one")
        if opcode == "after-all":
            return [Array(None)]
        if opcode == "copy-start":
            return self._copy_start(instruction, operands[0][0])
        if opcode == "async-start":
            return self._slice_start(instruction, operands)
        if opcode == "custom-call" and "ConcatBitcast" in instruction.attributes_text:
            return [self._joined(instruction, list(chain.from_iterable(operands)))]
        named = self.named(instruction, computation, arrays)
        if named is not None:
            if opcode in ("copy-done", "async-done"):
                self._done(instruction.operands[0], named)
            return named
        if opcode == "while":
            return self._loop(instruction, operands[0], path)
        if opcode == "call":
            return self._walk(self.module.computations[instruction.called[0]], operands, f"{path}{instruction.name}/")
        if opcode == "conditional":
            return self._branches(instruction, operands[1:], path)
        return self._foreign(instruction)

    # Steps of the program

    def _step(
        self, step: int, instruction: Instruction, operands: list[Array], path: str, named: list[Array] | None
    ) -> list[Array]:
        """The arrays of a step's results.

        If the step ends an asynchronous operation, they are ``named``, which the start of the operation has created.
        """
        self._skip_to(step, instruction)
        self._now = step + 1
        uses = self._program.steps[step].uses
        number = {(use.tensor, use.is_output): self._first_use[step] + place for place, use in enumerate(uses)}
        served = self._reads(step, number, operands)
        if named is not None:
            for array in named:
                if array.stay is not None and array.tensor is not None and (array.tensor, True) in number:
                    array.stay.uses.add(number[array.tensor, True])
            return named
        passed = self.passed(instruction, [operands], Array(None))
        results = []
        for leaf, (index, shape) in enumerate(instruction.shape.leaves):
            if leaf in passed:
                results.append(passed[leaf])
                continue
            name = instruction.name + index_text(index)
            tensor = self._find(self._program.value_tensor, path, name)
            if tensor is not None and shape.bytes > self._program.tensors[tensor].size:
                size = self._program.tensors[tensor].size
                raise instruction.error(f"found {shape.bytes} bytes, expected {size} as in {self._program.name}")
            if shape.memory_space != self._fast_space or not shape.bytes:
                results.append(Array(tensor))
                continue
            write = None if tensor is None else number.get((tensor, True))
            if tensor is None or write is None:
                self.homeless.append(name)
                results.append(Array(tensor))
                continue
            placement = self._placement(name, instruction)
            stay = served.get(tensor)
            if stay is None or stay.offset != placement.offset:
                if stay is not None:
                    stay.fault = "an update in place moves it"
                stay = self._stay(tensor, shape, placement, Source.DEFINED, [step], step)
            stay.uses.add(write)
            stay.end = max(stay.end, step + 1)
            results.append(Array(tensor, stay))
        return results

    def _reads(self, step: int, number: dict[tuple[int, bool], int], operands: list[Array]) -> dict[int, Stay]:
        """Records the reads of a step from fast memory; returns the stay that serves the read of each tensor.

        ``number`` has the numbers of the uses of the step, by tensor and whether it is written.
        """
        stays_by_tensor: dict[int, list[Stay | None]] = {}
        unmatched: list[Stay] = []
        for array in operands:
            stay = None if array.stay is None else array.stay.whole()
            tensor = array.tensor if stay is None else stay.tensor
            fits = stay is None or tensor is None or stay.size == self._program.tensors[tensor].size
            if tensor is not None and (tensor, False) in number and fits:
                stays_by_tensor.setdefault(tensor, []).append(stay)
            elif stay is not None and stay not in unmatched:
                unmatched.append(stay)
        for stay in unmatched:
            self._match_replaced_step(stay, step, number, stays_by_tensor)
        served: dict[int, Stay] = {}
        for tensor, stays in stays_by_tensor.items():
            fast = [stay for stay in stays if stay is not None]
            for stay in fast:
                stay.end = max(stay.end, step + 1)
            if len(fast) == len(stays):
                served[tensor] = fast[-1]
                fast[-1].uses.add(number[tensor, False])
            elif fast:
                self.mixed_reads += 1
        return served

    def _match_replaced_step(
        self, stay: Stay, step: int, number: dict[tuple[int, bool], int], stays_by_tensor: dict[int, list[Stay | None]]
    ) -> None:
        """Assigns a stay to another tensor, if XLA has replaced the step that writes this tensor by a copy.

        In XLA's module, ``step`` reads the stay. In the program, it does not read the tensor of the stay, but another tensor
        of the same size. If XLA has replaced the last step that writes this other tensor, the stay becomes a stay of it, which
        begins with the replaced step.
        """
        for tensor, is_output in number:
            if is_output or tensor in stays_by_tensor or self._program.tensors[tensor].size != stay.size:
                continue
            for writer in range(step - 1, -1, -1):
                for place, use in enumerate(self._program.steps[writer].uses):
                    if use.tensor == tensor and use.is_output:
                        if self._program.steps[writer].name in self.replaced:
                            stay.stands_for = max(stay.starts), self._first_use[writer] + place
                            stay.tensor, stay.source, stay.starts = tensor, Source.DEFINED, [writer]
                            stay.uses.add(self._first_use[writer] + place)
                            stays_by_tensor[tensor] = [stay]
                        return

    def _skip_to(self, step: int, instruction: Instruction) -> None:
        """Advances to a step, and records the steps before it that are missing as replaced by copies.

        Raises
        ------
        InputError
            The step comes before an earlier one, or a missing step cannot be replaced: the module belongs to another program.
        """
        if step < self._now:
            raise instruction.error(
                f"found after %{self._program.steps[self._now - 1].name}, expected before it, as in {self._program.name}"
            )
        for skipped in self._program.steps[self._now : step]:
            if skipped.opcode not in _REPLACEABLE:
                raise instruction.error(
                    f"found before any %{skipped.name} ({skipped.opcode}), expected every step of {self._program.name} in order"
                )
            self.replaced.append(skipped.name)
        self._now = max(self._now, step)

    # Copies

    def _copy_start(self, instruction: Instruction, source: Array) -> list[Array]:
        """Starts a copy to slow or to fast memory; returns the arrays of its tuple."""
        (_, target), *_ = instruction.shape.leaves
        self._sequence += 1
        stay = None if source.stay is None else source.stay.whole()
        if target.memory_space != self._fast_space:
            if stay is not None:
                eviction = Eviction(self._now, self._now, self._sequence)
                stay.evictions.append(eviction)
                self._evictions[instruction.name] = stay, eviction
            copied = Array(source.tensor)
        else:
            preloaded = "cross_program_prefetch_index" in instruction.attributes_text
            origin = Source.PRELOADED if preloaded else Source.COPIED
            placement = self._placement(instruction.name + "{0}", instruction)
            new = self._stay(source.tensor, target, placement, origin, [0 if preloaded else self._now], self._now)
            if stay is not None:
                new.fault = "copied from fast to fast memory"
            copied = Array(source.tensor, new)
        return [copied, source, Array(None)]

    def _done(self, started: str, copied: list[Array]) -> None:
        """Ends the copy that the instruction ``started`` has begun, whose arrays are ``copied``."""
        for array in copied:
            if array.stay is not None:
                array.stay.arrived = self._now
                array.stay.end = max(array.stay.end, self._now)
        if started in self._evictions:
            stay, eviction = self._evictions.pop(started)
            stay = stay.whole()
            eviction.end = self._now
            stay.end = max(stay.end, self._now)

    def _slice_start(self, instruction: Instruction, operands: list[list[Array]]) -> list[Array]:
        """Starts one slice of a prefetch; its result is the root of the computation that the instruction calls."""
        sources = list(chain.from_iterable(operands))
        self._sequence += 1
        results = list(sources)
        for index, shape in instruction.shape.leaves[len(sources) :]:
            if shape.memory_space != self._fast_space or not instruction.called:
                results.append(Array(None))
                continue
            # XLA's short form ``slice-start`` does not name the instruction in its computation.
            root = self.module.computations[instruction.called[0]].root.name
            name = root if root in self._placements else instruction.name + index_text(index)
            preloaded = "cross_program_prefetch_index" in instruction.attributes_text
            origin = Source.PRELOADED if preloaded else Source.COPIED
            stay = self._stay(
                sources[0].tensor if sources else None,
                shape,
                self._placement(name, instruction),
                origin,
                [0 if preloaded else self._now],
                self._now,
            )
            results.append(Array(stay.tensor, stay))
        return results

    def _joined(self, instruction: Instruction, slices: list[Array]) -> Array:
        """The array that a ``ConcatBitcast`` joins from slices in fast memory; the slices become parts of one stay."""
        shape = instruction.shape
        parts = [array.stay.whole() for array in slices if array.stay is not None]
        if not isinstance(shape, ArrayShape) or len(parts) != len(slices) or not parts:
            raise instruction.error("found a ConcatBitcast of something else, expected slices in fast memory")
        first = min(parts, key=lambda part: part.sequence)
        stay = self._stay(
            first.tensor,
            shape,
            self._placement(instruction.name, instruction),
            first.source,
            sorted(start for part in parts for start in part.starts),
            max(part.arrived for part in parts),
        )
        stay.sequence = first.sequence
        stay.fault = next((part.fault for part in parts if part.fault), None)
        stay.parts = tuple(parts)
        for part in parts:
            part.merged = stay
        return Array(stay.tensor, stay)

    # Everything else

    def _inputs(self, instruction: Instruction, path: str) -> list[Array]:
        """The arrays of a parameter or constant, which are in slow memory."""
        arrays = []
        for index, shape in instruction.shape.leaves:
            name = instruction.name + index_text(index)
            if shape.memory_space == self._fast_space:
                self.homeless.append(name)
            arrays.append(Array(self._find(self._program.value_tensor, path, name)))
        return arrays

    def _loop(self, instruction: Instruction, carried: list[Array], path: str) -> list[Array]:
        """Walks through a loop, and merges the stays of each value that it carries from one iteration to the next."""
        condition, body = (self.module.computations[name] for name in instruction.called)
        inner = f"{path}{instruction.name}/"
        self._walk(condition, [carried], inner)
        results = self._walk(body, [carried], inner)
        if len(results) != len(carried):
            raise instruction.error(f"found a body with {len(results)} results, expected the {len(carried)} of its operand")
        for before, after in zip(carried, results, strict=True):
            if before.stay is not None and after.stay is not None:
                before.stay.whole().absorb(after.stay.whole())
            else:
                for single in (before.stay, after.stay):
                    if single is not None:
                        single.whole().fault = "a loop carries it between memories"
        return results

    def _branches(self, instruction: Instruction, operands: list[list[Array]], path: str) -> list[Array]:
        """Walks through all branches one after the other; the results are those of the last branch, as in the program."""
        if len(operands) != len(instruction.called):
            raise instruction.error(f"found {len(operands)} operands, expected one for each branch")
        results: list[Array] = []
        for called, operand in zip(instruction.called, operands, strict=True):
            results = self._walk(self.module.computations[called], [operand], f"{path}{instruction.name}/")
        return results

    def _foreign(self, instruction: Instruction) -> list[Array]:
        """Records an instruction that is neither a step nor a copy; its arrays belong to no tensor."""
        self.foreign.append(instruction.name)
        for index, shape in instruction.shape.leaves:
            if shape.memory_space == self._fast_space:
                self.homeless.append(instruction.name + index_text(index))
        return [Array(None) for _ in instruction.shape.leaves]

    def _stay(
        self,
        tensor: int | None,
        shape: ArrayShape,
        placement: Placement,
        source: Source,
        starts: list[int],
        arrived: int,
    ) -> Stay:
        """Adds a stay; it ends where its copy is complete until later uses extend it."""
        stay = Stay(tensor, shape.bytes, placement.offset, source, starts, self._sequence, arrived, arrived)
        self.stays.append(stay)
        return stay

    def _placement(self, name: str, instruction: Instruction) -> Placement:
        """The placement of a value in fast memory; raises InputError if the file of offsets has none."""
        placement = self._placements.get(name)
        if placement is None:
            raise instruction.error(f"found no offset of value {name}, expected one in the offsets file")
        return placement

    @staticmethod
    def _find(names: dict[str, T], path: str, name: str) -> T | None:
        """Looks an instruction up by its name, or by its path, which the program uses if the name is not unique."""
        by_path = names.get(path + name) if path else None
        return names.get(name) if by_path is None else by_path
