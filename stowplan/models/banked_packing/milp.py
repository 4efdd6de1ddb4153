"""The relaxation of banked packing as a MILP: buffers are assigned to banks, but get no offsets.

It is the same relaxation as in :mod:`stowplan.models.banked_packing.cpsat`: the buffers that are live in a bank at the same
time have no more bytes than the bank. A *cut* is a bank with a set of buffers that do not fit into it together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stowplan.models.banked_packing.cpsat import Cut
from stowplan.models.banked_packing.plan import Plan, plan_of
from stowplan.models.banked_packing.problem import Problem, placement_of
from stowplan.models.mip.matrix import MatrixModel, Program, proven
from stowplan.models.mip.solve import solve as solve_matrix
from stowplan.models.outcome import Outcome


@dataclass(frozen=True)
class Model:
    """The matrix of a relaxation, and the meaning of its columns."""

    problem: Problem
    """The problem that the matrix was built from."""
    matrix: MatrixModel
    """The relaxation as a matrix with scaled costs."""
    pairs: tuple[tuple[int, int], ...]
    """(buffer, bank) of each column."""
    unit: int
    """The cost that corresponds to 1 in the objective of the matrix."""


def build(problem: Problem, cuts: Sequence[Cut] = ()) -> Model:
    """Build the matrix: a binary column for each buffer and each bank that may hold it.

    There are three sorts of rows:

    - For each buffer, a row requires that it is in exactly one bank.
    - A *maximal live set* has all buffers that are live at some moment, and is no part of a larger such set. For each bank and
      each maximal live set, a row requires that the set's buffers in the bank fit there.
    - For each cut, a row excludes that all of its buffers are in its bank.

    KeyError is raised if a buffer of a cut may not be placed in the cut's bank (:attr:`Problem.allowed`).
    """
    pairs = tuple((number, bank) for number, banks in enumerate(problem.allowed) for bank in banks)
    costs = [problem.cost(number, bank) for number, bank in pairs]
    unit = max([1, *costs])
    program = Program()
    column = {pair: program.column(cost=cost / unit) for pair, cost in zip(pairs, costs, strict=True)}
    for number, banks in enumerate(problem.allowed):
        program.add_row([(column[number, bank], 1.0) for bank in banks], 1.0, 1.0)
    placement = placement_of(problem)
    for live in placement.maximal_live_sets:
        for bank, (capacity, _) in enumerate(placement.memories):
            terms = [(column[number, bank], size) for number, size in placement.inside(bank, live)]
            if sum(size for _, size in terms) > capacity:
                program.add_row([(at, size / capacity) for at, size in terms], upper=1.0)
    for bank, numbers in cuts:
        program.add_row([(column[number, bank], 1.0) for number in numbers], upper=len(numbers) - 1.0)
    return Model(problem, program.model(problem.name or "banked_packing"), pairs, unit)


def solve(
    problem: Problem,
    *,
    cuts: Sequence[Cut] = (),
    solver: str = "highs",
    time_limit: float,
    seed: int = 0,
    node_limit: int | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Outcome[Plan]:
    """Find a cheapest assignment of buffers to banks such that the live buffers never exceed a bank's capacity.

    Parameters
    ----------
    cuts
        Sets of buffers that do not fit into a bank together.
    solver, time_limit, seed, node_limit, should_stop
        Passed on to :func:`stowplan.models.mip.solve.solve`.

    Returns
    -------
    Outcome
        The assignment as a plan in which all offsets are 0, which need not be valid, and a proven lower bound on the cost of
        any plan.

    Raises
    ------
    KeyError
        A cut has a buffer that may not be placed in the bank of the cut.
    UsageError
        The solver is not available.
    """
    if any(not banks for banks in problem.allowed):
        return Outcome("infeasible", None, None)
    built = build(problem, cuts)
    outcome = solve_matrix(
        built.matrix, solver, time_limit=time_limit, seed=seed, node_limit=node_limit, should_stop=should_stop
    )
    total_cost = float(built.matrix.cost.sum())
    bound = None if outcome.bound is None else proven(outcome.bound, total_cost, unit=built.unit)
    if outcome.values is None:
        return Outcome("infeasible" if outcome.status == "infeasible" else "unknown", None, bound)
    banks = [0] * len(problem.buffers)
    for at in np.flatnonzero(outcome.values > 0.5):
        number, bank = built.pairs[at]
        banks[number] = bank
    plan = plan_of(problem, banks, [0] * len(banks))
    return Outcome("optimal" if outcome.status == "optimal" else "feasible", plan, bound)
