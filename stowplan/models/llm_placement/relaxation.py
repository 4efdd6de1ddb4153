"""A bound by linear programming: how many layers of each class are in each memory, with how many spilled parts.

What is left out is that layers of a device follow one another, and that they are whole. The bound is made of the prices of
memory that the linear program ends with (Lagrangian duality), computed in whole numbers, so that no tolerance of a solver can
make it wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from stowplan.models.llm_placement.plan import Case
from stowplan.models.llm_placement.problem import HOST, ROUNDED, Problem, layer_bytes
from stowplan.models.mip.matrix import Program
from stowplan.models.mip.with_highs import one_thread, pass_model


@dataclass
class Relaxation:
    """The linear program of one case; costs are whole nanoseconds."""

    problem: Problem
    case: Case
    program: Program = field(default_factory=Program)

    def __post_init__(self) -> None:
        problem, (batch, copier) = self.problem, self.case
        loads: dict[int, list[tuple[int, float]]] = {memory: [] for memory in range(len(problem.memories))}
        for same in problem.classes:
            layer, columns = problem.layers[same[0]], []
            for memory, device in enumerate(problem.memories):
                if memory != HOST and device.copies_weights and copier is None:
                    continue
                for spilled in range(1 + (len(layer.spillable) if memory != HOST else 0)):
                    cost = problem.cost(same[0], memory, batch, copier, spilled) // ROUNDED
                    column = self.program.column(len(same), cost=cost, integer=False)
                    columns.append((column, 1))
                    loads[memory].append((column, layer_bytes(layer, spilled)))
                    if spilled:
                        loads[HOST].append((column, layer_bytes(layer) - layer_bytes(layer, spilled)))
            self.program.add_row(columns, len(same), len(same))
        for memory, terms in loads.items():
            self.program.add_row(terms, upper=max(0, problem.room(memory, batch)))

    def bound(self) -> int | None:
        """Picoseconds that no plan of the case is below, whole nanoseconds; None where nothing is shown."""
        program = self.program
        scale = np.ones(len(program.cost))
        unit = max(1.0, float(np.array(program.cost, float).max(initial=0)))
        matrix, rows = program.scaled("llm placement", scale, unit)
        highs = one_thread(0)
        pass_model(highs, matrix)
        highs.run()
        solution = highs.getSolution()
        if not solution.dual_valid:
            return None
        shown = program.dual_bound(np.array(solution.row_dual) * rows * unit)
        # The copying device is used: activations go there at least once, one way.
        once = 0 if self.case.copier is None else self.problem.transfer(self.case.copier, self.case.batch) // ROUNDED
        return ROUNDED * (math.ceil(shown) + once)
