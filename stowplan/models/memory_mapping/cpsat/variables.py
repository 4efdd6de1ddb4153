"""The variables of the complete model, tensor by tensor.

A Boolean variable that can only be false is None, so that no constraints are built for choices that a problem does not have. An
*access* is a step that uses a tensor, a *gap* is the time between two accesses, and *boundary* ``t`` is the moment before step
``t`` (:mod:`stowplan.models.memory_mapping.accesses`). A *residency* is one stay of a tensor in fast memory. A tensor is
*landed* if it is resident with its content, that is, after a copy-in is complete. A use is *fast* if it is served from fast
memory, otherwise *slow*. A *uniform alias group* is a tensor of which all uses must be fast or all slow
(``alias_rule="uniform"``). The *window* of a copy goes from the boundary at which it is queued to the boundary at which it must
be complete. It is *empty* if both are the same; then the program waits there for the copy.

In a *neighbourhood*, only some tensors in a range of steps may change. The rest of the plan is its *fixed part*
(:mod:`~stowplan.models.memory_mapping.cpsat.fixed_part`). Nothing here raises an error except :class:`BuildStopped`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences
from stowplan.models.memory_mapping.cpsat.fixed_part import FixedPart
from stowplan.models.memory_mapping.latency import Savings
from stowplan.models.memory_mapping.problem import Problem

Literal = cp_model.IntVar

#: In a neighbourhood, the window of a copy is limited to this multiple of the copy's duration, or to this number of boundaries
#: if that is longer. It lies next to the use that needs the copy, or to the write whose content the copy saves. Few plans need
#: longer windows, and every boundary costs a literal.
REACH, LEAST_REACH = 4, 6


class BuildStopped(Exception):  # noqa: N818 - nothing is wrong
    """The caller of the construction of a model asked it to stop."""


@dataclass
class CopyInVariables:
    """The variables of an optional copy-in that is complete before some access."""

    is_made: Literal
    """Whether the copy takes place."""
    first: int
    """First boundary at which it may start."""
    end: int
    """Boundary at which it must be complete."""
    begin: cp_model.IntVar
    """Time in ps at which it begins on its channel."""
    interval: cp_model.IntervalVar
    """Time of the copy on its channel."""
    duration_ps: int
    """Duration on an idle channel."""
    resident: dict[int, Literal]
    """For each step from ``first`` up to the access: whether the copy has been queued and occupies its bytes. Once true, it is
    true for all later steps."""


@dataclass
class CopyOutVariables:
    """The variables of an optional copy-out of the content that some access wrote."""

    is_made: Literal
    """Whether the copy takes place."""
    first: int
    """First boundary at which it may start."""
    limit: int
    """Last boundary at which it must be complete: before the next write, or the end of the program."""
    begin: cp_model.IntVar
    """Time in ps at which it begins on its channel."""
    interval: cp_model.IntervalVar
    """Time of the copy on its channel."""
    duration_ps: int
    """Duration on an idle channel."""
    needs: dict[int, Literal]
    """For each step from the write up to ``limit``: whether the copy needs the residency. Once false, it is false for all later
    steps."""
    extends: dict[int, Literal] = field(default_factory=dict)
    """For each of these steps that is in a gap in which the residency might end: whether the residency goes on only because of
    this copy."""
    at_once: dict[int, Literal] = field(default_factory=dict)
    """With several channels, for each slow read: whether the copy has an empty window right before the read."""


@dataclass
class AccessVariables:
    """The variables of one access of one tensor, a step that uses it, and of the gap before it. A variable that is None can
    only be false."""

    landed: Literal | None = None
    """Whether the tensor is resident with its content at the access."""
    fast: Literal | None = None
    """Whether the access is served from fast memory."""
    keep: Literal | None = None
    """Whether the tensor is resident with its content throughout the gap before the access; for the first access, whether it is
    preloaded."""
    begun: Literal | None = None
    """Whether a residency begins with the access, which writes without reading."""
    copy_in: CopyInVariables | None = None
    """The copy-in that is complete before the access."""
    copy_out: CopyOutVariables | None = None
    """The copy-out of the content that the access writes."""
    lingers: Literal | None = None
    """Whether the residency ends in the gap before the access, but not before the loop around the previous access ends."""


@dataclass
class TensorVariables:
    """All variables of one tensor."""

    sequence: TensorAccesses
    """The accesses of the tensor."""
    access: list[AccessVariables]
    """One entry for each access, and one more for the gap after the last access."""
    uniform: Literal | None = None
    """For a uniform alias group: whether all its uses are fast."""


class Variables:
    """All variables of the model of a problem. If ``should_stop`` returns True, building ends with :class:`BuildStopped`.

    Attributes
    ----------
    reached, open, left : one integer variable for each boundary
        Times in ps at which the boundary is reached, queues its copies, and is left; constants if stalls are forbidden. With
        one channel, ``open`` is the same as ``reached``, and copies that end at a boundary must be complete when it is
        ``left`` (L7 of ``docs/reference/memory-mapping-models.md``).
    """

    def __init__(
        self,
        problem: Problem,
        sequences: Sequence[TensorAccesses] | None = None,
        fixed_part: FixedPart | None = None,
        should_stop: Callable[[], bool] | None = None,
    ):
        self.problem = problem
        self.fixed_part = fixed_part
        self._should_stop = should_stop
        self.model = cp_model.CpModel()
        self.sequences = access_sequences(problem) if sequences is None else sequences
        self.savings = Savings(problem)
        self.forbidden = problem.stalls == "forbidden"
        self.leaves_between_steps = problem.evictions == "between_steps" and not self.forbidden
        """Whether a copy-out with an empty window may be the end of its residency."""
        self.floor_until: Sequence[int] = problem.floor_until
        self.slack_ps = 0 if self.forbidden else problem.all_slow_ps - self.floor_until[-1]
        """Largest time by which a boundary may be later than the sum of the least latencies before it. Plans that are slower
        than the one with all tensors in slow memory are excluded."""
        if fixed_part is not None:
            self.floor_until, self.slack_ps = fixed_part.floor_until, fixed_part.slack_ps
        self._first, self._last = (0, problem.horizon) if fixed_part is None else (1, problem.horizon - 1)
        """First and last boundary for copies, which excludes the two steps that a neighbourhood adds."""
        self._make_moments()
        self.tensors = [self._make_tensor(sequence) for sequence in self.sequences]
        self.fixed_begin: list[cp_model.IntVar] = []
        """Times at which the copies of the fixed part begin."""
        self.fast: list[Literal | None] = [None] * problem.use_count
        for variables in self.tensors:
            for access, chosen in zip(variables.sequence.accesses, variables.access, strict=False):
                for use in access.uses:
                    self.fast[use] = chosen.fast

    def check_stop(self) -> None:
        """Raise :class:`BuildStopped` if ``should_stop`` returns True; called for every tensor."""
        if self._should_stop is not None and self._should_stop():
            raise BuildStopped

    def literal(self, name: str) -> Literal:
        """A new Boolean variable."""
        return self.model.new_bool_var(name)

    def _make_moments(self) -> None:
        """Create the times at every boundary: when it is reached, left, and open for copies."""

        def moments(name: str) -> list[cp_model.IntVar]:
            return [
                self.model.new_int_var(floor, floor + self.slack_ps, f"{name}{boundary}")
                for boundary, floor in enumerate(self.floor_until)
            ]

        self.reached = moments("reached")
        if self.forbidden:
            self.open = self.left = self.reached
            return
        self.left = moments("left")
        self.open = moments("open") if self.problem.channels > 1 else self.reached

    def _make_tensor(self, sequence: TensorAccesses) -> TensorVariables:
        """Create all variables of a tensor; none if having it in fast memory saves nothing."""
        self.check_stop()
        count = len(sequence)
        variables = TensorVariables(sequence, [AccessVariables() for _ in range(count + 1)])
        if not count or not self.savings.is_candidate(sequence):
            return variables
        if sequence.uniform:
            variables.uniform = self.literal(f"uniform{sequence.tensor}")
        for j in range(count):
            self._make_landing(variables, j)
        for j in range(count):
            self._make_copy_out(variables, j)
        for j in range(1, count + 1):
            first = sequence.gap(j)[0]
            if (
                variables.access[j - 1].landed is not None
                and not sequence.is_glued(j)
                and sequence.residency.next[first] > first
            ):
                variables.access[j].lingers = self.literal(f"lingers{sequence.tensor}.{j}")
        return variables

    def _make_landing(self, variables: TensorVariables, j: int) -> None:
        """Create the variables that say whether a tensor is landed at an access, and how it came into fast memory."""
        sequence, here = variables.sequence, variables.access[j]
        name = f"{sequence.tensor}.{j}"
        before = variables.access[j - 1].landed if j else None
        if sequence.is_glued(j):
            here.keep = here.landed = before
        elif sequence.is_dead(j):
            here.begun = here.landed = self.literal(f"begun{name}") if variables.uniform is None else variables.uniform
        else:
            may_preload = j == 0 and sequence.is_input and self.problem.max_preloads > 0
            if before is not None or may_preload:
                here.keep = self.literal(f"keep{name}")
            here.copy_in = self._make_copy_in(sequence, j)
            if here.keep is not None and here.copy_in is not None:
                here.landed = self.literal(f"landed{name}")
            else:
                here.landed = here.keep if here.copy_in is None else here.copy_in.is_made
        here.fast = here.landed
        access = sequence.accesses[j]
        is_free = here.landed is not None and access.write is None and variables.uniform is None and not sequence.is_tied(j)
        if is_free and access.read is not None and not self.savings.never_loses(access.read):
            here.fast = self.literal(f"fast{name}")

    def _make_copy_in(self, sequence: TensorAccesses, j: int) -> CopyInVariables | None:
        """Create the variables of a copy into fast memory before an access; None if no window is possible for it."""
        duration = self.problem.tensors[sequence.tensor].copy_in_ps
        window = sequence.copy_in_window(j, in_flight=True) or sequence.copy_in_window(j)
        if window is None:
            return None
        first, end = max(window[0], self._first), window[1]
        if first > end:
            return None
        first = self._first_copy_start(sequence, first, end, duration)
        latest = self._latest_start(first, end, duration) if self.forbidden else end
        if latest is None:
            return None
        # A tensor that is resident at the end of a neighbourhood may be copied out there, which must be at a later boundary.
        latest = min(latest, int(sequence.copy.prev[self._last - 1])) if self.fixed_part is not None else latest
        if latest < first:
            return None
        name = f"{sequence.tensor}.{j}"
        is_made = self.literal(f"in{name}")
        resident: dict[int, Literal] = {}
        for step in range(first, sequence.accesses[j].step):
            if step >= latest:
                resident[step] = is_made
            elif not sequence.copy.free[step] and step > first:
                resident[step] = resident[step - 1]
            else:
                resident[step] = self.literal(f"started{name}@{step}")
        begin, interval = self._make_interval(f"in{name}", is_made, first, end, duration)
        return CopyInVariables(is_made, first, end, begin, interval, duration, resident)

    def _make_copy_out(self, variables: TensorVariables, write: int) -> None:
        """Create the variables of a copy-out of the content that access ``write`` writes, if the write can be fast."""
        sequence, here = variables.sequence, variables.access[write]
        if sequence.accesses[write].write is None or here.fast is None or not sequence.may_copy:
            return
        first = int(sequence.copy.next[sequence.accesses[write].step + 1])
        following = sequence.next_write(write + 1)
        duration = self.problem.tensors[sequence.tensor].copy_out_ps
        limit = self._last_copy_end(
            sequence, first, min(int(sequence.copy.prev[sequence.gap(following)[1]]), self._last), duration
        )
        # The residency covers at least step ``first``; otherwise the copy would have no step during which it could run.
        least = self._earliest_end(first, limit, duration) if self.forbidden else first + (not self.leaves_between_steps)
        if least is None or least > limit:
            return
        name = f"{sequence.tensor}.{write}"
        is_made = self.literal(f"out{name}")
        needs: dict[int, Literal] = {}
        for step in range(sequence.accesses[write].step + 1, limit):
            if step < least:
                needs[step] = is_made
            elif not sequence.copy.free[step]:
                needs[step] = needs[step - 1]
            else:
                needs[step] = self.literal(f"needs{name}@{step}")
        begin, interval = self._make_interval(f"out{name}", is_made, first, limit, duration)
        here.copy_out = CopyOutVariables(is_made, first, limit, begin, interval, duration, needs)

    def _first_copy_start(self, sequence: TensorAccesses, first: int, end: int, duration_ps: int) -> int:
        """The first boundary from which on a copy-in that must be complete at ``end`` may start.

        In a neighbourhood, it is limited by :data:`REACH`, but never after a start in the given plan.
        """
        if self.fixed_part is None:
            return first
        starts = [start for start in self.fixed_part.given_in[sequence.tensor] if first <= start <= end]
        start = max(first, end - LEAST_REACH)
        while start > first and self.floor_until[end] - self.floor_until[start] < REACH * duration_ps:
            start -= 1
        return min([int(sequence.copy.next[start]), *starts])

    def _last_copy_end(self, sequence: TensorAccesses, first: int, limit: int, duration_ps: int) -> int:
        """The last boundary at which a copy-out that may start at ``first`` may end.

        In a neighbourhood, it is limited by :data:`REACH`, but never before an end in the given plan.
        """
        if self.fixed_part is None:
            return limit
        ends = [end for end in self.fixed_part.given_out[sequence.tensor] if first <= end <= limit]
        # The residency of a copy with an empty window ends at the next boundary.
        ends = [min(limit, int(sequence.copy.next[end + 1])) for end in ends]
        end = min(limit, first + LEAST_REACH)
        while end < limit and self.floor_until[end] - self.floor_until[first] < REACH * duration_ps:
            end += 1
        return max([int(sequence.copy.prev[end]), *ends])

    def _latest_start(self, first: int, end: int, duration_ps: int) -> int | None:
        """The last boundary, from ``first`` on, at which a copy can start so that it is complete by ``end`` without stalls;
        None if there is none."""
        free = self.sequences[0].copy.free
        for start in range(end - 1, first - 1, -1):
            if free[start] and self.floor_until[end] - self.floor_until[start] >= duration_ps:
                return start
        return None

    def _earliest_end(self, first: int, limit: int, duration_ps: int) -> int | None:
        """The first boundary, up to ``limit``, by which a copy that starts at ``first`` is complete without stalls; None if
        there is none."""
        free = self.sequences[0].copy.free
        for end in range(first + 1, limit + 1):
            if free[end] and self.floor_until[end] - self.floor_until[first] >= duration_ps:
                return end
        return None

    def _make_interval(
        self, name: str, is_made: Literal, first: int, end: int, duration_ps: int
    ) -> tuple[cp_model.IntVar, cp_model.IntervalVar]:
        """Create the time at which a copy begins, and its optional interval. ``end`` is the latest boundary for its end."""
        low = self.floor_until[first]
        high = self.floor_until[end] + self.slack_ps - duration_ps
        begin = self.model.new_int_var(low, max(low, high), f"begin.{name}")
        if high < low:
            self.model.add(is_made == 0)
        return begin, self.model.new_optional_fixed_size_interval_var(begin, duration_ps, is_made, f"copy.{name}")
