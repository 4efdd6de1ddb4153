"""Small problems cut out of a large one: what segments of a bound, neighbourhoods of a plan and windows for training share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from stowplan.models.memory_mapping.problem import Loop, Piece, Problem, Stalls, Step, Table, Tensor, Use


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
    """A problem on the same machine.

    Parameters
    ----------
    steps, tensors
        Its own; uses count its own tensors (:func:`restricted`).
    loops
        Of the large problem, those that it keeps (:func:`loops_within`).
    boundary
        From a boundary of the large problem to its own.
    stalls
        None for those of the large problem.
    """
    return replace(
        problem,
        name=name,
        steps=tuple(steps),
        tensors=tuple(tensors),
        loops=tuple(Loop(boundary(loop.start), boundary(loop.end), loop.trip_count) for loop in loops),
        max_preloads=max_preloads,
        stalls=problem.stalls if stalls is None else stalls,
    )


def loops_within(problem: Problem, start: int, end: int) -> list[Loop]:
    """Loops whose steps all lie in ``[start, end)``."""
    return [loop for loop in problem.loops if start <= loop.start and loop.end <= end]


def restricted(step: Step, number: Mapping[int, int], fast: Sequence[bool] = ()) -> Step:
    """A step with the uses of some tensors, which get new numbers.

    Parameters
    ----------
    number
        New number of each tensor that is kept.
    fast
        For each use of the step, whether it is fast; read for uses of other tensors only.
    """
    kept = [place for place, use in enumerate(step.uses) if use.tensor in number]
    uses = tuple(replace(step.uses[place], tensor=number[step.uses[place].tensor]) for place in kept)
    if len(kept) == len(step.uses):
        return replace(step, uses=uses)
    if step.table is not None:
        return replace(step, uses=uses, table=_restricted_table(step.table, kept, fast))
    decided = [place for place in range(len(step.uses)) if step.uses[place].tensor not in number]
    pieces = tuple(
        Piece(
            piece.base_ps + sum(piece.fast_ps[place] if fast[place] else piece.slow_ps[place] for place in decided),
            tuple(piece.slow_ps[place] for place in kept),
            tuple(piece.fast_ps[place] for place in kept),
        )
        for piece in step.pieces
    )
    return replace(step, uses=uses, pieces=pieces)


def _restricted_table(table: Table, kept: list[int], fast: Sequence[bool]) -> Table:
    """A table with the uses that are not kept decided; positions count among the kept ones."""
    bits = [(bit, kept.index(use)) for bit, use in enumerate(table.uses) if use in kept]
    given = sum(1 << bit for bit, use in enumerate(table.uses) if use not in kept and fast[use])
    latencies = []
    for mask in range(1 << len(bits)):
        row = given | sum(1 << bit for number, (bit, _) in enumerate(bits) if mask >> number & 1)
        latencies.append(table.latency_ps[row])
    return Table(tuple(place for _, place in bits), tuple(latencies))


def border_step(name: str, tensors: Sequence[int], *, is_output: bool, slow_ps: int) -> Step:
    """A step that reads or writes tensors and takes no time while they are fast, ``slow_ps`` for each that is not."""
    uses = tuple(Use(tensor, is_output, 0) for tensor in tensors)
    return Step(name, "border", 1, uses, (Piece(0, (slow_ps,) * len(uses), (0,) * len(uses)),))
