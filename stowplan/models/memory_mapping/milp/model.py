"""Columns and rows of the linear relaxation of memory mapping, in exact integers.

The relaxation represents logical time only by accesses, which are the steps that use a tensor, and the gaps between them
(:mod:`~stowplan.models.memory_mapping.accesses`). Its main decisions for each tensor are:

* ``landed`` at access ``j``: whether the tensor is in fast memory, with its content, at this access. It is the sum of the
  columns for the ways in which the tensor can come there. It is kept since access ``j - 1``, is copied in within the gap before
  ``j``, begins with a write that needs no old content, or is preloaded. It can also be copied in *in flight*, that is, by a
  copy that starts before access ``j - 1``, which then reads slow memory.
* ``out[m, j]``: whether the content that access ``m`` wrote to fast memory is copied out in time for access ``j``, or for the
  end of the program.

Every valid plan corresponds to values of the columns that satisfy all rows (lemma B1 of
``docs/reference/memory-mapping-models.md``). The smallest cost over the rows is therefore a lower bound on the objective of
every plan. There are rows for:

* capacity: the occupied units at each step, as a chain of differences between steps, which keeps the matrix sparse;
* slow memory: slow reads and copies-in find valid content there;
* time: the latency of each step and, if stalls (waits for copies) are allowed, a wait at each boundary;
* copy channels: rows over windows of time, added on demand (:mod:`~stowplan.models.memory_mapping.milp.tightening`).

The relaxation leaves out offsets and the order of copies. A tensor that is copied in occupies memory only shortly before its
first use: if stalls are forbidden, for as long as the copy takes at least. Tables of latencies are relaxed to convex hulls.

*Boundary* ``t`` is the moment before step ``t``, and a use is *fast* if it is served from fast memory. The *least latency* of a
step is its smallest latency over all choices of fast uses. Where the documentation of a list begins with a word in brackets,
the list has an entry for each of these things. Nothing here raises an error for a valid problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences
from stowplan.models.memory_mapping.latency import Savings
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.mip.matrix import Program

#: Number of boundaries from one column of elapsed time to the next. These columns keep rows over long windows short.
BLOCK = 32

#: A sum of columns, each with coefficient one.
Terms = tuple[int, ...]


@dataclass(slots=True)
class CopyJob:
    """A copy that must run between two boundaries if the value of ``column`` minus that of ``minus`` is one."""

    column: int
    """Column that says whether the copy is complete by the deadline."""
    minus: int | None
    """Column of the same copy with an earlier deadline, which is counted separately; None if there is none."""
    release: int
    """Boundary at which the copy may start."""
    deadline: int
    """Boundary at which the copy must be complete."""
    duration_ps: int
    """Duration on an idle channel."""


@dataclass(slots=True)
class AccessColumns:
    """Columns of one access of one tensor. A column that is None can only be 0."""

    landed: Terms = ()
    """Columns whose sum says whether the tensor is resident with its content at the access."""
    fast: Terms = ()
    """Columns whose sum says whether the access is served from fast memory."""
    keep: int | None = None
    """Whether the tensor stays resident with its content through the gap before the access."""
    copy_in: int | None = None
    """Whether the tensor is copied in within that gap."""
    in_flight: int | None = None
    """Whether the tensor is copied in by a copy that starts before the previous access."""
    begun: int | None = None
    """Whether a residency begins with this access, which writes without reading."""
    preload: int | None = None
    """Whether the tensor is preloaded; only for the first access."""


class RelaxationModel(Program):
    """All columns and the initial rows of the relaxation of one problem, in whole numbers.

    Attributes
    ----------
    lower, upper, cost : list of int, one for each column
        Bounds and objective coefficients. Columns are in ps, in units of memory (the alignment), or 0/1.
    is_integer : list of bool
        Whether the column is a 0/1 decision of a plan.
    offset_ps
        Constant part of the objective.
    jobs
        Copies and their windows, for the rows of the copy channels.
    """

    def __init__(self, problem: Problem):
        super().__init__()
        self.problem = problem
        self.sequences = access_sequences(problem)
        self.offset_ps = 0
        self.jobs: list[CopyJob] = []
        self.access: list[list[AccessColumns]] = []
        """[tensors][accesses] the columns of each access."""
        self.fast: list[Terms] = [()] * problem.use_count
        """For each use, columns whose sum is 1 if the use is fast."""
        self.out: list[dict[tuple[int, int], int]] = []
        """For each tensor, the column of a copy-out by (access that wrote the content, gap at whose end it is complete)."""
        self.floor_until = problem.floor_until
        self.units = -(-problem.capacity // problem.alignment)
        """Size of fast memory in units of the alignment."""
        self.events: list[tuple[int, int, int]] = []
        """Entries (step, column, units): if the column is 1, the occupied memory changes by this number of units at the
        step."""
        self._preloads: list[int] = []
        self.levels: dict[int, int] = {}
        """For each step at which the occupied memory can change, the column of the occupied units from that step on."""
        self.latency_columns: list[range] = []
        """[steps] the columns that were added for the latency of the step."""
        self.latency_rows: list[range] = []
        """[steps] the rows that were added for the latency of the step."""
        self.memory_rows: dict[int, int] = {}
        """For each row that limits memory during one step, that step; empty if there are ``levels``."""
        self.savings = Savings(problem)
        self.first_column: list[int] = []
        """[tensors] first column of the tensor."""
        for sequence in self.sequences:
            self.first_column.append(len(self.cost))
            self._columns_of(sequence).build()
        self.preload_row: int | None = None
        if len(self._preloads) > problem.max_preloads:
            self.preload_row = len(self.rows.lower)
            self.rows.add([(column, 1) for column in self._preloads], upper=problem.max_preloads)
        self._add_capacity()
        self._add_time()

    def _columns_of(self, sequence: TensorAccesses) -> TensorColumns:
        """The builder of the columns and rows of one tensor."""
        return TensorColumns(self, sequence)

    def occupy(self, columns: Terms, size: int, start: int, end: int) -> None:
        """Record that each of the columns, if 1, occupies ``size`` bytes during the steps ``[start, end)``."""
        if start >= end:
            return
        units = -(-size // self.problem.alignment)
        for column in columns:
            self.events.append((start, column, units))
            self.events.append((end, column, -units))

    def offer_preload(self, column: int) -> None:
        """Count a column in the limit on preloads."""
        self._preloads.append(column)

    def _add_capacity(self) -> None:
        """Add a column for the occupied units at each step at which they can change, and the rows that define it."""
        by_step: dict[int, dict[int, int]] = {}
        for step, column, units in self.events:
            change = by_step.setdefault(step, {})
            change[column] = change.get(column, 0) + units
        level = None
        for step in sorted(by_step):
            terms = [(column, units) for column, units in by_step[step].items() if units]
            if not terms or step >= self.problem.horizon:
                continue
            previous, level = level, self.column(self.units, integer=False)
            self.levels[step] = level
            terms.append((level, -1))
            if previous is not None:
                terms.append((previous, 1))
            self.rows.add(terms, 0, 0)

    def _add_time(self) -> None:
        """Add the latencies of all steps to the objective and, if stalls are allowed, the waits and the elapsed time."""
        problem = self.problem
        self.step_terms: list[tuple[int, list[tuple[int, int]]]] = []
        """[steps] ``weight * latency`` in ps, as a constant and terms."""
        for step, latency, fast in zip(problem.steps, self.savings.latencies, problem.by_step(self.fast), strict=True):
            first, first_row = len(self.cost), len(self.rows.lower)
            self.step_terms.append(latency.add_to(self, fast, step.weight))
            self.latency_columns.append(range(first, len(self.cost)))
            self.latency_rows.append(range(first_row, len(self.rows.lower)))
        for constant, terms in self.step_terms:
            self.offset_ps += constant
            for column, value in terms:
                self.cost[column] += value
        self.stall: list[int] = []
        """Column of the wait at each boundary, in ps, shape ``[T + 1]``; empty if stalls are forbidden."""
        self.clock: list[int] = []
        """Column of the time at which every ``BLOCK``-th boundary is reached, in ps; empty if stalls are forbidden."""
        if problem.stalls == "allowed":
            self._add_stalls()

    def _add_stalls(self) -> None:
        """Add a column for the stall at every boundary, and columns for the times at every ``BLOCK``-th boundary."""
        problem = self.problem
        # Plans that are slower than the one with all tensors in slow memory can be ignored.
        most = problem.all_slow_ps - self.floor_until[-1]
        self.stall = [self.column(most, cost=1, integer=False) for _ in range(problem.horizon + 1)]
        for start in range(0, problem.horizon + 1, BLOCK):
            floor = self.floor_until[start]
            self.clock.append(self.column(floor + most, lower=floor, integer=False))
            if start:
                constant, terms = self.between(start - BLOCK, start)
                self.rows.add([(self.clock[-1], 1), (self.clock[-2], -1), *((c, -v) for c, v in terms)], constant, constant)

    @property
    def least_ps(self) -> int:
        """Lower bound in ps on the objective before anything is solved. Without columns, all tensors are in slow memory, and
        the bound is the optimum."""
        return self.floor_until[-1] if self.cost else self.offset_ps

    def between(self, start: int, end: int) -> tuple[int, list[tuple[int, int]]]:
        """The time from reaching boundary ``start`` to reaching boundary ``end``, with waits, as a constant and terms in ps."""
        constant, terms = 0, [(column, 1) for column in self.stall[start:end]]
        for step in range(start, end):
            constant += self.step_terms[step][0]
            terms += self.step_terms[step][1]
        return constant, terms

    def elapsed(self, start: int, end: int) -> tuple[int, list[tuple[int, int]]]:
        """The time of :meth:`between` plus the wait at ``end``, with few terms, since it uses the columns of elapsed time."""
        first, last = -(-start // BLOCK), end // BLOCK
        if first >= last:
            constant, terms = self.between(start, end)
        else:
            head, head_terms = self.between(start, first * BLOCK)
            tail, tail_terms = self.between(last * BLOCK, end)
            constant = head + tail
            terms = [*head_terms, *tail_terms, (self.clock[last], 1), (self.clock[first], -1)]
        return constant, [*terms, (self.stall[end], 1)]


class TensorColumns:
    """Builds the columns and rows of one tensor.

    A *uniform alias group* is a tensor of which all uses must be fast or all slow (``alias_rule="uniform"``).

    Attributes
    ----------
    columns : list of AccessColumns
        The columns of each access.
    out : dict
        The columns of copies-out, as in :attr:`RelaxationModel.out`.
    uniform : int
        For a uniform alias group, the column that says whether all its uses are fast; otherwise -1.
    """

    def __init__(self, model: RelaxationModel, sequence: TensorAccesses):
        self.model = model
        self.sequence = sequence
        tensor = model.problem.tensors[sequence.tensor]
        self.copy_in_ps = tensor.copy_in_ps
        self.copy_out_ps = tensor.copy_out_ps
        self.forbidden = model.problem.stalls == "forbidden"
        self.sliced = model.problem.prefetches == "sliced"
        self.columns = [AccessColumns() for _ in sequence.accesses]
        self.out: dict[tuple[int, int], int] = {}
        self.uniform = -1

    def build(self) -> None:
        """Add all columns and rows of the tensor to the model."""
        model, sequence = self.model, self.sequence
        model.access.append(self.columns)
        model.out.append(self.out)
        if not model.savings.is_candidate(sequence):
            return
        if sequence.uniform:
            self.uniform = model.column(1)
        for j in range(len(sequence)):
            self._land(j)
            self._serve(j)
        for j, access in enumerate(sequence.accesses):
            for use in access.uses:
                model.fast[use] = self.columns[j].fast
            self._occupy(j)
        self._slow_memory()

    def _land(self, j: int) -> None:
        """Add the columns for the ways in which the tensor can be resident at access ``j``."""
        model, sequence, here = self.model, self.sequence, self.columns[j]
        before = self.columns[j - 1].landed if j else ()
        if sequence.is_glued(j):
            here.landed = before
            return
        if sequence.is_dead(j):
            here.begun = self.uniform if sequence.uniform else model.column(1)
            here.landed = (here.begun,)
            return
        parts = []
        if j and before:
            here.keep = model.column(1)
            model.rows.add([(here.keep, 1), *((column, -1) for column in before)], upper=0)
            parts.append(here.keep)
        if j == 0 and sequence.is_input and model.problem.max_preloads:
            here.preload = model.column(1)
            model.offer_preload(here.preload)
            parts.append(here.preload)
        window = self._feasible(sequence.copy_in_window(j), self.copy_in_ps)
        if window:
            here.copy_in = self._copied_in(j, window)
            parts.append(here.copy_in)
        window = self._feasible(sequence.copy_in_window(j, in_flight=True), self.copy_in_ps)
        if window:
            here.in_flight = model.column(1)
            parts.append(here.in_flight)
            model.jobs.append(CopyJob(here.in_flight, None, *window, self.copy_in_ps))
            if before:
                model.rows.add([(here.in_flight, 1), *((column, 1) for column in before)], upper=1)
        if len(parts) > 1:
            model.rows.add([(column, 1) for column in parts], upper=1)
        here.landed = tuple(parts)
        if self.uniform >= 0:
            model.rows.add([(self.uniform, -1), *((column, 1) for column in parts)], 0, 0)

    def _serve(self, j: int) -> None:
        """Set the columns that say whether access ``j`` is fast.

        A landed access is fast, unless it is a read that might make its step slower by that; such a read has its own column.
        """
        here, access = self.columns[j], self.sequence.accesses[j]
        here.fast = here.landed
        model = self.model
        is_free = bool(here.landed) and access.write is None and self.uniform < 0 and not self.sequence.is_tied(j)
        if is_free and access.read is not None and not model.savings.never_loses(access.read):
            column = model.column(1)
            here.fast = (column,)
            model.rows.add([(column, 1), *((part, -1) for part in here.landed)], upper=0)

    def _occupy(self, j: int) -> None:
        """Record the memory that the tensor occupies at access ``j`` and in the gap before it."""
        model, sequence, here = self.model, self.sequence, self.columns[j]
        step = sequence.accesses[j].step
        model.occupy(here.landed, sequence.size, step, step + 1)
        first, last = sequence.gap(j)
        # In a segment, a preload may represent a copy that has brought only some slices before the segment begins (B7).
        preload = None if self.sliced else here.preload
        through = self.columns[j - 1].landed if sequence.is_glued(j) else _terms(here.keep, preload)
        model.occupy(through, sequence.size, first, last)
        if here.in_flight is not None and not self.sliced:
            model.occupy((here.in_flight,), sequence.size, sequence.accesses[j - 1].step, first)
        if here.copy_in is not None or here.in_flight is not None:
            self._occupy_copied(j, first, last)

    def _copied_in(self, j: int, window: tuple[int, int]) -> int:
        """Add and return the column that says whether the tensor is copied in within gap ``j``."""
        column = self.model.column(1)
        self.model.jobs.append(CopyJob(column, None, *window, self.copy_in_ps))
        return column

    def _occupy_copied(self, j: int, first: int, last: int) -> None:
        """Record the memory that a tensor occupies in gap ``j``, from the latest start of a copy-in for access ``j`` on."""
        here, sequence = self.columns[j], self.sequence
        # A copy starts no later than its duration allows, but its last slice may start later.
        end = int(sequence.copy.prev[last])
        start = self._latest_start(end, self.copy_in_ps) if self.forbidden and not self.sliced else end
        self.model.occupy(_terms(here.copy_in, here.in_flight), sequence.size, max(first, start), last)

    def _slow_memory(self) -> None:
        """Require that slow reads, copies-in and the end of the program find valid content in slow memory."""
        sequence = self.sequence
        count = len(sequence)
        earlier: dict[int, int] = {}
        for j in range(count + 1):
            m = sequence.last_write[j]
            is_read = j < count and sequence.accesses[j].read is not None
            is_needed = is_read or (j == count and sequence.is_output)
            # If the last write was not fast, slow memory has valid content: that of this write or of a program input.
            if m < 0 or not is_needed or not self.columns[m].landed:
                continue
            column = self._copy_out(m, j, earlier.get(m))
            if column is not None:
                earlier[m] = column
            self._need(m, j, column)

    def _need(self, m: int, j: int, out: int | None) -> None:
        """Require the copy-out of column ``out`` if access ``m`` is a fast write and access ``j``, or the end of the program,
        needs its content in slow memory. Without a column, no such copy-out is possible."""
        rows, written = self.model.rows, self.columns[m].fast
        minus_out = [] if out is None else [(out, -1)]
        was_fast = [(column, 1) for column in written]
        if j == len(self.sequence):
            rows.add(was_fast + minus_out, upper=0)
            return
        here = self.columns[j]
        if here.fast != written:
            rows.add(was_fast + minus_out + [(column, -1) for column in here.fast], upper=0)
        copied = _terms(here.copy_in, here.in_flight)
        if copied:
            rows.add(was_fast + minus_out + [(column, 1) for column in copied], upper=1)

    def _copy_out(self, m: int, j: int, earlier: int | None) -> int | None:
        """Add the column that says whether the content that access ``m`` wrote is copied out by access ``j``.

        ``earlier`` is the column of the same copy with an earlier deadline. Returns None if no window is long enough.
        """
        model, sequence = self.model, self.sequence
        window = self._feasible(sequence.copy_out_window(j), self.copy_out_ps)
        if window is None:
            return None
        column = self.out[m, j] = model.column(1)
        model.jobs.append(CopyJob(column, earlier, *window, self.copy_out_ps))
        if earlier is not None:
            model.rows.add([(earlier, 1), (column, -1)], upper=0)
        return column

    def _feasible(self, window: tuple[int, int] | None, duration_ps: int) -> tuple[int, int] | None:
        """Returns the window, a first and a last boundary, if a copy of this duration can run in it; otherwise None."""
        if window is None or not self.forbidden:
            return window
        start, end = window
        until = self.model.floor_until
        return window if start < end and until[end] - until[start] >= duration_ps else None

    def _latest_start(self, end: int, duration_ps: int) -> int:
        """The last boundary at which a copy can start so that it is complete by ``end``, if stalls are forbidden."""
        until = self.model.floor_until
        start = end - 1
        while until[end] - until[start] < duration_ps:
            start -= 1
        return int(self.sequence.copy.prev[start])


def _terms(*columns: int | None) -> Terms:
    """The columns that exist."""
    return tuple(column for column in columns if column is not None)
