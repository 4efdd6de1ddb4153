"""The added cost as a MILP in stages, whose order is free: bounds from several moments together, and drafts of plans.

Take a *chain* of operators of which each needs the one before. In every plan they run for the first time one after the other;
what runs from one of these moments to the next is a *stage*. A stage has each operator or has it not. What a stage reads it
makes itself, or it was live when the stage began; what is live then was live when the stage before began, or is made in that.
At each beginning what is live fits. Every plan gives a point of this program whose cost is no larger, since a stage pays for an
operator once: the bound holds for every plan.

With a stage for each operator of a fixed order, and memory within the stages too, this would be Checkmate's program (Jain et
al. 2020). Here few moments say most, and a draft of a plan shows which one is missing.
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

#: Terms of a program at most: beyond that HiGHS takes minutes for its linear relaxation.
MOST_TERMS = 1_500_000


@dataclass(frozen=True)
class Draft:
    """What came of one program."""

    bound: int | None
    """Added cost that no plan within the limit is below; None where nothing is proven."""
    cost: int | None
    """Added cost of the best point; None where there is none."""
    sequence: list[int]
    """The operators of that point's stages, so that each can run: what runs again as late as can be. It need not fit."""
    live: tuple[frozenset[int], ...] = ()
    """[moments] storages that are live at each beside what its operator reads and writes; empty where there is no point."""
    is_infeasible: bool = False
    """No plan is within the limit."""


