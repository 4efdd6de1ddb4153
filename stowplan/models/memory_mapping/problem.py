"""The memory-mapping problem: a scheduled program with latencies, on a target with fast and slow memory.

The rules are in ``docs/reference/memory-mapping.md``. The problem follows "Optimizing Memory Mapping Using Deep Reinforcement
Learning" (Wang et al. 2023; below: the paper), section 4.1 and appendix A. Durations are whole picoseconds (``_ps``), sizes and
offsets are whole bytes, and ranges are half-open. *Boundary* ``t`` is the moment before step ``t``. A use is *fast* if it is
served from fast memory, otherwise *slow*.

:func:`sub_problem` builds a smaller problem from a part of a program. There are three sorts of smaller problems: segments of a
program, whose bounds are added up; neighbourhoods of a plan, in which local search may change the plan; and windows of steps,
on which policies are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from stowplan import files
from stowplan.document import ProblemDocument
from stowplan.errors import InputError

if TYPE_CHECKING:
    from stowplan.models.memory_mapping.plan import Plan  # noqa: F401

#: Largest number of uses in a table, which has one latency for each subset of them.
MAX_TABLE_USES = 8

T = TypeVar("T")

# Values of the fields of ``Problem`` that have these names, where they are explained.
Stalls = Literal["forbidden", "allowed"]
AliasRule = Literal["in_place", "uniform"]
Evictions = Literal["whole_steps", "between_steps"]
Prefetches = Literal["whole", "sliced"]

#: Fields that were added in later versions, with their default values. A field with its default is left out of the digest, so
#: that the digests of older problems stay the same.
_LATER_FIELDS = {"evictions": "whole_steps", "prefetches": "whole", "in_flight": ()}


class Use(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A read or a write of one tensor by one step. Uses are numbered through the whole program, in the order of the steps."""

    tensor: int
    """Number of the tensor."""
    is_output: bool
    """Whether the step writes the tensor; otherwise it reads it."""
    bytes: int
    """Number of bytes that the step reads or writes; less than the tensor's size if it accesses only a slice."""


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An affine function of the uses that are served from fast memory.

    Its value is ``base_ps + sum(slow_ps[u], u not fast) + sum(fast_ps[u], u fast)``, in picoseconds.
    """

    base_ps: int
    """Constant part."""
    slow_ps: tuple[int, ...]
    """Term of each use of the step if it is slow."""
    fast_ps: tuple[int, ...]
    """Term of each use of the step if it is fast."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The latency of a step for each subset of some of its uses.

    ``latency_ps[mask]`` is the latency if exactly those ``uses[i]`` are fast for which bit ``i`` of ``mask`` is set.
    """

    uses: tuple[int, ...]
    """Positions in the step's list of uses, at most :data:`MAX_TABLE_USES`."""
    latency_ps: tuple[int, ...]
    """Latency of one run in ps for each subset of ``uses``; shape ``[2 ** len(uses)]``."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One instruction of the schedule. The index of a step is its logical time."""

    name: str
    """Name of the instruction."""
    opcode: str
    """Its operation, for example ``dot``."""
    weight: int
    """How often the step runs: the product of the trip counts of the loops around it."""
    uses: tuple[Use, ...]
    """The reads and writes of the step, at most one of each for a tensor."""
    pieces: tuple[Piece, ...] = ()
    """The latency of one run is the largest value of these functions; empty if the step has a table."""
    table: Table | None = None
    """The latency of one run as a table; None if the step has pieces."""

    def latency_ps(self, fast: Sequence[bool]) -> int:
        """Latency of one run in ps; ``fast[i]`` says whether the step's i-th use is fast."""
        if self.table is not None:
            mask = sum(1 << bit for bit, use in enumerate(self.table.uses) if fast[use])
            return self.table.latency_ps[mask]
        return max(
            piece.base_ps + sum(f if is_fast else s for s, f, is_fast in zip(piece.slow_ps, piece.fast_ps, fast, strict=True))
            for piece in self.pieces
        )

    @property
    def floor_ps(self) -> int:
        """Lower bound on the latency of one run, over all choices of fast uses: the *supply* of the paper (appendix A)."""
        if self.table is not None:
            return min(self.table.latency_ps)
        return max(
            piece.base_ps + sum(min(s, f) for s, f in zip(piece.slow_ps, piece.fast_ps, strict=True)) for piece in self.pieces
        )


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A piece of storage. Values of the program that must share a buffer are members of the same tensor."""

    name: str
    """Name of the tensor, for people."""
    size: int
    """Size in bytes as stored, including the padding of tiles."""
    copy_in_ps: int
    """Duration of a copy from slow to fast memory on an idle channel."""
    copy_out_ps: int
    """Duration of a copy from fast to slow memory on an idle channel."""
    is_input: bool = False
    """Whether slow memory holds its content before the program starts."""
    is_output: bool = False
    """Whether slow memory must hold its content when the program ends."""
    members: tuple[str, ...] = ()
    """Names of the values that share this storage (the alias group), if there are several."""


class Loop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Steps ``[start, end)`` that run ``trip_count`` times."""

    start: int
    """First step of the loop."""
    end: int
    """First step after the loop."""
    trip_count: int
    """How often the steps run in one execution of the loop."""


