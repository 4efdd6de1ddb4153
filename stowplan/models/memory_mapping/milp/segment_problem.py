"""A segment of a program as a problem of its own, whose optimum is no more than what the segment takes in any plan.

Why, and why such bounds add up, is lemma B5 of ``docs/reference/memory-mapping-models.md``.
"""

from __future__ import annotations

import msgspec

from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.sub_problem import border_step, loops_within, restricted, sub_problem


class Cutter:
    """Cuts segments out of one problem."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._first = [problem.horizon] * len(problem.tensors)
        self._last = [-1] * len(problem.tensors)
        self._reads: list[list[int]] = [[] for _ in problem.tensors]
        self._writes: list[list[int]] = [[] for _ in problem.tensors]
        for index, step in enumerate(problem.steps):
            for use in step.uses:
                self._first[use.tensor] = min(self._first[use.tensor], index)
                self._last[use.tensor] = index
                (self._writes if use.is_output else self._reads)[use.tensor].append(index)

    def cut(self, start: int, end: int) -> Problem:
        """The problem of the steps ``[start, end)``; both boundaries lie outside all loops."""
        problem = self._problem
        number: dict[int, int] = {}
        for step in problem.steps[start:end]:
            for use in step.uses:
                number.setdefault(use.tensor, len(number))
        needed = [tensor for tensor in number if end < problem.horizon and self._is_needed(tensor, end)]
        tensors = []
        for tensor in number:
            info = problem.tensors[tensor]
            is_whole = self._first[tensor] >= start and self._last[tensor] < end
            tensors.append(
                msgspec.structs.replace(
                    info,
                    is_input=info.is_input or not is_whole,
                    is_output=info.is_output and end == problem.horizon,
                    # Without members an alias group may be fast here and slow elsewhere.
                    members=info.members if is_whole and tensor not in needed else (),
                )
            )
        steps = [restricted(step, number) for step in problem.steps[start:end]]
        if needed:
            steps.append(border_step("(rest)", [number[tensor] for tensor in needed], is_output=False, slow_ps=0))
        return sub_problem(
            problem,
            name=f"{problem.name}[{start}:{end}]",
            steps=steps,
            tensors=tensors,
            loops=loops_within(problem, start, end),
            boundary=lambda boundary: boundary - start,
            max_preloads=problem.max_preloads if start == 0 else len(tensors),
        )

    def _is_needed(self, tensor: int, boundary: int) -> bool:
        """Whether the content at the boundary is read later, or is the program's output."""
        read = next((step for step in self._reads[tensor] if step >= boundary), None)
        write = next((step for step in self._writes[tensor] if step >= boundary), None)
        if read is None and write is None:
            return self._problem.tensors[tensor].is_output
        return read is not None and (write is None or read <= write)
