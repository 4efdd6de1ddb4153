"""Lower bounds and fractional or integral assignments from the linear relaxation of memory mapping.

The bound holds for every valid plan, in the stall mode of the problem. It scales to tens of thousands of uses, where the
complete model (:mod:`~stowplan.models.memory_mapping.cpsat`) does not. What the relaxation says, and what it leaves out, stands
in :mod:`~stowplan.models.memory_mapping.milp_model`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.milp_model import RelaxationModel
from stowplan.models.memory_mapping.milp_search import Effort, RelaxationSearch
from stowplan.models.memory_mapping.problem import Problem

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Relaxation:
    """What the relaxation found. Values are fractions in [0, 1]; 0 or 1 where integers were asked for and found."""

    bound_ps: int
    """Proven lower bound on the objective of every valid plan."""
    fast: FloatArray
    """How much each use is served from fast memory; shape ``[uses]``."""
    keep: tuple[FloatArray, ...]
    """For each tensor and access: how much it was kept since the access before (or preloaded, at the first); ``[accesses]``."""
    copy_in: tuple[FloatArray, ...]
    """For each tensor and access: how much it was copied in before the access and after the one before; ``[accesses]``."""
    copy_out: tuple[FloatArray, ...]
    """For each tensor and gap: how much of its content is copied out by the end of the gap; ``[accesses + 1]``."""
    lp_seconds: float
    rounds: int
    """Linear programs solved."""
    windows: int
    """Rows of the copy channels that were needed."""
    optimal: bool
    """Solved to the end, all windows included: no better bound can come from this relaxation."""


def relaxation_bound(
    problem: Problem,
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    integer: bool = False,
    iteration_limit: int | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    sequences: Sequence[TensorAccesses] | None = None,
) -> Relaxation:
    """Bound a problem from below by its linear relaxation.

    Parameters
    ----------
    problem
        Any problem, in either stall mode.
    time_limit
        Seconds, building included. The best bound by then is returned, at worst the sum of the steps' least latencies.
    seed
        Random seed of HiGHS.
    integer
        Afterwards solve the MILP too: a better bound, and an integral assignment.
    iteration_limit
        Simplex iterations of each linear program (and nodes of the MILP). With it, and a ``time_limit`` that does not bind,
        equal calls give equal results.
    on_bound
        Called with every better bound, in ps.
    should_stop
        Asked now and then; True ends the search early.
    sequences
        The problem's access sequences, where the caller has them.
    """
    effort = Effort(time.monotonic() + time_limit, seed, iteration_limit, iteration_limit, should_stop)
    search = RelaxationSearch(RelaxationModel(problem, sequences), effort, on_bound)
    search.linear()
    if integer:
        search.integral()
    return _result(search)


def _result(search: RelaxationSearch) -> Relaxation:
    """Everything, in terms of the problem."""
    model = search.model
    values = search.values if search.values is not None else np.zeros(len(model.cost))

    def total(columns: Sequence[int | None]) -> float:
        return float(min(1.0, max(0.0, sum(values[column] for column in columns if column is not None))))

    keep, copy_in, copy_out = [], [], []
    for sequence, columns, out in zip(model.sequences, model.access, model.out, strict=True):
        keep.append(np.array([
            total(c.landed) if sequence.is_glued(j) else total([c.keep, c.preload]) for j, c in enumerate(columns)
        ]))  # fmt: skip
        copy_in.append(np.array([total([c.copy_in, c.in_flight]) for c in columns]))
        brought = np.zeros(len(sequence) + 1)
        for (_, gap), column in out.items():
            brought[gap] = total([column])
        copy_out.append(brought)
    return Relaxation(
        bound_ps=search.bound,
        fast=np.array([total(columns) for columns in model.fast]),
        keep=tuple(keep),
        copy_in=tuple(copy_in),
        copy_out=tuple(copy_out),
        lp_seconds=search.seconds,
        rounds=search.rounds,
        windows=search.window_count,
        optimal=search.optimal,
    )
