"""A lower bound on the time of a request, by linear programming.

A *request* is a prompt and a number of steps of generation. A *memory* is that of the host or of a device. Layers that differ
at most in their names are a *class*. *Spilled parts* are the parts of a layer that stay on the host although the layer is on a
device. The program has a column for each class, memory and number of spilled parts, which says how many layers of the class are
in the memory with this number of spilled parts. The program ignores that the layers of a device must be consecutive, and that a
layer cannot be divided. The bound is computed in whole numbers from the optimal duals of the program, which are prices of
memory (Lagrangian duality). No tolerance of a solver can therefore make it wrong. Nothing here raises an error for a valid
problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from stowplan.models.llm_placement.plan import Case
from stowplan.models.llm_placement.problem import HOST, ROUNDED, Problem, layer_bytes
from stowplan.models.mip.matrix import FloatArray, Program
from stowplan.models.mip.with_highs import one_thread, pass_model

#: Upper limit of the columns for bytes by which a memory is exceeded: 1 PiB, more than machines have.
_MAX_BYTES = float(1 << 50)


@dataclass
class Relaxation:
    """The linear program of one case (:class:`~.plan.Case`): a choice of the micro-batch and of the *copying device*.

    The micro-batch is the number of tokens of a prompt that are computed at once. The copying device, if there is one, computes
    prompts also with the weights that are on the host, after it has copied them. It is the first device in use that can copy
    weights. Costs are whole nanoseconds.
    """

    problem: Problem
    """The problem that the program is for."""
    case: Case
    """The case that the program is for."""
    program: Program = field(default_factory=Program)
    """The columns and rows."""

    def __post_init__(self) -> None:
        problem, (batch, copier) = self.problem, self.case
        loads = self._loads = {memory: list[tuple[int, float]]() for memory in range(len(problem.memories))}
        for members in problem.classes:
            layer, columns = problem.layers[members[0]], []
            for memory, device in enumerate(problem.memories):
                # In a case without a copying device, no layer is on a device that can copy weights.
                if memory != HOST and device.copies_weights and copier is None:
                    continue
                for spilled in range(1 + (len(layer.spillable) if memory != HOST else 0)):
                    cost = problem.cost(members[0], memory, batch, copier, spilled) // ROUNDED
                    column = self.program.column(len(members), cost=cost, integer=False)
                    columns.append((column, 1))
                    loads[memory].append((column, layer_bytes(layer, spilled)))
                    if spilled:
                        loads[HOST].append((column, layer_bytes(layer) - layer_bytes(layer, spilled)))
            self.program.add_row(columns, len(members), len(members))
        for memory, terms in loads.items():
            self.program.add_row(terms, upper=max(0, problem.room(memory, batch)))

    def bound(self) -> int | None:
        """A lower bound in ps on the request time of every plan of the case; None if HiGHS finds no solution, for example
        because the layers do not fit.

        The bound is a multiple of 1,000. Call this method before :meth:`prices`, which may change the program.
        """
        duals = self._duals()
        if duals is None:
            return None
        program_bound = self.program.dual_bound(duals)
        # The copying device is in use, so activations move to it at least once in each step and each micro-batch.
        transfer_ns = 0 if self.case.copier is None else self.problem.transfer(self.case.copier, self.case.batch) // ROUNDED
        return ROUNDED * (math.ceil(program_bound) + transfer_ns)

    def prices(self) -> list[float]:
        """[memories] the price in ps of a byte of each memory, at least 0, from the duals of the program.

        If the program has no solution because the layers do not fit, the prices prove this: wherever the layers are placed,
        their bytes cost more than all bytes of the memories together. The prices are then the duals of a program that minimizes
        the bytes by which memories are exceeded. All prices are 0 if HiGHS solves neither program.
        """
        duals = self._duals()
        if duals is None:
            self._allow_excess()
            duals = self._duals()
        count = len(self.problem.memories)
        return [0.0] * count if duals is None else [max(0.0, -float(dual)) * ROUNDED for dual in duals[-count:]]

    def _allow_excess(self) -> None:
        """Adds a column for the bytes by which each memory is exceeded, and makes the sum of these bytes the objective."""
        self.program.cost = [0.0] * len(self.program.cost)
        first = len(self.program.rows.lower) - len(self.problem.memories)
        for memory, terms in enumerate(self._loads.values()):
            excess = self.program.column(_MAX_BYTES, cost=1, integer=False)
            self.program.add_row([*terms, (excess, -1)], upper=self.program.rows.upper[first + memory])

    def _duals(self) -> FloatArray | None:
        """[rows] change of the cost in ns if the limit of a row increases by one; None if HiGHS finds no solution."""
        program = self.program
        unit = max(1.0, float(np.array(program.cost, float).max(initial=0)))
        matrix, rows = program.scaled("llm placement", np.ones(len(program.cost)), unit)
        highs = one_thread(0)
        pass_model(highs, matrix)
        highs.run()
        solution = highs.getSolution()
        return np.array(solution.row_dual) * rows * unit if solution.dual_valid and solution.value_valid else None
