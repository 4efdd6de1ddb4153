"""Latencies, the moments of the program, and the objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.cpsat.fixed_part import FixedPart
from stowplan.models.memory_mapping.cpsat.variables import Literal, Variables
from stowplan.models.memory_mapping.latency import Affine, StepLatency

Expression: TypeAlias = cp_model.LinearExpr | int


class StepTerms:
    """Latency of one run of a step, as an expression.

    Attributes
    ----------
    expression
        Exact where it is minimised.
    value : int variable or None
        Variable that stands for the largest of several pieces.
    rows : dict of int to literal
        Literal of every row of a table.
    """

    def __init__(self, model: cp_model.CpModel, latency: StepLatency, fast: Sequence[Literal | None], name: str):
        self.value: cp_model.IntVar | None = None
        self.rows: dict[int, Literal] = {}
        self.expression: Expression
        if latency.table:
            self._add_table(model, latency, fast, name)
        else:
            self._add_pieces(model, latency, fast, name)

    def _add_pieces(self, model: cp_model.CpModel, latency: StepLatency, fast: Sequence[Literal | None], name: str) -> None:
        pieces = latency.possible([literal is not None for literal in fast])
        if len(pieces) == 1:
            self.expression = _expression(pieces[0], fast)
            return
        least = max(piece.least() for piece in pieces)
        most = max(piece.most() for piece in pieces)
        self.value = self.expression = model.new_int_var(least, most, f"latency{name}")
        for piece in pieces:
            model.add(self.value >= _expression(piece, fast))

    def _add_table(self, model: cp_model.CpModel, latency: StepLatency, fast: Sequence[Literal | None], name: str) -> None:
        bits = list(enumerate(latency.table_uses))
        never = sum(1 << bit for bit, use in bits if fast[use] is None)
        self.rows = {mask: model.new_bool_var(f"row{name}.{mask}") for mask in range(len(latency.table)) if not mask & never}
        model.add_exactly_one(self.rows.values())
        for bit, use in bits:
            literal = fast[use]
            if literal is not None:
                model.add(sum(row for mask, row in self.rows.items() if mask >> bit & 1) == literal)
        self.expression = sum(latency.table[mask] * row for mask, row in self.rows.items())


def _expression(piece: Affine, fast: Sequence[Literal | None]) -> Expression:
    saved: Expression = sum(
        gain * literal for gain, literal in zip(piece.gain, fast, strict=True) if literal is not None and gain
    )
    return piece.constant + saved


class Objective:
    """Adds latencies and the objective: with stalls the moment the last boundary is left, without the sum of latencies (L7)."""

    def __init__(self, variables: Variables, lower_bound_ps: int | None = None):
        problem, model = variables.problem, variables.model
        self.steps: list[StepTerms] = []
        number = 0
        for index, (step, latency) in enumerate(zip(problem.steps, variables.savings.latencies, strict=True)):
            fast = variables.fast[number : number + len(step.uses)]
            number += len(step.uses)
            self.steps.append(StepTerms(model, latency, fast, str(index)))
        weighted = [step.weight * terms.expression for step, terms in zip(problem.steps, self.steps, strict=True)]
        self._variables = variables
        self.total: cp_model.IntVar | None = None
        if variables.forbidden:
            self.expression: Expression = sum(weighted)
            if variables.fixed_part is not None:
                model.add(self.expression <= variables.fixed_part.most_ps)
        else:
            model.add(variables.reached[0] == 0)
            for boundary in range(problem.horizon + 1):
                if variables.open is not variables.reached:
                    model.add(variables.open[boundary] >= variables.reached[boundary])
                    model.add(variables.left[boundary] >= variables.open[boundary])
                else:
                    model.add(variables.left[boundary] >= variables.reached[boundary])
                if boundary < problem.horizon:
                    model.add(variables.reached[boundary + 1] == variables.left[boundary] + weighted[boundary])
            self.expression = variables.left[-1] if variables.fixed_part is None else self._total(variables.fixed_part)
        if lower_bound_ps is not None:
            model.add(self.expression >= lower_bound_ps)
        model.minimize(self.expression)

    def _total(self, fixed_part: FixedPart) -> cp_model.IntVar:
        """End of the program after a neighbourhood: the largest of a few moments plus constants (L8)."""
        variables, model = self._variables, self._variables.model
        assert fixed_part.tail_ps is not None
        self.total = model.new_int_var(0, fixed_part.most_ps, "total")
        model.add(self.total >= variables.left[-1] + fixed_part.tail_ps)
        for copy, begin in zip(fixed_part.copies, variables.fixed_begin, strict=True):
            if copy.due is None:
                model.add(self.total >= begin + copy.duration_ps + copy.tail_ps)
        return self.total
