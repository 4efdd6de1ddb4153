"""In which order a mapping places its instructions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stowplan.models.modulo_scheduling.problem import Problem


def topological_order(problem: Problem) -> npt.NDArray[np.int64]:
    """[N] Numbers of the instructions, producers before consumers by the edges of distance 0.

    Depth first from the instructions that end the longest chains: an instruction follows soon after its producers, so that
    those are not spread over the machine before anything ties them together.
    """
    count = len(problem.instructions)
    producers: list[list[int]] = [[] for _ in range(count)]
    is_last = [True] * count
    for edge in problem.edges:
        if edge.distance == 0 and edge.source not in producers[edge.target]:
            producers[edge.target].append(edge.source)
            is_last[edge.source] = False
    found: list[int] = []
    depth = [-1] * count

    def visit(root: int, add: bool) -> None:
        # By hand, for chains may be longer than Python's stack is deep.
        stack = [(root, False)]
        while stack:
            number, after = stack.pop()
            if after:
                depth[number] = 1 + max((depth[each] for each in producers[number]), default=-1)
                if add:
                    found.append(number)
            elif not seen[number]:
                seen[number] = True
                stack.append((number, True))
                # The deepest producer first: it is the last pushed.
                stack += [(each, False) for each in sorted(producers[number], key=lambda each: (depth[each], -each))]

    seen = [False] * count
    for number in range(count):
        visit(number, add=False)
    seen = [False] * count
    for number in sorted((each for each in range(count) if is_last[each]), key=lambda each: (-depth[each], each)):
        visit(number, add=True)
    return np.array(found, np.int64)
