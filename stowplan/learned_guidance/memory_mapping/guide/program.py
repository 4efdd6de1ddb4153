"""A memory-mapping problem as flat arrays of accesses, the input of the learned guide.

Accesses are numbered as in hints (:mod:`stowplan.models.memory_mapping.hint`): tensor by tensor, each in step order. The *gap*
of an access is the time from it to its tensor's next access. An access or a use is *fast* if it is served from fast memory, and
*slow* if it is served from slow memory.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.models.memory_mapping.accesses import access_sequences
from stowplan.models.memory_mapping.problem import Problem, Step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

#: Classes of operations that the guide distinguishes; all others are in the last class, "other".
OPERATIONS: tuple[tuple[str, ...], ...] = (
    ("convolution", "dot"),
    ("fusion",),
    ("copy", "bitcast", "transpose", "reshape", "broadcast"),
    ("dynamic-slice", "dynamic-update-slice", "gather", "scatter"),
)

_CLASS = {opcode: number for number, opcodes in enumerate(OPERATIONS) for opcode in opcodes}


class Program(NamedTuple):
    """The arrays of a problem with T steps, N tensors and A accesses. Times are in ps, sizes in bytes."""

    capacity: float
    """Capacity of fast memory."""
    stalls: bool
    """Whether steps may wait for copies."""
    weight: Floats
    """[T] number of runs of each step."""
    slow: Floats
    """[T] latency if all uses are slow, times runs."""
    floor: Floats
    """[T] lower bound on the latency over all choices of which uses are fast, times runs."""
    operation: Ints
    """[T] class of the step's operation."""
    in_loop: Bools
    """[T] whether the step is in a loop."""
    size: Floats
    """[N] size of each tensor."""
    copy_in: Floats
    """[N] time of a copy-in."""
    copy_out: Floats
    """[N] time of a copy-out."""
    is_input: Bools
    """[N] whether the tensor is an input of the program."""
    is_output: Bools
    """[N] whether the tensor is an output of the program."""
    may_copy: Bools
    """[N] whether the tensor may be copied; a tensor that is used only inside one loop may not."""
    first: Ints
    """[N + 1] first access of each tensor."""
    tensor: Ints
    """[A] tensor of each access."""
    step: Ints
    """[A] step of each access."""
    reads: Bools
    """[A] whether the step reads the tensor."""
    writes: Bools
    """[A] whether the step writes the tensor."""
    bytes: Floats
    """[A] bytes that the step moves, times runs."""
    alone: Floats
    """[A] time that the step saves if only this access is fast, times runs."""
    final: Floats
    """[A] time that the step loses if this access is slow and all others are fast, times runs."""
    glued: Bools
    """[A] whether the tensor must be in the same memory at this access and at its next one."""
    dead: Bools
    """[A] whether staying until the next access gains nothing. This is so if there is no next access, or if it overwrites the
    tensor and a residency may begin with it, but never if the accesses are glued."""


def program(problem: Problem) -> Program:
    """The arrays of a problem; takes about 5 us for each use."""
    steps, tensors = problem.steps, problem.tensors
    counts = np.array([len(step.uses) for step in steps], np.int64)
    uses = [*chain.from_iterable(step.uses for step in steps)]
    of = np.array([use.tensor for use in uses], np.int64)
    is_output = np.array([use.is_output for use in uses], np.bool_)
    moved = np.array([use.bytes for use in uses], np.float64)
    at = np.repeat(np.arange(len(steps)), counts)
    order = np.lexsort((at, of))
    new = np.ones(len(uses), np.bool_)
    new[1:] = (np.diff(of[order]) != 0) | (np.diff(at[order]) != 0)
    access = np.empty(len(uses), np.int64)
    access[order] = np.cumsum(new) - 1
    tensor, step = of[order][new], at[order][new]
    total = len(tensor)
    reads, writes = (np.bincount(access, weights=kind, minlength=total) > 0 for kind in (~is_output, is_output))
    weight = np.array([step.weight for step in steps], np.float64)
    slow, floor, alone, final = _latencies(problem, access, total)
    first = np.searchsorted(tensor, np.arange(len(tensors) + 1))
    glued, dead, may_copy = _gaps(problem, tensor, reads, writes, first)
    in_loop = np.zeros(len(steps), np.bool_)
    for loop in problem.loops:
        in_loop[loop.start : loop.end] = True
    return Program(
        capacity=float(problem.capacity),
        stalls=problem.stalls == "allowed",
        weight=weight,
        slow=slow * weight,
        floor=floor * weight,
        operation=np.array([_CLASS.get(step.opcode, len(OPERATIONS)) for step in steps], np.int64),
        in_loop=in_loop,
        size=np.array([tensor.size for tensor in tensors], np.float64),
        copy_in=np.array([tensor.copy_in_ps for tensor in tensors], np.float64),
        copy_out=np.array([tensor.copy_out_ps for tensor in tensors], np.float64),
        is_input=np.array([tensor.is_input for tensor in tensors], np.bool_),
        is_output=np.array([tensor.is_output for tensor in tensors], np.bool_),
        may_copy=may_copy,
        first=first,
        tensor=tensor,
        step=step,
        reads=reads,
        writes=writes,
        bytes=np.bincount(access, weights=moved, minlength=total) * weight[step],
        alone=alone * weight[step],
        final=final * weight[step],
        glued=glued,
        dead=dead,
    )