class InFlight(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A tensor that an asynchronous operation reads or writes.

    The operation starts in step ``start`` and ends in step ``end - 1``. During all these steps the tensor stays at one offset
    of fast memory and is used there, or it is in slow memory only.
    """

    tensor: int
    """Number of the tensor."""
    start: int
    """Step in which the operation starts; it uses the tensor."""
    end: int
    """First step after the operation; step ``end - 1`` uses the tensor."""


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A memory-mapping problem. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    name: str
    """Name of the program, for people."""
    target: str
    """Name of the hardware target."""
    cost_model: str
    """Name of the cost model that gave the latencies."""
    capacity: int
    """Size of fast memory in bytes."""
    steps: tuple[Step, ...]
    """The steps in the order of the schedule."""
    tensors: tuple[Tensor, ...]
    """The tensors. Their *numbers* are their positions in this tuple."""
    loops: tuple[Loop, ...] = ()
    """Loops, each two of which are nested or disjoint."""
    alignment: int = 1
    """Offsets in fast memory are multiples of this number of bytes."""
    channels: int = 1
    """Number of copy channels. Each runs one copy at a time, at full bandwidth."""
    max_preloads: int = 0
    """Number of program inputs that may be in fast memory before the program starts."""
    stalls: Stalls = "allowed"
    """Whether the program may wait for copies (``allowed``) or not (``forbidden``). Such a wait is a *stall*."""
    alias_rule: AliasRule = "in_place"
    """``uniform``: all uses of a tensor with several members are fast or none is, as in the paper. ``in_place``: only the read
    and the write of an in-place update must be in the same memory."""
    evictions: Evictions = "whole_steps"
    """Whether a copy-out in an empty window keeps its bytes for one more step (``whole_steps``) or frees them between two steps
    (``between_steps``)."""
    prefetches: Prefetches = "whole"
    """Whether a copy-in may be split into slices, each of which occupies its own bytes from its own start on (``sliced``), or
    copies the whole tensor at once (``whole``)."""
    in_flight: tuple[InFlight, ...] = ()
    """Tensors that asynchronous operations use; empty if every operation ends before the next step begins."""
    notes: tuple[str, ...] = ()
    """Remarks of the reader about parts of the input that it could not represent exactly. No rule depends on them."""
    format: str = "stowplan.memory_mapping.problem"
    version: int = 1

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that plans depend on; name and notes are left out."""
        rules = msgspec.structs.asdict(self) | {"name": ""}
        del rules["notes"]
        for name, default in _LATER_FIELDS.items():
            if rules[name] == default:
                del rules[name]
        return files.digest(rules)

    @property
    def horizon(self) -> int:
        """Number of steps, called T in the documentation."""
        return len(self.steps)

    @cached_property
    def first_use(self) -> tuple[int, ...]:
        """Number of the first use of each step, followed by the number of all uses; shape ``[T + 1]``."""
        return (0, *accumulate(len(step.uses) for step in self.steps))

    @property
    def use_count(self) -> int:
        """Number of uses."""
        return self.first_use[-1]

    @cached_property
    def tensor_of_use(self) -> tuple[int, ...]:
        """Tensor of each use, by the use's number."""
        return tuple(use.tensor for step in self.steps for use in step.uses)

    @cached_property
    def step_of_use(self) -> tuple[int, ...]:
        """Step of each use, by the use's number."""
        return tuple(number for number, step in enumerate(self.steps) for _ in step.uses)

    def by_step(self, of_uses: Sequence[T]) -> Iterator[Sequence[T]]:
        """Split a sequence with one entry for each use into one part for each step."""
        return (of_uses[first:end] for first, end in pairwise(self.first_use))

    @cached_property
    def floors_ps(self) -> tuple[int, ...]:
        """Lower bound on the time of all runs of each step together."""
        return tuple(step.weight * step.floor_ps for step in self.steps)

    @cached_property
    def floor_until(self) -> tuple[int, ...]:
        """Lower bound on the time from the start of the program to each boundary, in ps; shape ``[T + 1]``."""
        return (0, *accumulate(self.floors_ps))

    @cached_property
    def all_slow_ps(self) -> int:
        """Objective of the plan that keeps everything in slow memory."""
        return sum(step.weight * step.latency_ps([False] * len(step.uses)) for step in self.steps)

    @cached_property
    def all_fast_ps(self) -> int:
        """Total latency if every use were served from fast memory. There may be no such plan."""
        return sum(step.weight * step.latency_ps([True] * len(step.uses)) for step in self.steps)

    @property
    def floor_ps(self) -> int:
        """Lower bound on the objective: the sum of the least latencies of all steps, each over all choices of its fast uses.

        It equals :attr:`all_fast_ps` if fast memory never makes a step slower.
        """
        return self.floor_until[-1]

    def normalised_return(self, objective_ps: int) -> float:
        """The return of a plan, ``R = (all_slow_ps - objective_ps) / (all_slow_ps - floor_ps)``; 1.0 if nothing can be gained.

        The paper uses the latency with all uses fast in place of ``floor_ps``. Both are equal if fast memory never makes a step
        slower. Otherwise, the program may be slower with all uses fast than with all uses slow, and R would have the wrong
        sign.
        """
        span = self.all_slow_ps - self.floor_ps
        return (self.all_slow_ps - objective_ps) / span if span else 1.0


def _check(problem: Problem) -> None:
    """Raise InputError if the problem breaks a rule."""

    def error(place: str, message: str) -> InputError:
        return InputError(message, place=place)

    def at_least(place: str, value: int, least: int) -> None:
        if value < least:
            raise error(place, f"found {value}, expected at least {least}")

    at_least("capacity", problem.capacity, 1)
    at_least("alignment", problem.alignment, 1)
    at_least("channels", problem.channels, 1)
    at_least("max_preloads", problem.max_preloads, 0)
    # Both options need one channel, on which the copies of a boundary run one after the other: a copy-in can then reuse the
    # bytes that a copy-out before it frees, and the slices of a copy together take as long as the whole copy.
    for name in ("evictions", "prefetches"):
        if problem.channels > 1 and getattr(problem, name) != _LATER_FIELDS[name]:
            raise error(name, f"found {getattr(problem, name)} with {problem.channels} channels, expected 1 channel")
    for number, tensor in enumerate(problem.tensors):
        place = f"tensors[{number}] ({tensor.name})"
        at_least(f"{place}.size", tensor.size, 1)
        at_least(f"{place}.copy_in_ps", tensor.copy_in_ps, 0)
        at_least(f"{place}.copy_out_ps", tensor.copy_out_ps, 0)
    tensor_count = len(problem.tensors)
    written = [tensor.is_input for tensor in problem.tensors]
    for number, step in enumerate(problem.steps):
        place = f"steps[{number}] ({step.name})"
        at_least(f"{place}.weight", step.weight, 1)
        seen: set[tuple[int, bool]] = set()
        for use in step.uses:
            if not 0 <= use.tensor < tensor_count:
                raise error(f"{place}.uses", f"found tensor {use.tensor}, expected 0 to {tensor_count - 1}")
            if (use.tensor, use.is_output) in seen:
                raise error(f"{place}.uses", f"found tensor {use.tensor} twice in one role, expected once")
            seen.add((use.tensor, use.is_output))
            at_least(f"{place}.uses.bytes", use.bytes, 0)
        for use in step.uses:
            if not use.is_output and not written[use.tensor]:
                tensor_name = problem.tensors[use.tensor].name
                raise error(f"{place}.uses", f"found a read of {tensor_name} before anything writes it")
        for use in step.uses:
            if use.is_output:
                written[use.tensor] = True
        _check_latency(place, step)
    for number, tensor in enumerate(problem.tensors):
        if tensor.is_output and not written[number]:
            raise error(f"tensors[{number}] ({tensor.name})", "found a program output that nothing writes")
    _check_loops(problem)
    for number, entry in enumerate(problem.in_flight):
        place = f"in_flight[{number}]"
        if not 0 <= entry.start < entry.end <= problem.horizon:
            raise error(place, f"found steps [{entry.start}, {entry.end}), expected a range within 0 to {problem.horizon}")
        for step in (problem.steps[entry.start], problem.steps[entry.end - 1]):
            if all(use.tensor != entry.tensor for use in step.uses):
                raise error(place, f"found tensor {entry.tensor}, expected one that {step.name} uses")


def _check_latency(place: str, step: Step) -> None:
    """Raise InputError if a step's pieces or table break a rule."""
    if bool(step.pieces) == (step.table is not None):
        raise InputError("found both or neither of pieces and table, expected one of them", place=place)
    for piece in step.pieces:
        if not len(piece.slow_ps) == len(piece.fast_ps) == len(step.uses):
            raise InputError(
                f"found {len(piece.slow_ps)} slow and {len(piece.fast_ps)} fast terms, expected {len(step.uses)} of each",
                place=f"{place}.pieces",
            )
    table = step.table
    if table is not None:
        if len(table.uses) > MAX_TABLE_USES or len(set(table.uses)) != len(table.uses):
            raise InputError(
                f"found {len(table.uses)} uses, expected at most {MAX_TABLE_USES} distinct", place=f"{place}.table.uses"
            )
        if any(not 0 <= use < len(step.uses) for use in table.uses):
            raise InputError(f"expected positions below {len(step.uses)}", place=f"{place}.table.uses")
        if len(table.latency_ps) != 1 << len(table.uses):
            raise InputError(
                f"found {len(table.latency_ps)} entries, expected {1 << len(table.uses)}", place=f"{place}.table.latency_ps"
            )
    if step.floor_ps < 0:
        raise InputError(f"found a least latency of {step.floor_ps} ps, expected at least 0", place=place)


def _check_loops(problem: Problem) -> None:
    """Raise InputError if a loop has a wrong range or trip count, or crosses another loop."""
    # After sorting, an enclosing loop comes before the loops inside it, so a stack finds loops that cross.
    open_loops: list[Loop] = []
    for number, loop in sorted(enumerate(problem.loops), key=lambda item: (item[1].start, -item[1].end)):
        place = f"loops[{number}]"
        if not 0 <= loop.start < loop.end <= problem.horizon:
            raise InputError(
                f"found steps [{loop.start}, {loop.end}), expected a range within 0 to {problem.horizon}", place=place
            )
        if loop.trip_count < 1:
            raise InputError(f"found a trip count of {loop.trip_count}, expected at least 1", place=place)
        while open_loops and open_loops[-1].end <= loop.start:
            open_loops.pop()
        if open_loops and loop.end > open_loops[-1].end:
            raise InputError("crosses another loop, expected loops nested or disjoint", place=place)
        open_loops.append(loop)


def sub_problem(
    problem: Problem,
    *,
    name: str,
    steps: Iterable[Step],
    tensors: Iterable[Tensor],
    loops: Iterable[Loop],
    boundary: Callable[[int], int],
    max_preloads: int,
    stalls: Stalls | None = None,
) -> Problem:
    """Build a smaller problem on the same machine. Asynchronous operations (:class:`InFlight`) are left out.

    Parameters
    ----------
    steps, tensors
        Steps and tensors of the small problem; the uses refer to its tensors (:func:`restricted`).
    loops
        Loops of the large problem that the small one keeps (:func:`loops_within`).
    boundary
        Maps a boundary of the large problem to one of the small problem.
    max_preloads
        Number of inputs that may be in fast memory at the start.
    stalls
        Whether stalls are allowed; None for the rule of the large problem.

    Raises
    ------
    InputError
        The small problem breaks a rule, for example because a step reads a tensor that nothing wrote before.
    """
    return replace(
        problem,
        name=name,
        steps=tuple(steps),
        tensors=tuple(tensors),
        loops=tuple(Loop(boundary(loop.start), boundary(loop.end), loop.trip_count) for loop in loops),
        max_preloads=max_preloads,
        in_flight=(),
        stalls=problem.stalls if stalls is None else stalls,
    )


def loops_within(problem: Problem, start: int, end: int) -> list[Loop]:
    """Loops whose steps all lie in ``[start, end)``."""
    return [loop for loop in problem.loops if start <= loop.start and loop.end <= end]


def restricted(step: Step, number: Mapping[int, int], fast: Sequence[bool] = ()) -> Step:
    """A step with only the uses of some tensors, for a smaller problem. Each use that is left out is fixed to be fast or slow.

    Parameters
    ----------
    number
        New number of each tensor whose uses are kept, by its old number.
    fast
        For each use of the step, whether it is fast. Only the entries of uses that are left out matter; the argument may be
        empty if all uses are kept.
    """
    positions = [place for place, use in enumerate(step.uses) if use.tensor in number]
    uses = tuple(replace(step.uses[place], tensor=number[step.uses[place].tensor]) for place in positions)
    if len(positions) == len(step.uses):
        return replace(step, uses=uses)
    if step.table is not None:
        return replace(step, uses=uses, table=_restricted_table(step.table, positions, fast))
    fixed = [place for place in range(len(step.uses)) if step.uses[place].tensor not in number]
    pieces = tuple(
        Piece(
            piece.base_ps + sum(piece.fast_ps[place] if fast[place] else piece.slow_ps[place] for place in fixed),
            tuple(piece.slow_ps[place] for place in positions),
            tuple(piece.fast_ps[place] for place in positions),
        )
        for piece in step.pieces
    )
    return replace(step, uses=uses, pieces=pieces)


def _restricted_table(table: Table, positions: list[int], fast: Sequence[bool]) -> Table:
    """The table restricted to its uses that are in ``positions``; ``fast`` says whether each of its other uses is fast.

    The uses of the new table are indices into ``positions``.
    """
    bits = [(bit, positions.index(use)) for bit, use in enumerate(table.uses) if use in positions]
    fixed_mask = sum(1 << bit for bit, use in enumerate(table.uses) if use not in positions and fast[use])
    latencies = []
    for mask in range(1 << len(bits)):
        row = fixed_mask | sum(1 << bit for number, (bit, _) in enumerate(bits) if mask >> number & 1)
        latencies.append(table.latency_ps[row])
    return Table(tuple(place for _, place in bits), tuple(latencies))


def border_step(name: str, tensors: Sequence[int], *, is_output: bool, slow_ps: int) -> Step:
    """A step that reads or writes tensors at the border of a smaller problem.

    It takes ``slow_ps`` picoseconds for each tensor that it uses in slow memory, and no time for a tensor in fast memory.
    """
    uses = tuple(Use(tensor, is_output, 0) for tensor in tensors)
    return Step(name, "border", 1, uses, (Piece(0, (slow_ps,) * len(uses), (0,) * len(uses)),))
