"""Constraints and objective of the complete model.

For every valid plan, some plan that is at least as good satisfies the constraints, and every solution gives a valid plan.
Docstrings name the lemma (L1 to L8) of ``docs/reference/memory-mapping-models.md`` that a constraint rests on, or the rule of
``docs/reference/memory-mapping.md`` that it expresses.

An *access* is a step that uses a tensor, *gap* ``j`` is the time between accesses ``j - 1`` and ``j``, and *boundary* ``t`` is
the moment before step ``t`` (:mod:`stowplan.models.memory_mapping.accesses`). A tensor is *landed* at an access if it is
resident there with its content, and it is *kept* in a gap if it is landed throughout the gap. It *lingers* in a gap if it stays
only to the end of a loop. A *neighbourhood* is some tensors in a window of steps, for which a plan is improved; the rest of the
plan is its *fixed part* (:mod:`~stowplan.models.memory_mapping.cpsat.fixed_part`). A use is *fast* if it is served from fast
memory, otherwise *slow*. A *literal* is a Boolean variable. The variables are those of
:mod:`~stowplan.models.memory_mapping.cpsat.variables`. Nothing here raises an error, except what its ``check_stop`` raises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.cpsat.fixed_part import FixedPart
from stowplan.models.memory_mapping.cpsat.variables import (
    AccessVariables,
    CopyInVariables,
    CopyOutVariables,
    Literal,
    TensorVariables,
    Variables,
)
from stowplan.models.memory_mapping.latency import Affine, StepLatency


class Constraints:
    """Adds all constraints except those of latencies and offsets."""

    def __init__(self, variables: Variables):
        self.v = variables
        self.model = variables.model
        self.problem = variables.problem
        self.is_exact_open = self.problem.channels > 1 and not variables.forbidden
        """Whether the time at which a boundary *opens*, so that its copies can be queued, has a variable of its own (L7)."""
        self.complete_by = variables.open if self.is_exact_open else variables.left
        """For each boundary, the latest time in ps at which a copy-out may end that must be complete there."""
        self._load: defaultdict[int, list[tuple[int, Literal]]] = defaultdict(list)
        preloads: list[Literal] = []
        for tensor in variables.tensors:
            self._add_tensor(tensor)
            first = tensor.access[0].keep
            if first is not None:
                preloads.append(first)
        if len(preloads) > self.problem.max_preloads:
            self.model.add(sum(preloads) <= self.problem.max_preloads)
        if variables.fixed_part is not None:
            self._add_borders(variables.fixed_part)
        self._add_capacity()
        self._add_channels()

    def _add_tensor(self, tensor: TensorVariables) -> None:
        """Add the constraints of one tensor, and its memory at each step to the load."""
        self.v.check_stop()
        sequence, model = tensor.sequence, self.model
        occupied: defaultdict[int, list[Literal]] = defaultdict(list)
        for j, here in enumerate(tensor.access):
            before = tensor.access[j - 1] if j else AccessVariables()
            if j < len(sequence):
                self._add_landing(tensor, here, before, j)
            self._add_gap(tensor, j, occupied)
        for j, here in enumerate(tensor.access):
            if here.copy_in is not None:
                self._add_copy_in(here.copy_in)
            if here.copy_out is not None:
                self._add_copy_out(tensor, j, here.copy_out, occupied)
        for j, access in enumerate(sequence.accesses):
            landed = tensor.access[j].landed
            if landed is not None:
                occupied[access.step].append(landed)
        self._add_slow_memory(tensor)
        units = -(-sequence.size // self.problem.alignment)
        for step, literals in occupied.items():
            if len(literals) > 1:
                model.add_at_most_one(literals)
            self._load[step] += [(units, literal) for literal in literals]

    def _add_landing(self, tensor: TensorVariables, here: AccessVariables, before: AccessVariables, j: int) -> None:
        """Constrain how a tensor can be landed at an access: it is kept, copied in, or written by the access (L4).

        An access can be fast only if the tensor is landed (L5).
        """
        model = self.model
        if here.keep is not None and here.keep is not before.landed and j:
            assert before.landed is not None
            model.add_implication(here.keep, before.landed)
        if here.keep is not None and here.copy_in is not None:
            model.add(here.keep + here.copy_in.is_made == here.landed)
        if here.fast is not None and here.landed is not None and here.fast is not here.landed:
            model.add_implication(here.fast, here.landed)
        if tensor.uniform is not None and here.landed is not tensor.uniform:
            model.add(tensor.uniform == (0 if here.landed is None else here.landed))

    def _add_gap(self, tensor: TensorVariables, j: int, occupied: defaultdict[int, list[Literal]]) -> None:
        """Collect what occupies memory in gap ``j``: a tensor that is kept, one that stays to the end of a loop (L1), or a
        copy-in."""
        sequence, here = tensor.sequence, tensor.access[j]
        if not len(sequence):
            return
        first, last = sequence.gap(j)
        if here.keep is not None:
            for step in range(first, last):
                occupied[step].append(here.keep)
        if here.lingers is not None:
            landed = tensor.access[j - 1].landed
            self.model.add(here.lingers + (0 if here.keep is None else here.keep) == landed)
            for step in range(first, int(sequence.residency.next[first])):
                occupied[step].append(here.lingers)
        if here.copy_in is not None:
            for step, literal in here.copy_in.resident.items():
                occupied[step].append(literal)

    def _add_copy_in(self, copy: CopyInVariables) -> None:
        """Constrain when a copy-in begins (L6), from when on it occupies memory, and when it must be complete (L3, L7)."""
        model, v = self.model, self.v
        model.add(copy.begin >= v.open[copy.first]).only_enforce_if(copy.is_made)
        before = None
        for step, literal in copy.resident.items():
            if before is not None and before is not literal:
                model.add_implication(before, literal)
            if literal is not copy.is_made:
                model.add_implication(literal, copy.is_made)
                boundary = int(v.sequences[0].copy.next[step + 1])
                model.add(copy.begin >= v.open[boundary]).only_enforce_if(copy.is_made, ~literal)
            before = literal
        model.add(copy.begin + copy.duration_ps <= v.left[copy.end]).only_enforce_if(copy.is_made)
        if self.is_exact_open and copy.end > copy.first:
            started = copy.resident[copy.end - 1]
            model.add(copy.begin + copy.duration_ps <= v.open[copy.end]).only_enforce_if(started)

    def _add_copy_out(
        self, tensor: TensorVariables, write: int, copy: CopyOutVariables, occupied: defaultdict[int, list[Literal]]
    ) -> None:
        """Constrain the copy-out of the content of a fast write (L3): when it begins (L6), when it must be complete (L7), and
        how long it needs its residency."""
        model, v, sequence = self.model, self.v, tensor.sequence
        fast = tensor.access[write].fast
        assert fast is not None
        model.add_implication(copy.is_made, fast)
        model.add(copy.begin >= v.open[copy.first]).only_enforce_if(copy.is_made)
        model.add(copy.begin + copy.duration_ps <= self.complete_by[copy.limit]).only_enforce_if(copy.is_made)
        before = copy.is_made
        for step, needed in copy.needs.items():
            if needed is not before:
                model.add_implication(needed, before)
                if v.sequences[0].copy.free[step]:
                    end = copy.begin + copy.duration_ps
                    model.add(end <= self.complete_by[step]).only_enforce_if(copy.is_made, ~needed)
            before = needed
        j = write + 1
        for step, needed in copy.needs.items():
            while j < len(sequence) and sequence.accesses[j].step < step:
                j += 1
            self._require_residency(tensor, j, step, needed, copy, occupied)

    def _require_residency(
        self,
        tensor: TensorVariables,
        j: int,
        step: int,
        needed: Literal,
        copy: CopyOutVariables,
        occupied: defaultdict[int, list[Literal]],
    ) -> None:
        """Let the residency of a copy-out cover ``step`` if the copy needs it then (L1).

        The step is that of access ``j``, or lies in the gap before it.
        """
        model, sequence, here = self.model, tensor.sequence, tensor.access[j]
        if j < len(sequence) and (step == sequence.accesses[j].step or sequence.is_glued(j)):
            if here.keep is None:
                model.add(needed == 0)
            else:
                model.add_implication(needed, here.keep)
            return
        if here.lingers is not None and step < sequence.residency.next[sequence.gap(j)[0]]:
            return
        if here.keep is None:
            extends = needed
        else:
            extends = self.v.literal(f"extends{sequence.tensor}.{j}@{step}")
            model.add_implication(extends, needed)
            model.add_implication(extends, ~here.keep)
            model.add_bool_or(~needed, here.keep, extends)
        copy.extends[step] = extends
        occupied[step].append(extends)

    def _add_slow_memory(self, tensor: TensorVariables) -> None:
        """Let slow reads, copies-in and the end of the program find valid content in slow memory (``stale_slow``, L3)."""
        sequence, model = tensor.sequence, self.model
        for j in range(len(sequence) + 1):
            m = sequence.last_write[j]
            # If the last write was not fast, slow memory has valid content: that of this write or of a program input.
            fast = tensor.access[m].fast if m >= 0 else None
            if fast is None:
                continue
            copy, here = tensor.access[m].copy_out, tensor.access[j]
            if j == len(sequence):
                if sequence.is_output:
                    model.add_bool_or(~fast, *([copy.is_made] if copy else []))
                continue
            if here.copy_in is not None:
                model.add_bool_or(~here.copy_in.is_made, ~fast, *([copy.is_made] if copy else []))
            if sequence.accesses[j].read is not None and here.fast is not fast:
                self._add_slow_read(tensor, fast, copy, j)

    def _add_slow_read(self, tensor: TensorVariables, written: Literal, copy: CopyOutVariables | None, j: int) -> None:
        """If access ``j`` is a slow read of content that was written to fast memory, require its copy-out to be complete by
        then (L3, L7)."""
        model, v, sequence, read = self.model, self.v, tensor.sequence, tensor.access[j].fast
        boundary = int(sequence.copy.prev[sequence.accesses[j].step])
        otherwise = [] if read is None else [read]
        if copy is None or boundary < copy.first or (v.forbidden and boundary == copy.first):
            model.add_bool_or(~written, *otherwise)
            return
        model.add_bool_or(~written, copy.is_made, *otherwise)
        happens = [written, *(~literal for literal in otherwise)]
        end = copy.begin + copy.duration_ps
        if not self.is_exact_open or boundary not in copy.needs:
            model.add(end <= self.complete_by[boundary]).only_enforce_if(*happens)
            return
        at_once = copy.at_once[j] = v.literal(f"at_once{sequence.tensor}.{j}")
        model.add_implication(at_once, copy.is_made)
        model.add_implication(at_once, copy.needs[boundary])
        model.add(copy.begin >= v.open[boundary]).only_enforce_if(at_once)
        model.add(end <= v.open[boundary]).only_enforce_if(*happens, ~at_once)
        model.add(end <= v.left[boundary]).only_enforce_if(*happens, at_once)

    def _add_capacity(self) -> None:
        """Limit the occupied units at every step to the capacity (``overlap``). Offsets are modelled in ``offsets``."""
        capacity = -(-self.problem.capacity // self.problem.alignment)
        for step, load in self._load.items():
            free_units = capacity if self.v.fixed_part is None else self.v.fixed_part.space.free_units(step)
            if sum(units for units, _ in load) > free_units:
                self.model.add(sum(units * literal for units, literal in load) <= free_units)

    def _add_channels(self) -> None:
        """Limit the number of copies that run at the same time to the channels. Their order is not constrained (L6)."""
        copies = [
            copy.interval
            for tensor in self.v.tensors
            for access in tensor.access
            for copy in (access.copy_in, access.copy_out)
            if copy is not None
        ]
        if self.v.fixed_part is not None:
            copies += self._fixed_copies(self.v.fixed_part)
        if self.problem.channels == 1:
            self.model.add_no_overlap(copies)
        elif copies:
            self.model.add_cumulative(copies, [1] * len(copies), self.problem.channels)

    def _add_borders(self, fixed_part: FixedPart) -> None:
        """Let the same tensors be in fast memory at the first and at the last boundary of a neighbourhood as in the given plan.

        If the neighbourhood begins with the program, some further tensors may be preloaded.
        """
        model = self.model
        new: list[Literal] = []
        for number, tensor in enumerate(self.v.tensors):
            first = tensor.access[0]
            if number in fixed_part.entering and first.begun is not None and tensor.sequence.accesses[0].step == 0:
                model.add(first.begun == 1)
            elif number not in fixed_part.entering and first.keep is not None:
                new.append(first.keep)
            if number in fixed_part.leaving:
                last = tensor.access[len(tensor.sequence) - 1]
                assert last.landed is not None
                model.add(last.landed == 1)
        if new and (fixed_part.preloads is None or len(new) > fixed_part.preloads):
            model.add(sum(new) <= (fixed_part.preloads or 0))

    def _fixed_copies(self, fixed_part: FixedPart) -> list[cp_model.IntervalVar]:
        """Create the intervals of the copies outside the neighbourhood (L6, L7), and of the time in which earlier copies use
        the channel."""
        model, v = self.model, self.v
        latest = v.floor_until[-1] + v.slack_ps
        for boundary, moment in fixed_part.waits.items():
            model.add(v.left[boundary] >= moment)
        intervals = []
        for begin_ps, end_ps in fixed_part.busy:
            intervals.append(model.new_fixed_size_interval_var(begin_ps, end_ps - begin_ps, "busy"))
        for copy in fixed_part.copies:
            highest = max(latest, copy.begin_ps, copy.latest_end_ps)
            begin = model.new_int_var(min(0, copy.begin_ps), highest, f"begin.fixed{copy.place}")
            v.fixed_begin.append(begin)
            intervals.append(model.new_fixed_size_interval_var(begin, copy.duration_ps, f"copy.fixed{copy.place}"))
            queued, due = copy.queued, copy.due
            model.add(begin >= (v.left[queued.boundary] + queued.after_ps if queued.after_ps else v.open[queued.boundary]))
            if due is not None:
                model.add(begin + copy.duration_ps <= v.left[due.boundary] + due.after_ps)
            elif fixed_part.tail_ps is None:
                model.add(begin + copy.duration_ps <= copy.latest_end_ps)
        return intervals


Expression: TypeAlias = cp_model.LinearExpr | int


class StepTerms:
    """The latency of one run of a step, as an expression. A latency is a table with an entry for each set of fast uses, or the
    largest of several affine functions of the uses, its *pieces*.

    Attributes
    ----------
    expression
        The latency in ps; exact if it is minimized.
    value : integer variable or None
        The variable for the largest of several pieces; None if there is only one piece or a table.
    rows : dict of int to literal
        For a table, the literal of every possible entry, by the entry's index (``mask``).
    """

    def __init__(self, model: cp_model.CpModel, latency: StepLatency, fast: Sequence[Literal | None], name: str):
        self.value: cp_model.IntVar | None = None
        self.rows: dict[int, Literal] = {}
        self.expression: Expression
        if latency.table:
            self._add_table(model, latency, fast, name)
        else:
            self._add_pieces(model, latency, fast, name)

    def _add_pieces(self, model: cp_model.CpModel, latency: StepLatency, fast: Sequence[Literal | None], name: str) -> None:
        """Model the latency as the maximum of affine pieces: an integer variable with a lower bound for each piece."""
        pieces = latency.possible([literal is not None for literal in fast])
        if len(pieces) == 1:
            self.expression = _expression(pieces[0], fast)
            return
        least = max(piece.least() for piece in pieces)
        most = max(piece.most() for piece in pieces)
        self.value = self.expression = model.new_int_var(least, most, f"latency{name}")
        for piece in pieces:
            model.add(self.value >= _expression(piece, fast))

    def _add_table(self, model: cp_model.CpModel, latency: StepLatency, fast: Sequence[Literal | None], name: str) -> None:
        """Model the latency by a table: a Boolean variable for each entry, of which exactly one is true."""
        bits = list(enumerate(latency.table_uses))
        never = sum(1 << bit for bit, use in bits if fast[use] is None)
        self.rows = {mask: model.new_bool_var(f"row{name}.{mask}") for mask in range(len(latency.table)) if not mask & never}
        model.add_exactly_one(self.rows.values())
        for bit, use in bits:
            literal = fast[use]
            if literal is not None:
                model.add(sum(row for mask, row in self.rows.items() if mask >> bit & 1) == literal)
        self.expression = sum(latency.table[mask] * row for mask, row in self.rows.items())


def _expression(piece: Affine, fast: Sequence[Literal | None]) -> Expression:
    """The value of an affine piece as an expression in the literals of fast uses."""
    saved: Expression = sum(
        gain * literal for gain, literal in zip(piece.gain, fast, strict=True) if literal is not None and gain
    )
    return piece.constant + saved


class Objective:
    """Adds latencies and the objective.

    The objective is the time at which the last boundary is left or, if stalls are forbidden, the sum of the latencies.
    """

    def __init__(self, variables: Variables, lower_bound_ps: int | None = None):
        problem, model = variables.problem, variables.model
        self.steps: list[StepTerms] = []
        for index, (latency, fast) in enumerate(zip(variables.savings.latencies, problem.by_step(variables.fast), strict=True)):
            self.steps.append(StepTerms(model, latency, fast, str(index)))
        weighted = [step.weight * terms.expression for step, terms in zip(problem.steps, self.steps, strict=True)]
        self._variables = variables
        self.total: cp_model.IntVar | None = None
        if variables.forbidden:
            self.expression: Expression = sum(weighted)
            if variables.fixed_part is not None:
                model.add(self.expression <= variables.fixed_part.most_ps)
        else:
            model.add(variables.reached[0] == 0)
            for boundary in range(problem.horizon + 1):
                if variables.open is not variables.reached:
                    model.add(variables.open[boundary] >= variables.reached[boundary])
                    model.add(variables.left[boundary] >= variables.open[boundary])
                else:
                    model.add(variables.left[boundary] >= variables.reached[boundary])
                if boundary < problem.horizon:
                    model.add(variables.reached[boundary + 1] == variables.left[boundary] + weighted[boundary])
            self.expression = variables.left[-1] if variables.fixed_part is None else self._total(variables.fixed_part)
        if lower_bound_ps is not None:
            model.add(self.expression >= lower_bound_ps)
        model.minimize(self.expression)

    def _total(self, fixed_part: FixedPart) -> cp_model.IntVar:
        """The time at which the program ends after a neighbourhood: the largest of a few sums of a time and a constant (L8)."""
        variables, model = self._variables, self._variables.model
        assert fixed_part.tail_ps is not None
        self.total = model.new_int_var(0, fixed_part.most_ps, "total")
        model.add(self.total >= variables.left[-1] + fixed_part.tail_ps)
        for copy, begin in zip(fixed_part.copies, variables.fixed_begin, strict=True):
            if copy.due is None:
                model.add(self.total >= begin + copy.duration_ps + copy.tail_ps)
        return self.total
