"""The complete model: it combines variables, constraints and objective, takes plans as hints, and returns plans.

:func:`solve` solves it first without offsets. If no offsets fit the optimal solution, it is solved again with offsets.

*Boundary* ``t`` is the moment before step ``t``. When the program has reached a boundary, it waits for the earlier copies that
must be complete there. The boundary is then *open*: its own copies are queued. The program leaves the boundary when step ``t``
begins. An *access* is a step that uses a tensor, and a *residency* is one stay of a tensor in fast memory. The *window* of a
copy goes from the boundary at which it is queued to the boundary at which it must be complete. A *literal* is a Boolean
variable or its negation.

A hint must be a valid plan. Functions raise no errors except those that they document.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Unpack

import msgspec
from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Value, Work
from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences
from stowplan.models.memory_mapping.copy_engine import Moments
from stowplan.models.memory_mapping.cpsat.constraints import Constraints, Objective
from stowplan.models.memory_mapping.cpsat.decisions import CopyKey, CopyOut, Decisions, TensorDecisions, copy_out_end
from stowplan.models.memory_mapping.cpsat.fixed_part import FixedPart
from stowplan.models.memory_mapping.cpsat.hint import decisions_of, hint_values, offsets_of
from stowplan.models.memory_mapping.cpsat.offsets import OffsetVariables, pack
from stowplan.models.memory_mapping.cpsat.variables import (
    BuildStopped,
    CopyInVariables,
    CopyOutVariables,
    TensorVariables,
    Variables,
)
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.outcome import Best, Outcome

#: Largest number of literals of a model; larger models are not built. The limit is generous: CP-SAT already stops making
#: progress on much smaller models.
MAX_SIZE = 200_000


class MemoryMappingModel:
    """The CP-SAT model of a problem.

    Parameters
    ----------
    problem
        Any problem, except one with several copy channels in which some copy takes no time.
    offsets
        Whether offsets are part of the model. Without them, the model only requires that the tensors that are in fast memory at
        the same step are together no larger than its capacity. It is then a relaxation, and there may be no offsets for a
        solution.
    lower_bound_ps
        A proven lower bound on the objective in ps.
    sequences
        :func:`~stowplan.models.memory_mapping.accesses.access_sequences` of the problem, if the caller has computed them.
    fixed_part
        For large-neighbourhood search: the part of the plan that must not change, as constants.
    should_stop
        Called for every tensor; building ends when it returns True.

    Raises
    ------
    BuildStopped
        ``should_stop`` returned True.
    NotImplementedError
        The model would have more than about :data:`MAX_SIZE` literals (:func:`size_estimate`), or there are several copy
        channels and a copy takes no time. Such a copy would be an interval of length 0, which waits for no channel.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        offsets: bool = True,
        lower_bound_ps: int | None = None,
        sequences: Sequence[TensorAccesses] | None = None,
        fixed_part: FixedPart | None = None,
        should_stop: Callable[[], bool] | None = None,
    ):
        if problem.channels > 1 and any(not (t.copy_in_ps and t.copy_out_ps) for t in problem.tensors):
            raise NotImplementedError("copies that take no time, with several channels")
        sequences = access_sequences(problem) if sequences is None else sequences
        size = size_estimate(sequences)
        if size > MAX_SIZE:
            raise NotImplementedError(f"about {size} literals, more than {MAX_SIZE}")
        self.problem = problem
        self.variables = Variables(problem, sequences, fixed_part, should_stop)
        Constraints(self.variables)
        self.objective = Objective(self.variables, lower_bound_ps)
        self.offsets = OffsetVariables(self.variables) if offsets else None
        self.model = self.variables.model

    def add_hint(self, plan: Plan) -> dict[int, int] | None:
        """Let the solver start from a valid plan. The hint is complete and replaces an earlier one.

        The hinted solution may be better than the plan, since useless residencies and copies are left out.

        Returns
        -------
        dict or None
            The value of each variable, by its index. None if the plan is worse than the one with all tensors in slow memory;
            the model then has no hint.
        """
        decisions = decisions_of(self.variables, plan)
        if decisions.objective_ps() > self.problem.all_slow_ps:
            cpsat_runner.add_hint(self.model, {}, complete=False)
            return None
        values = self.values_of(decisions, plan, decisions.moments())
        cpsat_runner.add_hint(self.model, values)
        return values

    def values_of(self, decisions: Decisions, plan: Plan, moments: Moments) -> dict[int, int]:
        """The value of each variable, by its index, in the solution that has these decisions and the offsets of ``plan``.

        ``decisions`` come from a plan (:func:`~stowplan.models.memory_mapping.cpsat.hint.decisions_of`). ``moments`` are the
        times at which their copies begin, and at which each boundary is reached, open and left.
        """
        placed = offsets_of(decisions, plan) if self.offsets is not None else {}
        return hint_values(self.variables, self.objective, decisions, self.offsets, placed, moments)

    def decisions(self, value: Value) -> Decisions:
        """Returns the decisions of a solution.

        A solution says when a copy begins, but not at which boundary it is queued. This is the last boundary that opens no
        later than the copy begins.
        """
        variables = self.variables
        chosen: list[TensorDecisions] = []
        between = variables.leaves_between_steps
        queue: list[tuple[int, bool, int, int, CopyKey]] = []
        for tensor in variables.tensors:
            decided = _read_tensor(tensor, value, between=between)
            chosen.append(decided)
            for j, here in enumerate(tensor.access):
                if here.copy_in is not None and value(here.copy_in.is_made):
                    copy_in, key = here.copy_in, CopyKey(tensor.sequence.tensor, "in", j)
                    begin = value(copy_in.begin)
                    decided.copy_in[j] = self._latest_start(copy_in, begin, copy_in.end, value, allow_empty=True)
                    queue.append((decided.copy_in[j], True, begin, copy_in.duration_ps, key))
                if j in decided.copy_out and here.copy_out is not None:
                    copy_out, key = here.copy_out, CopyKey(tensor.sequence.tensor, "out", j)
                    begin, end = value(copy_out.begin), copy_out_end(tensor.sequence, decided, j)
                    allow_empty = between or end < decided.copy_out[j].until
                    start = self._latest_start(copy_out, begin, end, value, allow_empty=allow_empty)
                    decided.copy_out[j].start = start
                    # A copy-out between two steps comes before all other copies of its boundary, because a copy-in may take
                    # the bytes that it frees (L9 of docs/reference/memory-mapping-models.md).
                    queue.append((start, not (between and start == end), begin, copy_out.duration_ps, key))
        queue.sort(key=lambda item: item[:4])
        return Decisions(self.problem, variables.sequences, chosen, [item[4] for item in queue])

    def _latest_start(
        self, copy: CopyInVariables | CopyOutVariables, begin: int, end: int, value: Value, *, allow_empty: bool
    ) -> int:
        """The last boundary at which a copy can be queued if it begins at ``begin`` ps and must be complete at boundary
        ``end``.

        ``allow_empty`` says whether the copy may be queued at ``end`` itself. The program then waits there until the copy is
        complete.
        """
        variables = self.variables
        boundaries = variables.sequences[0].copy
        start = end if allow_empty and not variables.forbidden else int(boundaries.prev[end - 1])
        while start > copy.first and value(variables.open[start]) > begin:
            start = int(boundaries.prev[start - 1])
        return start

    def extract(self, value: Value, *, time_limit: float = 10.0, exact: bool = True) -> Plan | None:
        """The plan of a solution.

        Parameters
        ----------
        value
            Returns the value of a variable of the model in the solution.
        time_limit
            Time limit in seconds for finding offsets.
        exact
            Whether CP-SAT searches for offsets if first fit finds none.

        Returns
        -------
        Plan or None
            The plan with its recomputed objective; None if no offsets are found.
        """
        decisions = self.decisions(value)
        offsets = pack(self.problem, self.variables.sequences, decisions.stays(), time_limit=time_limit, exact=exact)
        return None if offsets is None else decisions.plan(offsets)


