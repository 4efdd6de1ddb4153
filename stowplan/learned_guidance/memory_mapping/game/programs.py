"""Programs to play MMapGame on: excerpts of programs with other capacities and copy times; and a small demo problem.

A policy learns on programs of a few hundred moves. Excerpts of large programs are of this size, and they are realistic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import accumulate

import numpy as np
from msgspec.structs import replace

from stowplan.errors import UsageError
from stowplan.learned_guidance.memory_mapping.game.game import moves_of
from stowplan.models.memory_mapping.accesses import Boundaries, TensorAccesses, access_sequences
from stowplan.models.memory_mapping.problem import (
    Loop,
    Problem,
    Tensor,
    loops_within,
    restricted,
    sub_problem,
)

#: Shortest and longest excerpt, as parts of the requested number of moves.
LENGTHS = 0.5, 1.0

#: Smallest and largest capacity of a variant, as parts of its peak of live bytes.
CAPACITIES = 0.1, 0.9

#: Part of the variants that keep the capacity of their program.
SAME_CAPACITY = 0.3

#: Smallest and largest factor of a variant's copy times.
COPY_TIMES = 0.5, 2.0

#: Excerpts in which fast memory could save less than this part of the time are left out, because an agent learns nothing there.
LEAST_GAIN = 0.01


def excerpt(problem: Problem, start: int, end: int) -> Problem:
    """The steps ``[start, end)`` as a problem, widened so that no loop is cut; asynchronous operations become synchronous.

    Tensors that are written before the excerpt and needed in it are inputs; those that are written in it and needed later are
    outputs. At the borders everything live is thus in slow memory. Plans of consecutive excerpts therefore form a plan of the
    whole program. If stalls are forbidden, its objective is the sum of theirs. Raises UsageError if the range is empty or not
    within the program.
    """
    if not 0 <= start < end <= problem.horizon:
        raise UsageError(f"found steps [{start}, {end}), expected a range within 0 to {problem.horizon}")
    boundaries = Boundaries(problem.horizon, problem.loops)
    start, end = int(boundaries.prev[start]), int(boundaries.next[end])
    number: dict[int, int] = {}
    tensors: list[Tensor] = []
    for sequence in access_sequences(problem):
        if any(start <= access.step < end for access in sequence.accesses):
            number[sequence.tensor] = len(tensors)
            tensors.append(_at_borders(problem.tensors[sequence.tensor], sequence, problem.loops, start, end))
    return sub_problem(
        problem,
        name=f"{problem.name}[{start}:{end}]",
        steps=[restricted(step, number) for step in problem.steps[start:end]],
        tensors=tensors,
        loops=loops_within(problem, start, end),
        boundary=lambda boundary: boundary - start,
        # Only an excerpt from the start of the program can have preloads.
        max_preloads=0 if start else problem.max_preloads,
    )


def with_capacity(problem: Problem, capacity: int) -> Problem:
    """The program with another capacity of fast memory, in bytes; raises InputError if the problem does not allow it."""
    return replace(problem, name=f"{problem.name} in {capacity} bytes", capacity=capacity)


def with_copy_times(problem: Problem, factor: float) -> Problem:
    """The program with copies that take ``factor`` times as long, rounded to whole picoseconds. Raises UsageError if the factor
    is not more than 0."""
    if not factor > 0:
        raise UsageError(f"found a factor of {factor}, expected more than 0")
    tensors = tuple(
        replace(tensor, copy_in_ps=round(factor * tensor.copy_in_ps), copy_out_ps=round(factor * tensor.copy_out_ps))
        for tensor in problem.tensors
    )
    return replace(problem, name=f"{problem.name} with copies x {factor:.3g}", tensors=tensors)


def as_played(problem: Problem) -> Problem:
    """The program under the rules of the game: no stalls, no preloads, one channel. Plans of this program are the best
    demonstrations, because the game can follow them exactly."""
    return replace(problem, stalls="forbidden", max_preloads=0, channels=1)


def peak_live_bytes(problem: Problem) -> int:
    """The largest sum of sizes of tensors that are between their first and last use in a step; no plan can use more memory."""
    change = [0] * (problem.horizon + 1)
    for sequence in access_sequences(problem):
        if sequence.accesses:
            change[sequence.accesses[0].step] += sequence.size
            change[sequence.accesses[-1].step + 1] -= sequence.size
    return max(accumulate(change), default=0)


def training_variants(problem: Problem, rng: np.random.Generator, *, moves: int = 400, count: int = 1) -> Iterator[Problem]:
    """Yield ``count`` random excerpts of up to about ``moves`` moves, with other capacities and copy times.

    A short program is used as a whole. At most ten times as many excerpts are drawn, so there may be fewer than ``count`` if
    fast memory can save time in hardly any of them; there are none for a program without moves.
    """
    move_steps = [move.start for move in moves_of(problem)]
    for _ in range(10 * count):
        if count == 0 or not move_steps:
            return
        variant = _random_excerpt(problem, move_steps, moves, rng)
        if variant.all_slow_ps - variant.floor_ps < LEAST_GAIN * variant.all_slow_ps:
            continue
        if rng.random() >= SAME_CAPACITY:
            most = min(problem.capacity, peak_live_bytes(variant))
            wanted = int(rng.uniform(*CAPACITIES) * most)
            variant = with_capacity(variant, max(problem.alignment, wanted // problem.alignment * problem.alignment))
        if rng.random() >= SAME_CAPACITY:
            variant = with_copy_times(variant, float(np.exp(rng.uniform(*np.log(COPY_TIMES)))))
        count -= 1
        yield variant


def _random_excerpt(problem: Problem, move_steps: Sequence[int], moves: int, rng: np.random.Generator) -> Problem:
    """A random excerpt with about half of ``moves`` to ``moves`` moves. ``move_steps`` has the first step of each move,
    ascending."""
    length = int(rng.uniform(*LENGTHS) * moves)
    if length >= len(move_steps):
        return problem
    first = int(rng.integers(0, len(move_steps) - length + 1))
    start = move_steps[first]
    # An excerpt has at least one step, however many moves that step has.
    return excerpt(problem, start, max(start + 1, move_steps[first + length - 1]))


def _at_borders(tensor: Tensor, sequence: TensorAccesses, loops: Sequence[Loop], start: int, end: int) -> Tensor:
    """The tensor as input or output of an excerpt that uses it."""
    inside = [number for number, access in enumerate(sequence.accesses) if start <= access.step < end]
    first, last = inside[0], inside[-1]
    is_written_before = tensor.is_input or sequence.last_write[first] >= 0
    is_input = is_written_before and not sequence.is_dead(first)
    is_written_inside = sequence.last_write[last + 1] >= first
    is_needed_later = tensor.is_output if last + 1 == len(sequence) else not sequence.is_dead(last + 1)
    is_output = is_written_inside and is_needed_later
    # If all of its uses in the excerpt are in a loop, it must remain a tensor from outside the loop, as inputs and outputs are.
    begins, ends = sequence.accesses[first].step, sequence.accesses[last].step
    if sequence.may_copy and any(loop.start <= begins and ends < loop.end for loop in loops):
        # An input has content, which may be overwritten before it is read. If that is not certain, it must not have content.
        is_input, is_output = is_input or sequence.is_dead(first), is_output or not (is_input or sequence.is_dead(first))
    return replace(tensor, is_input=is_input, is_output=is_output)


def demo_problem() -> Problem:
    """A small program for trying MMapGame without any file: a training step of four dense layers, with 34 moves.

    Fast memory is scarce, steps are limited by slow memory, and copies share one channel, so that all three actions are useful.
    ``benchmarks/lib/memory_mapping/demo.py`` generated it.
    """
    return Problem.load(str(resources.files(__package__) / "demo.json"))