def _latencies(problem: Problem, access: Ints, total: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Computes the arrays ``slow``, ``floor``, ``alone`` and ``final`` of :class:`Program`, but for a single run of each step.

    A step has either a latency table or *pieces*. The table has the latency for each set of uses that may be fast: bit i of the
    index of an entry is 1 if use i of the table is fast. Without a table, the latency is the largest value of the pieces. A
    piece is an affine function: the sum of a constant and one term for every use of the step. Each term has two values, one if
    the use is fast and one if it is slow. ``access`` has the access of each use, and ``total`` is the number of accesses.
    """
    steps = problem.steps
    slow, floor = np.zeros(len(steps)), np.zeros(len(steps))
    alone, final = np.zeros(total), np.zeros(total)
    pieces = [(number, piece) for number, step in enumerate(steps) for piece in step.pieces]
    first_use = np.cumsum([0, *(len(step.uses) for step in steps)])
    for number, step in enumerate(steps):
        if step.table is not None:
            _table(step, access[first_use[number] : first_use[number + 1]], number, slow, floor, alone, final)
    if not pieces:
        return slow, floor, alone, final
    step_of = np.array([number for number, _ in pieces], np.int64)
    base = np.array([piece.base_ps for _, piece in pieces], np.float64)
    width = np.array([len(piece.slow_ps) for _, piece in pieces], np.int64)
    terms_slow = np.fromiter(chain.from_iterable(piece.slow_ps for _, piece in pieces), np.float64)
    terms_fast = np.fromiter(chain.from_iterable(piece.fast_ps for _, piece in pieces), np.float64)
    owner = np.repeat(np.arange(len(pieces)), width)
    # Uses are numbered step by step, and a piece has its terms in the order of the step's uses: term k is that of the k-th use.
    place = np.arange(len(owner)) - np.repeat(np.cumsum(width) - width, width)
    of = access[first_use[step_of[owner]] + place]
    all_slow = base + np.bincount(owner, terms_slow, len(pieces))
    all_fast = base + np.bincount(owner, terms_fast, len(pieces))
    least = base + np.bincount(owner, np.minimum(terms_slow, terms_fast), len(pieces))
    for into, values in ((slow, all_slow), (floor, least)):
        largest = np.full(len(steps), -np.inf)
        np.maximum.at(largest, step_of, values)
        into[:] = np.where(np.isfinite(largest), largest, into)
    fastest = np.full(len(steps), -np.inf)
    np.maximum.at(fastest, step_of, all_fast)
    # A step that reads and writes a tensor in place has two terms for one access.
    key = owner * total + of
    order = np.argsort(key, kind="stable")
    is_first = np.diff(key[order], prepend=-1) != 0
    change = np.bincount(np.cumsum(is_first)[np.argsort(order)] - 1, terms_fast - terms_slow)
    key = key[order][is_first]
    piece, which = key // total, key % total
    # Latency of the step if only this access is fast, and if only this access is slow.
    only_fast, only_slow = np.full(total, -np.inf), np.full(total, -np.inf)
    np.maximum.at(only_fast, which, all_slow[piece] + change)
    np.maximum.at(only_slow, which, all_fast[piece] - change)
    where = np.zeros(total, np.int64)
    where[which] = step_of[piece]
    alone[which] = slow[where[which]] - only_fast[which]
    final[which] = only_slow[which] - fastest[where[which]]
    return slow, floor, alone, final


def _table(step: Step, access: Ints, number: int, slow: Floats, floor: Floats, alone: Floats, final: Floats) -> None:
    """Writes the results of :func:`_latencies` for a step with a latency table; ``access`` has the access of each of its
    uses."""
    assert step.table is not None
    latency = step.table.latency_ps
    slow[number], floor[number] = latency[0], min(latency)
    masks: dict[int, int] = {}
    for bit, use in enumerate(step.table.uses):
        masks[int(access[use])] = masks.get(int(access[use]), 0) | 1 << bit
    for which, mask in masks.items():
        alone[which] = latency[0] - latency[mask]
        final[which] = latency[(len(latency) - 1) & ~mask] - latency[-1]


def _gaps(problem: Problem, tensor: Ints, reads: Bools, writes: Bools, first: Ints) -> tuple[Bools, Bools, Bools]:
    """Which gaps are glued, which gaps are dead, and which tensors may be copied."""
    following = np.zeros(len(tensor), np.bool_)
    following[:-1] = tensor[1:] == tensor[:-1]
    overwritten = np.zeros(len(tensor), np.bool_)
    overwritten[:-1] = (writes & ~reads)[1:]
    glued, dead = np.zeros(len(tensor), np.bool_), ~following | overwritten
    may_copy = np.ones(len(problem.tensors), np.bool_)
    # Only loops and asynchronous operations glue accesses or forbid copies.
    if problem.loops or problem.in_flight:
        for sequence in access_sequences(problem):
            may_copy[sequence.tensor] = sequence.may_copy
            for j in range(1, len(sequence)):
                here = first[sequence.tensor] + j - 1
                glued[here] = sequence.is_glued(j)
                dead[here] = sequence.is_dead(j)
    return glued, dead & ~glued, may_copy