def size_estimate(sequences: Sequence[TensorAccesses]) -> int:
    """Approximate number of literals of the model: one for each copy and each step during which the copy may be under way."""
    total = 0
    for sequence in sequences:
        for j, access in enumerate(sequence.accesses):
            window = sequence.copy_in_window(j, in_flight=True) or sequence.copy_in_window(j)
            if window is not None:
                total += access.step - window[0] + 1
            if access.write is not None and sequence.may_copy:
                total += sequence.gap(sequence.next_write(j + 1))[1] - access.step
    return total


def _read_tensor(tensor: TensorVariables, value: Value, *, between: bool) -> TensorDecisions:
    """The decisions for one tensor in a solution; starts of copies are not determined yet.

    ``between`` says whether a copy-out between two steps may end its residency.
    """
    sequence = tensor.sequence
    decided = TensorDecisions.all_slow(len(sequence))

    def holds(literal: cp_model.IntVar | None) -> bool:
        return literal is not None and bool(value(literal))

    for j in range(len(sequence)):
        here = tensor.access[j]
        decided.landed[j] = holds(here.landed)
        decided.fast[j] = holds(here.fast)
        decided.keep[j] = holds(here.keep)
    for write in range(len(sequence)):
        out = tensor.access[write].copy_out
        if out is not None and holds(out.is_made) and _is_content_needed(tensor, decided, write, value):
            # The residency must last until the first boundary, from ``least`` on, at which the copy does not need it any more.
            # If a copy between two steps must not end its residency, the copy needs the residency during step ``out.first``,
            # and ``least`` is the boundary after that step.
            least = out.first + (not between)
            until = next((step for step, needed in out.needs.items() if step >= least and not value(needed)), out.limit)
            decided.copy_out[write] = CopyOut(out.first, until)
    return decided


def _is_content_needed(tensor: TensorVariables, decided: TensorDecisions, write: int, value: Value) -> bool:
    """Whether slow memory must have the content that access ``write`` writes.

    A slow read, a copy-in, or the end of the program may need it.
    """
    sequence = tensor.sequence
    following = sequence.next_write(write + 1)
    if following == len(sequence) and sequence.is_output:
        return True
    for j in range(write + 1, min(following + 1, len(sequence))):
        copy_in = tensor.access[j].copy_in
        if sequence.accesses[j].read is not None and not decided.fast[j]:
            return True
        if copy_in is not None and value(copy_in.is_made):
            return True
    return False


