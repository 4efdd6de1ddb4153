"""The schedule of a module: the instructions of its entry as *steps*, with the computations of loops, calls and branches
inlined.

A *value* is one write of one array. Values are numbered in the order of their definition. A *leaf* is an array in the result of
an instruction, which may be a tuple. Instructions that only name data (tuples, bitcasts, results of loops) create no values;
their leaves refer to existing values.

Values that are never live at the same time may share storage. A value is live from its definition to its last read. Time is
counted in half steps, which are called *moments*: step ``t`` happens at the moment ``2 t``, and ``2 t + 1`` is the moment after
it. Inputs of the program are defined at ``-1``. A value may reuse the storage of another one in the step that reads the other
one last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import chain
from typing import NamedTuple

from stowplan.deadline import check_reading
from stowplan.frontends.hlo.access import InPlace, fused_access, instruction_access
from stowplan.frontends.hlo.flops import Work, computation_work, instruction_work
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.opcodes import STARTING
from stowplan.frontends.hlo.shape import index_text
from stowplan.frontends.hlo.trips import trip_count
from stowplan.frontends.hlo.walk import IN_LINE, LeafWalk, check_extent, custom_target, first_operand
from stowplan.hardware.program import ProgramLoop
from stowplan.log import warn_unmodelled

#: The moment at which inputs of the program are defined.
START = -1


class Values:
    """The values of a program in the order of their definition, and the storages that they share (a union-find structure)."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """The name of each value. This list and the next ones are indexed by the numbers of values."""
        self.sizes: list[int] = []
        """Bytes of each value; for a value that represents a storage, the bytes of the storage."""
        self.defined: list[int] = []
        """The moment at which each value is defined."""
        self.last_read: list[int] = []
        """The last moment at which each value is live."""
        self.frozen: list[bool] = []
        """Whether each value must not be overwritten. This holds for constants, and for parameters that the caller keeps."""
        self._parent: list[int] = []
        self._lives: list[list[tuple[int, int]]] | None = None
        """For each value that represents a storage, the sorted live ranges of all values there; None before the first call of
        :meth:`share`."""
        self._frozen_sets: set[int] = set()
        """Values that represent a storage with a frozen value."""

    def add(self, name: str, size: int, defined: int, *, frozen: bool = False) -> int:
        """Adds a value of ``size`` bytes with storage of its own, and returns its number. ``defined`` is the moment of its
        definition, and ``frozen`` says whether it must not be overwritten."""
        self.names.append(name)
        self.sizes.append(size)
        self.defined.append(defined)
        self.last_read.append(defined)
        self.frozen.append(frozen)
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def read(self, value: int, moment: int) -> None:
        """Records that a value is live at a moment. All reads must be recorded before the first :meth:`share`."""
        self.last_read[value] = max(self.last_read[value], moment)

    def storage(self, value: int) -> int:
        """The value that represents the storage of a value."""
        root = value
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[value] != root:
            self._parent[value], value = root, self._parent[value]
        return root

    def share(self, first: int, second: int, *, forced: bool = False) -> bool:
        """Unites the storages of two values, if the storages are compatible.

        Two storages are compatible if they have the same size, if no value of one is live at the same time as a value of the
        other, and if no value of either storage is frozen.

        Parameters
        ----------
        forced
            Whether to unite the storages even if they are not compatible.

        Returns
        -------
        bool
            Whether the storages are compatible, or were united before.
        """
        first, second = self.storage(first), self.storage(second)
        if first == second:
            return True
        if self._lives is None:
            self._lives = [[(start, end)] for start, end in zip(self.defined, self.last_read, strict=True)]
            self._frozen_sets = {value for value, frozen in enumerate(self.frozen) if frozen}
        if len(self._lives[first]) < len(self._lives[second]):
            first, second = second, first
        lives = self._lives[first]
        fits = first not in self._frozen_sets and second not in self._frozen_sets and self.sizes[first] == self.sizes[second]
        fits = fits and all(_is_free(lives, life) for life in self._lives[second])
        if not (fits or forced):
            return False
        for life in self._lives[second]:
            lives.insert(bisect_left(lives, life), life)
        self._lives[second] = []
        self._parent[second] = first
        self.sizes[first] = max(self.sizes[first], self.sizes[second])
        if second in self._frozen_sets:
            self._frozen_sets.add(first)
        return fits


def _is_free(lives: list[tuple[int, int]], life: tuple[int, int]) -> bool:
    """Whether the live range ``life`` overlaps none of the ranges ``lives``, which are sorted.

    Ranges that only touch do not overlap, but ranges with the same start do.
    """
    place = bisect_left(lives, life)
    if place < len(lives) and (lives[place][0] == life[0] or lives[place][0] < life[1]):
        return False
    return place == 0 or (lives[place - 1][0] != life[0] and lives[place - 1][1] <= life[0])


#: A program is refused if a step runs more often than ``MAX_WEIGHT``, or if one run of a step computes more operations or
#: elements than ``MAX_WORK``. The limits keep sums within 64 bits.
MAX_WEIGHT = 10**9
MAX_WORK = 1 << 53

#: The value of a leaf without storage: a token, an array without elements, or a flag of an asynchronous copy. If such a leaf
#: belongs to the start of an asynchronous operation, its value is a smaller number, which no other start has. By this number,
#: the end of the operation finds its start.
NOWHERE = -1


class Read(NamedTuple):
    """A read of a value by a step."""

    value: int
    """Number of the value."""
    bytes: int
    """Bytes that the step reads: fewer than the value has for a slice, and 0 for a value that it only overwrites in place."""


class Update(NamedTuple):
    """A step may write ``result`` into the storage of ``operand``; it then writes only ``write`` bytes."""

    operand: int
    """Number of the value that is overwritten."""
    result: int
    """Number of the value that is written."""
    write: int
    """Bytes that are written; less than the size of the result if the other bytes remain those of the operand."""


class ScheduledStep(NamedTuple):
    """One instruction that is a step of the program."""

    instruction: Instruction
    """The instruction."""
    name: str
    """Its name; that of an instruction that is inlined several times begins with the names of the loops and calls around it."""
    opcode: str
    """Its opcode; ``AllocateBuffer`` for a custom call of this target, and ``copy`` for the start of an asynchronous copy."""
    work: Work
    """The arithmetic of one run."""
    weight: int
    """How often the step runs: the product of the trip counts of the loops around it."""
    reads: list[Read]
    """The values that it reads."""
    writes: list[int]
    """Numbers of the values that it defines, or updates at the end of an asynchronous operation."""
    updates: list[Update]
    """The results that it may write in place."""
    begun: int | None = None
    """For a step that ends an asynchronous operation, the step that starts it; otherwise None."""


class _Scope(NamedTuple):
    """One computation during a walk."""

    computation: Computation
    """The computation."""
    leaves: dict[str, list[int]]
    """The values of the leaves of each instruction so far, by the name of the instruction."""
    path: str
    """Names of the loops and calls around the computation, each followed by a slash."""
    weight: int
    """How often the computation runs."""

    def operands(self, instruction: Instruction) -> list[list[int]]:
        """The values of the leaves of each operand."""
        return [self.leaves[operand] for operand in instruction.operands]


class Schedule(LeafWalk[int]):
    """The steps, loops and values of a module; the constructor computes all of them.

    Raises
    ------
    InputError
        An instruction does not fit its operands or computations, the program has too many instructions or is nested too deeply
        (:func:`~stowplan.frontends.hlo.walk.check_extent`), or a step exceeds :data:`MAX_WEIGHT` or :data:`MAX_WORK`.
    TimeLimitError
        The time limit for reading inputs is over.
    """

    def __init__(self, module: HloModule):
        super().__init__(module)
        check_extent(module)
        self.values = Values()
        self.value_of: dict[str, int] = {}
        """The value of each leaf of an instruction, by ``name`` or ``name{index}``."""
        self.steps: list[ScheduledStep] = []
        self.loops: list[ProgramLoop] = []
        self.carried: list[tuple[int, int]] = []
        """Pairs of values that a loop carries from one iteration to the next, so that they must share storage."""
        self.branch_results: list[tuple[int, int]] = []
        """Pairs of values that are the same result of a conditional."""
        self.donated: list[tuple[int, int]] = []
        """Pairs of a donated parameter's value and the value of the output that may use its storage."""
        self.notes: list[str] = []
        """Remarks for people about parts of the module that are approximated."""
        self._work = computation_work(module)
        self._access = fused_access(module)
        self._donated = {(alias.operand, alias.operand_index) for alias in module.input_output_alias}
        self._parameter_values: dict[tuple[int | None, tuple[int, ...]], int] = {}
        """The value of each leaf of an entry parameter, by the number of the parameter and the index of the leaf."""
        self._updated: dict[int, int] = {}
        """For each result that is written in place, the value that it overwrites."""
        self._starts: dict[int, tuple[int, list[int]]] = {}
        """For each leaf that an asynchronous start creates, the step of the start and the values that the start reads."""
        self._repeated = _repeated_names(module)
        self._trips: dict[tuple[str, str], int | None] = {}
        results = self._walk(module.entry, None, "", 1)
        self._read(results, 2 * len(self.steps))
        self.outputs = [value for value in results if value > NOWHERE]
        leaves = module.entry.root.shape.sizes
        output = {index: value for (index, _), value in zip(leaves, results, strict=True) if value > NOWHERE}
        for alias in module.input_output_alias:
            pair = self._parameter_values.get((alias.operand, alias.operand_index)), output.get(index_text(alias.output_index))
            if pair[0] is not None and pair[1] is not None and pair[0] != pair[1]:
                self.donated.append((pair[0], pair[1]))

    def _walk(self, computation: Computation, arguments: list[list[int]] | None, path: str, weight: int) -> list[int]:
        """Adds the steps of a computation, and returns the values of the leaves of its root.

        ``arguments`` are the values of the leaves of its parameters; None for the entry.
        """
        scope = _Scope(computation, {}, path, weight)
        check_reading()
        for instruction in computation.instructions:
            name = f"{path}{instruction.name}" if path and instruction.name in self._repeated else instruction.name
            if instruction.opcode == "parameter" and arguments is not None:
                values = arguments[int(instruction.argument)]
            else:
                values = self._instruction(instruction, name, scope)
            self.expect_leaves(instruction, values)
            scope.leaves[instruction.name] = values
            for (index, _), value in zip(instruction.shape.sizes, values, strict=True):
                if value > NOWHERE:
                    self.value_of[name + index] = value
        return scope.leaves[computation.root.name]

    def _instruction(self, instruction: Instruction, name: str, scope: _Scope) -> list[int]:
        """Adds the steps of an instruction, and returns the values of its leaves."""
        opcode = instruction.opcode
        if opcode in ("parameter", "constant"):
            return self._inputs(instruction, name)
        if opcode == "after-all":
            return [NOWHERE]
        named = self.named(instruction, scope.computation, scope.leaves)
        if named is not None:
            if opcode.endswith("-done"):
                self._end(instruction, name, scope, named)
            return named
        if opcode == "while":
            return self._loop(instruction, scope)
        if opcode == "call":
            return self._in_line(instruction, instruction.called[0], scope.operands(instruction), scope)
        if opcode == "conditional":
            return self._branches(instruction, scope)
        return self._step(instruction, name, scope)

    # Instructions that are no steps

    def _inputs(self, instruction: Instruction, name: str) -> list[int]:
        """Adds the values of a parameter or constant, and returns them."""
        number = instruction.parameter_number
        values = []
        for index, leaf in instruction.shape.leaves:
            value = NOWHERE
            if leaf.device_bytes:
                key = number, index
                value = self._parameter_values[key] = self.values.add(
                    name + index_text(index), leaf.bytes, START, frozen=key not in self._donated
                )
            values.append(value)
        return values

    # Computations in line

    def _in_line(
        self, instruction: Instruction, called: str, operands: list[list[int]], scope: _Scope, trips: int = 1
    ) -> list[int]:
        """Adds the steps of a computation that an instruction runs ``trips`` times, and returns its values."""
        computation = self.module.computations[called]
        if len(computation.parameters) != len(operands):
            raise instruction.error(f"found {len(operands)} operands, expected the {len(computation.parameters)} of %{called}")
        return self._walk(computation, operands, f"{scope.path}{instruction.name}/", scope.weight * trips)

    def _loop(self, instruction: Instruction, scope: _Scope) -> list[int]:
        """Adds the steps of a loop: those of its condition, followed by those of its body."""
        carried = scope.leaves[first_operand(instruction, scope.computation).name]
        key = scope.computation.name, instruction.name
        if key not in self._trips:
            self._trips[key] = trip_count(instruction, scope.computation, self.module)
        known_trips = self._trips[key]
        if known_trips is None:
            self.notes.append(f"trip count of {instruction.name} unknown, taken as 1")
            warn_unmodelled("its trip count cannot be told: each step in it counts once", f"while {instruction.name}")
        # A loop that never runs is modelled as one iteration, since its values have storage in the compiled program as well.
        trips = max(1, known_trips or 1)
        if scope.weight * trips > MAX_WEIGHT:
            raise instruction.error(f"found steps that run {scope.weight * trips} times, expected at most {MAX_WEIGHT}")
        condition, body = instruction.called
        start = len(self.steps)
        self._in_line(instruction, condition, [carried], scope, trips)
        results = self._in_line(instruction, body, [carried], scope, trips)
        end = len(self.steps)
        if len(results) != len(carried):
            raise instruction.error(f"found a body with {len(results)} results, expected the {len(carried)} of its operand")
        self._read(results, 2 * end - 1)
        self.carried += [
            (before, after)
            for before, after in zip(carried, results, strict=True)
            if before != after and min(before, after) > NOWHERE
        ]
        if end > start:
            self.loops.append(ProgramLoop(start, end, trips, instruction.name, known_trips is not None))
        return results

    def _branches(self, instruction: Instruction, scope: _Scope) -> list[int]:
        """Adds the steps of all branches of a conditional one after the other, because each of them might run."""
        if len(instruction.operands) != len(instruction.called) + 1:
            raise instruction.error(f"found {len(instruction.called)} branches, expected {len(instruction.operands) - 1}")
        chosen_by, *operands = scope.operands(instruction)
        self._read(chosen_by, 2 * len(self.steps) - 1)
        self.notes.append(f"branches of {instruction.name} stand one after the other, each counted once")
        results: list[int] | None = None
        for called, operand in zip(instruction.called, operands, strict=True):
            branch_values = self._in_line(instruction, called, [operand], scope)
            if results is not None:
                if len(results) != len(branch_values):
                    raise instruction.error("found branches with results of different shapes, expected the same")
                self.branch_results += [pair for pair in zip(results, branch_values, strict=True) if min(pair) > NOWHERE]
            results = branch_values
        return results or []

    # Steps

    def _step(self, instruction: Instruction, name: str, scope: _Scope) -> list[int]:
        """Adds the step of an instruction, and returns the values of its leaves.

        Raises InputError if one run computes more than :data:`MAX_WORK`, or if the instruction does not fit its operands.
        """
        moment = 2 * len(self.steps)
        access = instruction_access(instruction, scope.computation, self._access)
        work = instruction_work(instruction, scope.computation, self._work)
        if max(work) > MAX_WORK:
            raise instruction.error(f"found more operations than {MAX_WORK}, expected fewer")
        operands = scope.operands(instruction)
        reads = []
        for leaves, part in zip(operands, access.reads, strict=True):
            self._read(leaves, moment)
            for value in leaves:
                if value > NOWHERE:
                    size = self.values.sizes[value]
                    reads.append(Read(value, size if part is None else min(part, size)))
        results = self._results(instruction, operands, name, moment)
        updates = [self._update(pair, instruction, operands, results) for pair in access.in_place]
        opcode = instruction.opcode
        if opcode in STARTING:
            new_values = [
                value for value in results if value < NOWHERE or (value > NOWHERE and self.values.defined[value] == moment)
            ]
            self._starts |= dict.fromkeys(new_values, (len(self.steps), [*chain.from_iterable(operands)]))
        if custom_target(instruction) == "AllocateBuffer":
            opcode = "AllocateBuffer"
        elif opcode == "copy-start":
            opcode = "copy"
        self.steps.append(
            ScheduledStep(
                instruction,
                name,
                opcode,
                work,
                scope.weight,
                reads,
                writes=[value for value in results if value > NOWHERE and self.values.defined[value] == moment],
                updates=[update for update in updates if update is not None],
            )
        )
        return results

    def _end(self, instruction: Instruction, name: str, scope: _Scope, results: list[int]) -> None:
        """Adds the end of an asynchronous operation: a step that reads all values of the start, and updates the results.

        If the start is the step right before the end, no other step can run in between, and the end gets no step of its own.
        """
        started = scope.leaves[instruction.operands[0]]
        begun, operands = max((self._starts[leaf] for leaf in started if leaf in self._starts), default=(len(self.steps), []))
        read_values = sorted({value for value in (*started, *operands) if value > NOWHERE})
        is_step = begun < len(self.steps) - 1
        # If the operation works in place, its result overwrites an operand, so the end does not read that operand.
        replaced = {self._updated.get(value) for value in started}
        alive = [value for value in read_values if value not in replaced or self.values.last_read[value] > 2 * begun]
        self._read(alive, 2 * len(self.steps) - (not is_step))
        if read_values and is_step:
            result_values = [value for value in results if value > NOWHERE]
            reads, updates = [Read(value, 0) for value in read_values], [Update(value, value, 0) for value in result_values]
            named = instruction, name, instruction.opcode
            self.steps.append(ScheduledStep(*named, Work(0, 0), scope.weight, reads, result_values, updates, begun))

    def _results(self, instruction: Instruction, operands: list[list[int]], name: str, moment: int) -> list[int]:
        """Values of the leaves of a step's result. They are new, except that those of an asynchronous start include its
        operands."""
        nothing = NOWHERE - 1 - len(self.steps) if instruction.opcode in STARTING else NOWHERE
        passed = self.passed(instruction, operands, nothing)
        return [
            passed[number] if number in passed else self.values.add(name + index, size, moment) if size else nothing
            for number, (index, size) in enumerate(instruction.shape.sizes)
        ]

    def _update(self, pair: InPlace, instruction: Instruction, operands: list[list[int]], results: list[int]) -> Update | None:
        """Converts an update in place, whose numbers are those of leaves, to an update of values; None if a leaf has no
        storage. Raises InputError if the instruction does not have such a leaf."""
        operand = operands[pair.operand]
        if pair.output_leaf >= len(results) or pair.operand_leaf >= len(operand):
            raise instruction.error(
                "found a computation whose parameters or result do not fit, expected the instruction's shapes"
            )
        value, result = operand[pair.operand_leaf], results[pair.output_leaf]
        if min(value, result) <= NOWHERE:
            return None
        self._updated[result] = value
        size = self.values.sizes[result]
        return Update(value, result, size if pair.write is None else min(pair.write, size))

    # Helpers

    def _read(self, values: list[int], moment: int) -> None:
        """Records that values are live at a moment; leaves without storage are skipped."""
        for value in values:
            if value > NOWHERE:
                self.values.read(value, moment)


def _computations_in_line(computation: Computation) -> list[str]:
    """Names of the computations that the loops, calls and conditionals of a computation run; names may repeat."""
    return [name for instruction in computation.instructions if instruction.opcode in IN_LINE for name in instruction.called]


def _repeated_names(module: HloModule) -> set[str]:
    """Names of instructions that occur more than once when loops and calls are inlined."""
    names: Counter[str] = Counter()
    waiting = [module.entry]
    while waiting:
        computation = waiting.pop()
        names.update(instruction.name for instruction in computation.instructions)
        waiting += [module.computations[name] for name in _computations_in_line(computation)]
    return {name for name, count in names.items() if count > 1}