class Stages:
    """The program of a chain.

    Parameters
    ----------
    limit
        Bytes of the load at the first run of each operator of the chain.
    chain
        Operators, each of which needs the one before. What is reserved for each byte that is live at another operator is
        known where that is one of them.
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
        """[stages][operators] column, -1 where an operator cannot run."""
        self._own = [moments.held(op) | {*structure.writes[op]} for op in chain]
        self._live = [self._storages(at) for at in range(len(chain))]
        """[moments] column of each storage that may be live beside what the operator itself reads and writes."""
        for at, op in enumerate(chain):
            self._fit(moments.room(op, limit), [(at, 1)])
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
        """Columns of what can run in a stage: not what the next moment is the first to have, nor what must be past."""
        cost, later = self.structure.cost, 0
        if stage < len(self.chain):
            later = self.moments.after[self.chain[stage]] | 1 << self.chain[stage]
        if stage:
            past = self.moments.before[self.chain[stage - 1]] | 1 << self.chain[stage - 1]
            for first, second in self.structure.problem.precedences:
                later |= (past >> second & 1) << first
        return [-1 if later >> op & 1 else self.program.column(cost=cost[op]) for op in range(self.structure.ops)]

    def _storages(self, at: int) -> dict[int, int]:
        structure, op = self.structure, self.chain[at]
        stays = {structure.root[value] for value, kept in enumerate(structure.kept) if kept}
        columns = {}
        for root in self.moments.storages:
            writer = structure.writer[root]
            if root in self._own[at] or (writer >= 0 and self.moments.after[op] >> writer & 1):
                continue
            # An input that stays is live all the time.
            columns[root] = self.program.column(lower=float(writer < 0 and root in stays))
        return columns

    def _fit(self, most: int, parts: Iterable[tuple[int, int]]) -> None:
        """What is live at moments, so many times each, is at most so many bytes."""
        terms = []
        for at, times in parts:
            most -= times * self.moments.own_bytes(self.chain[at])
            terms += [(column, times * self.structure.size[root]) for root, column in self._live[at].items()]
        self.program.add_row(terms, upper=most)

    def tie(self, at: int, roots: Sequence[int]) -> None:
        """Of these storages all are live at a moment, or none is."""
        columns = [self._live[at][root] for root in roots]
        for one, other in pairwise(columns):
            self.program.add_row([(one, 1.0), (other, -1.0)], lower=0, upper=0)

    def _every_operator(self) -> None:
        """Each runs, before the first moment that needs it; those that may run once run in one stage."""
        for op in range(self.structure.ops):
            columns = [row[op] for row in self.runs if row[op] >= 0]
            until = next((at for at, moment in enumerate(self.chain) if self.moments.before[moment] >> op & 1), len(self.chain))
            first = [row[op] for row in self.runs[: until + 1] if row[op] >= 0]
            self.program.add_row(((column, 1.0) for column in first), lower=1)
            if self.structure.once[op] and len(columns) > 1:
                self.program.add_row(((column, 1.0) for column in columns), upper=1)

    def _is_there(self, stage: int, root: int, writer: int, needed: int | None) -> None:
        """A storage is live as the stage begins, or ``writer`` runs in it: where column ``needed`` says so, None for always."""
        terms = []
        if stage == 0 and self.structure.writer[root] < 0:
            return
        if stage:
            if root in self._own[stage - 1]:
                return
            if root in self._live[stage - 1]:
                terms.append((self._live[stage - 1][root], 1.0))
        if writer >= 0 and self.runs[stage][writer] >= 0:
            terms.append((self.runs[stage][writer], 1.0))
        if needed is not None:
            terms.append((needed, -1.0))
        self.program.add_row(terms, lower=float(needed is None))

    def _needs(self, stage: int, columns: Sequence[int]) -> None:
        structure = self.structure
        for op, column in enumerate(columns):
            # What the operator of the moment needs is seen to already.
            if column >= 0 and not (stage and op == self.chain[stage - 1]):
                for value in structure.needs[op]:
                    root, writer = structure.root[value], structure.writer[value]
                    self._is_there(stage, root, writer, column)
                    if structure.writer[root] < 0 <= writer:
                        # An input is there from the start, a view of it once its writer has run.
                        earlier = [row[writer] for row in self.runs[: stage + 1] if row[writer] >= 0]
                        self.program.add_row([*((run, 1.0) for run in earlier), (column, -1.0)], lower=0)

    def _afterwards(self, stage: int) -> None:
        """What runs in this stage or later needs what was live at the moment, or is made in one of these stages.

        Of whole numbers this says nothing new. Parts of an operator spread over stages would be content with a part of what
        they read in each; together they are not. So the linear relaxation is no weaker than that of any of its moments alone.
        """
        structure, program, moment = self.structure, self.program, self.chain[stage - 1]
        columns = []
        for op in range(structure.ops):
            own = [row[op] for row in self.runs[stage:] if row[op] >= 0]
            must = op == moment or self.moments.after[moment] >> op & 1
            columns.append(program.column(lower=float(must), integer=False))
            program.add_row([*((column, 1.0) for column in own), (columns[-1], -1.0)], lower=0)
            if not must:
                for column in own:
                    program.add_row([(columns[-1], 1.0), (column, -1.0)], lower=0)
        needs = {(value, columns[op]) for op in range(structure.ops) if op != moment for value in structure.needs[op]}
        kept: set[tuple[int, int | None]] = {
            (structure.root[value], None) for value, stays in enumerate(structure.kept) if stays
        }
        for value, needed in sorted(needs) + sorted(kept):
            root, writer = structure.root[value], structure.writer[value]
            if root in self._own[stage - 1]:
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
        """Minimise the added cost with HiGHS.

        Parameters
        ----------
        time_limit
            Seconds.
        gap
            Added cost that the draft may be above the bound.
        node_limit
            Nodes of branch and bound; with it, and a time limit that does not bind, equal calls give equal results.
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
            spread = once * (len(self.chain) + 1) / unit
            bound = max(0, proven(solved.bound, spread, unit=unit) - once)
        if solved.values is None:
            return Draft(bound, None, [])
        stages = [{op for op, column in enumerate(row) if column >= 0 and solved.values[column] > 0.5} for row in self.runs]
        cost = sum(structure.cost[op] for ops in stages for op in ops) - once
        live = tuple(frozenset(root for root, column in row.items() if solved.values[column] > 0.5) for row in self._live)
        return Draft(bound, cost, in_stages(structure, self.chain, stages), live)