#: Fraction of the remaining time for finding offsets of a solution that is not optimal.
PACKING_SHARE = 0.2

#: A problem that lets steps wait for copies (stalls) is first solved without such waits, unless there is a hint. This is the
#: fraction of the remaining time for it.
STALL_FREE_SHARE = 0.3

#: Parameters of CP-SAT without probing, which takes longer than it saves with thousands of literals.
WITHOUT_PROBING = {"cp_model_probing_level": 0}


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    hint: Plan | None = None,
    lower_bound_ps: int | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    **work: Unpack[Work],
) -> Outcome[Plan]:
    """Find the best plan of a problem and a proven bound.

    Parameters
    ----------
    time_limit
        Limit in seconds, including the time to build the model.
    hint
        A valid plan to start from; None if there is none.
    lower_bound_ps
        A proven lower bound in ps, for example from :class:`~stowplan.models.memory_mapping.milp.segments.SegmentBounds`.
    on_plan, on_bound
        Called with every better plan and bound, from the solver's threads.
    work
        Keyword arguments of :func:`stowplan.models.cpsat_runner.run`. A ``deterministic_limit`` applies to each of the two
        models, without and with offsets.

    Returns
    -------
    Outcome
        It always has a bound and a plan, in the worst case the plan that uses no fast memory.

    Raises
    ------
    NotImplementedError
        The model would have more than about :data:`MAX_SIZE` literals, or there are several copy channels and a copy takes no
        time (:class:`MemoryMappingModel`).
    """
    search = _Search(problem, time_limit, work, lower_bound_ps, on_plan, on_bound)
    search.offer_plan(Plan(problem=problem.digest, program=problem.name, target=problem.target, objective=problem.all_slow_ps))
    if hint is not None:
        search.offer_plan(hint)
    elif problem.stalls == "allowed":
        search.start_without_stalls()
    search.run(offsets=False)
    if not search.is_done:
        search.run(offsets=True)
    return search.outcome()


class _Search(Best[Plan]):
    """The state of :func:`solve`: the best plan and bound, and the time that is left."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        work: Work,
        lower_bound_ps: int | None,
        on_plan: Callable[[Plan], None] | None,
        on_bound: Callable[[int], None] | None,
    ):
        self.problem = problem
        self._end = time.monotonic() + time_limit
        self._work = work
        self._should_stop = work.get("should_stop")
        super().__init__(lambda plan: plan.objective, on_plan, on_bound, max(problem.floor_ps, lower_bound_ps or 0))

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._end - time.monotonic()

    @property
    def is_done(self) -> bool:
        """Whether the best plan is proven optimal, time has run out, or ``should_stop`` returned True."""
        return self.is_optimal or self.left <= 0 or (self._should_stop is not None and self._should_stop())

    def offer_bound(self, bound: int | None) -> None:
        """Keep the bound if it is the best so far; ignore it if the problem allows copies in slices.

        The model copies every tensor as a whole. With ``prefetches="sliced"``, its bounds need not hold for the problem.
        """
        if self.problem.prefetches != "sliced":
            super().offer_bound(bound)

    def start_without_stalls(self) -> None:
        """Search for a plan in which no step waits for a copy.

        The model of such plans is much smaller. Each of them is also valid if steps may wait, and has the same objective.
        """
        if self.is_done:
            return
        work = self._work.copy()
        limit = work.get("deterministic_limit")
        work["deterministic_limit"] = None if limit is None else STALL_FREE_SHARE * limit
        stall_free = msgspec.structs.replace(self.problem, stalls="forbidden")
        outcome = solve(stall_free, time_limit=STALL_FREE_SHARE * self.left, **work)
        if outcome.plan is not None:
            self.offer_plan(msgspec.structs.replace(outcome.plan, problem=self.problem.digest))

    def run(self, *, offsets: bool) -> None:
        """Solve the model, with or without offsets, within the remaining time.

        Raises NotImplementedError if :class:`MemoryMappingModel` does.
        """
        try:
            model = MemoryMappingModel(
                self.problem, offsets=offsets, lower_bound_ps=self.bound, should_stop=lambda: self.is_done
            )
        except BuildStopped:
            return
        if self.plan is not None:
            model.add_hint(self.plan)
        if self.is_done:
            return
        run = cpsat_runner.run(
            model.model,
            time_limit=self.left,
            parameters=WITHOUT_PROBING,
            on_solution=lambda value: self.offer_plan(model.extract(value, exact=False)),
            on_bound=self.offer_bound,
            **self._work,
        )
        if run.is_found:
            self.offer_bound(run.bound)
            if run.status == "optimal":
                self.offer_bound(int(run.value(model.objective.expression)))
            limit = max(0.1, self.left if run.status == "optimal" else PACKING_SHARE * self.left)
            self.offer_plan(model.extract(run.value, time_limit=limit))
