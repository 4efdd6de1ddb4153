"""The staged program: a MILP that bounds the added cost by looking at several moments together, and gives drafts of plans.

A *chain* is a list of operators each of which needs the one before. In every plan, the operators of a chain run for the first
time in this order. Their first runs are *moments* that divide the plan into *stages*. For each stage, the program decides which
operators run in it and which storages are live when the next stage begins. A *value* is a tensor that is an input or that an
operator writes, and a *storage* is a value with bytes of its own. The program counts one run of an operator in a stage at most
and does not decide the order within the stage. Its constraints are:

* A value that a stage reads is written in that stage, or is live when the stage begins.
* A storage that is live when a stage begins is written in the stage before, or was live when that stage began.
* At the beginning of each stage, the live storages and the bytes of the chain's operator fit into the limit.

Every plan within the limit is a solution of the program whose cost is no larger than that of the plan, since a stage counts
each operator at most once. The optimum is therefore a lower bound on the added cost of every plan. A solution is only a
*draft* of a plan, because memory within the stages is not limited.

With a stage for every operator of a fixed order, and with the memory within stages, this would be the program of Checkmate
(Jain et al. 2020). Here a few moments are usually enough, and a draft shows at which further moment the limit is exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stowplan.models.mip.matrix import Options, Program, proven
from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.moments import in_stages
from stowplan.models.rematerialization.structure import Structure

#: Largest number of nonzero coefficients of a program. For larger ones HiGHS needs minutes for the linear relaxation alone.
MOST_TERMS = 1_500_000


@dataclass(frozen=True)
class Draft:
    """The result of solving one staged program: a bound, and the best solution as a draft of a plan."""

    bound: int | None
    """Proven lower bound on the added cost of plans within the limit; None if nothing is proven."""
    cost: int | None
    """Added cost of the best solution of the program; None if there is none."""
    sequence: list[int]
    """A sequence of runs for that solution, in which recomputations are as late as possible. It may exceed the limit."""
    live: tuple[frozenset[int], ...] = ()
    """[moments] storages that are live at each moment, without those that its operator reads and writes; empty if there is no
    solution."""
    is_infeasible: bool = False
    """Whether it is proven that no plan is within the limit."""


class Stages:
    """The staged program of a chain.

    Parameters
    ----------
    moments
        Predecessors, successors and loads at the first run of each operator.
    limit
        Limit in bytes on the load at the first run of each operator of the chain.
    chain
        Operators each of which needs the one before. A reservation that depends on the bytes that are live at another operator
        is taken into account completely only if that operator is in the chain, too. A *reservation* is memory that something
        outside the graph occupies (:class:`~.problem.Reservation`).
    """

    def __init__(
        self,
        structure: Structure,
        moments: Moments,
        limit: int,
        chain: Sequence[int],
    ):
        self.structure, self.moments, self.chain = structure, moments, chain
        self.program = Program()
        self.runs = [self._columns(stage) for stage in range(len(chain) + 1)]
        """[stages][operators] column that says whether the operator runs in the stage; -1 if it cannot."""
        self._operator_storages = [moments.retained(op) | {*structure.writes[op]} for op in chain]
        self._live = [self._storages(at) for at in range(len(chain))]
        """For each moment, the column of each storage that may be live there, without those that the moment's operator reads
        and writes."""
        for at, op in enumerate(chain):
            self._fit(moments.available_bytes(op, limit), [(at, 1)])
            for reservation in moments.in_force(op):
                if (of := reservation.of) is not None and of != op and of in chain:
                    self._fit(limit - reservation.size, [(at, 1), (chain.index(of), reservation.times)])
        self._every_operator()
        kept = [structure.root[value] for value, stays in enumerate(structure.kept) if stays]
        for at, op in enumerate(chain):
            for root in moments.read[op]:
                self._is_there(at, root, structure.writer[root], None)
            for root, column in self._live[at].items():
                self._is_there(at, root, structure.writer[root], column)
        for stage, row in enumerate(self.runs):
            self._needs(stage, row)
            if 1 <= stage < len(chain):
                self._afterwards(stage)
        for root in kept:
            self._is_there(len(chain), root, structure.writer[root], None)

    def _columns(self, stage: int) -> list[int]:
        """Columns of the operators that can run in a stage; -1 for those that first run later or may not run any more."""
        cost, later = self.structure.cost, 0
        if stage < len(self.chain):
            later = self.moments.after[self.chain[stage]] | 1 << self.chain[stage]
        if stage:
            must_have_run = self.moments.before[self.chain[stage - 1]] | 1 << self.chain[stage - 1]
            for first, second in self.structure.problem.precedences:
                later |= (must_have_run >> second & 1) << first
        return [-1 if later >> op & 1 else self.program.column(cost=cost[op]) for op in range(self.structure.ops)]

    def _storages(self, at: int) -> dict[int, int]:
        """Columns of the storages that may be live at a moment, by storage."""
        structure, op = self.structure, self.chain[at]
        stays = {structure.root[value] for value, kept in enumerate(structure.kept) if kept}
        columns = {}
        for root in self.moments.storages:
            writer = structure.writer[root]
            if root in self._operator_storages[at] or (writer >= 0 and self.moments.after[op] >> writer & 1):
                continue
            # An input that stays to the end is live at every moment.
            columns[root] = self.program.column(lower=float(writer < 0 and root in stays))
        return columns

    def _fit(self, most: int, parts: Iterable[tuple[int, int]]) -> None:
        """Limit the sum of the bytes that are live at some moments, each multiplied by a factor.

        Parameters
        ----------
        most
            The limit in bytes.
        parts
            Index of each moment in the chain, and the factor.
        """
        terms = []
        for at, times in parts:
            most -= times * self.moments.own_bytes(self.chain[at])
            terms += [(column, times * self.structure.size[root]) for root, column in self._live[at].items()]
        self.program.add_row(terms, upper=most)

    def tie(self, at: int, roots: Sequence[int]) -> None:
        """Add constraints: either all of the storages ``roots`` are live at moment ``at``, an index in the chain, or none of
        them is. Raises KeyError if one of them cannot be live there, or if the moment's operator reads or writes it."""
        columns = [self._live[at][root] for root in roots]
        for one, other in pairwise(columns):
            self.program.add_row([(one, 1.0), (other, -1.0)], lower=0, upper=0)

    def _every_operator(self) -> None:
        """Require that every operator runs before the first moment that needs it, and that an operator that may run only once
        runs in one stage."""
        for op in range(self.structure.ops):
            columns = [row[op] for row in self.runs if row[op] >= 0]
            until = next((at for at, moment in enumerate(self.chain) if self.moments.before[moment] >> op & 1), len(self.chain))
            first = [row[op] for row in self.runs[: until + 1] if row[op] >= 0]
            self.program.add_row(((column, 1.0) for column in first), lower=1)
            if self.structure.once[op] and len(columns) > 1:
                self.program.add_row(((column, 1.0) for column in columns), upper=1)

    def _is_there(self, stage: int, root: int, writer: int, needed: int | None) -> None:
        """Require that a storage is live when a stage begins or that ``writer`` runs in the stage.

        The requirement applies if column ``needed`` is 1; with None it always applies.
        """
        terms = []
        if stage == 0 and self.structure.writer[root] < 0:
            return
        if stage:
            if root in self._operator_storages[stage - 1]:
                return
            if root in self._live[stage - 1]:
                terms.append((self._live[stage - 1][root], 1.0))
        if writer >= 0 and self.runs[stage][writer] >= 0:
            terms.append((self.runs[stage][writer], 1.0))
        if needed is not None:
            terms.append((needed, -1.0))
        self.program.add_row(terms, lower=float(needed is None))

    def _needs(self, stage: int, columns: Sequence[int]) -> None:
        """Require the values that operators of a stage read; ``columns`` say which operators run in it."""
        structure = self.structure
        for op, column in enumerate(columns):
            # The values that the operator of the moment needs have been required already.
            if column >= 0 and not (stage and op == self.chain[stage - 1]):
                for value in structure.needs[op]:
                    root, writer = structure.root[value], structure.writer[value]
                    self._is_there(stage, root, writer, column)
                    if structure.writer[root] < 0 <= writer:
                        # An input exists from the start, but a view of it only after the operator that writes the view.
                        earlier = [row[writer] for row in self.runs[: stage + 1] if row[writer] >= 0]
                        self.program.add_row([*((run, 1.0) for run in earlier), (column, -1.0)], lower=0)

    def _afterwards(self, stage: int) -> None:
        """Add redundant constraints that tighten the linear relaxation.

        Consider this stage and all later ones as one. An operator that runs in any of them needs values that were live when
        this stage began or that are written in one of these stages. For integers this follows from the other constraints. In
        the relaxation, fractions of an operator could be spread over several stages, each of which would need only a fraction
        of its operands. With these constraints, the relaxation is at least as tight as that of any single moment.
        """
        structure, program, moment = self.structure, self.program, self.chain[stage - 1]
        columns = []
        for op in range(structure.ops):
            op_runs = [row[op] for row in self.runs[stage:] if row[op] >= 0]
            must = op == moment or self.moments.after[moment] >> op & 1
            columns.append(program.column(lower=float(must), integer=False))
            program.add_row([*((column, 1.0) for column in op_runs), (columns[-1], -1.0)], lower=0)
            if not must:
                for column in op_runs:
                    program.add_row([(columns[-1], 1.0), (column, -1.0)], lower=0)
        needs = {(value, columns[op]) for op in range(structure.ops) if op != moment for value in structure.needs[op]}
        kept: set[tuple[int, int | None]] = {
            (structure.root[value], None) for value, stays in enumerate(structure.kept) if stays
        }
        for value, needed in sorted(needs) + sorted(kept):
            root, writer = structure.root[value], structure.writer[value]
            if root in self._operator_storages[stage - 1]:
                continue
            terms = [(columns[writer], 1.0)] if writer >= 0 else []
            if root in self._live[stage - 1]:
                terms.append((self._live[stage - 1][root], 1.0))
            if needed is not None:
                terms.append((needed, -1.0))
            program.add_row(terms, lower=float(needed is None))

    def solve(
        self,
        *,
        time_limit: float,
        seed: int = 0,
        gap: float = 0.0,
        node_limit: int | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Draft:
        """Minimize the added cost with HiGHS.

        Parameters
        ----------
        time_limit
            Limit in seconds.
        gap
            The search ends when the cost of the draft exceeds the bound by this amount at most.
        node_limit
            Largest number of nodes of branch and bound. With it, and unless the time limit ends the search, equal calls give
            equal results.
        should_stop
            The search ends when this returns True.

        Returns
        -------
        Draft
            If the program has more than :data:`MOST_TERMS` coefficients, it is not solved: the draft proves nothing and has no
            solution.
        """
        from stowplan.models.mip import with_highs

        structure, program = self.structure, self.program
        if len(program.rows.columns) > MOST_TERMS:
            return Draft(None, None, [])
        once, unit = sum(structure.cost), float(max(1, *structure.cost))
        matrix, _ = program.scaled("stages", np.ones(len(program.cost)), unit)
        options = Options(time_limit, seed, None, node_limit, None, should_stop)
        solved = with_highs.solve(matrix, options, settings={"mip_abs_gap": max(1e-9, gap / unit)})
        if solved.status == "infeasible":
            return Draft(None, None, [], is_infeasible=True)
        bound = None
        if solved.bound is not None:
            largest_cost = once * (len(self.chain) + 1) / unit
            bound = max(0, proven(solved.bound, largest_cost, unit=unit) - once)
        if solved.values is None:
            return Draft(bound, None, [])
        stages = [{op for op, column in enumerate(row) if column >= 0 and solved.values[column] > 0.5} for row in self.runs]
        cost = sum(structure.cost[op] for ops in stages for op in ops) - once
        live = tuple(frozenset(root for root, column in row.items() if solved.values[column] > 0.5) for row in self._live)
        return Draft(bound, cost, in_stages(structure, self.chain, stages), live)
