"""A problem built by hand, small enough to check on paper: ``python examples/by_hand.py``.

Two weights are read twice each; fast memory holds one of them. While step 0 computes, one weight can be copied in.
"""

from __future__ import annotations

import stowplan
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use


def step(name: str, compute_ps: int, *reads: int) -> Step:
    uses = tuple(Use(tensor=tensor, is_output=False, bytes=1000) for tensor in reads)
    compute = Piece(base_ps=compute_ps, slow_ps=(0,) * len(uses), fast_ps=(0,) * len(uses))
    memory = Piece(base_ps=0, slow_ps=(100_000,) * len(uses), fast_ps=(10_000,) * len(uses))
    return Step(name, "fusion", weight=1, uses=uses, pieces=(compute, memory))


def main() -> None:
    problem = Problem(
        name="two weights",
        target="by hand",
        cost_model="by hand",
        capacity=1000,
        tensors=tuple(
            Tensor(name, size=1000, copy_in_ps=100_000, copy_out_ps=100_000, is_input=True) for name in ("first", "second")
        ),
        steps=(
            step("compute", 150_000),
            step("a", 20_000, 0),
            step("b", 20_000, 0),
            step("c", 20_000, 1),
            step("d", 20_000, 1),
        ),
    )
    result = stowplan.solve(problem, time_limit=5, candidates="exact")
    print(result.summary())
    for residency in result.plan.residencies:
        print(f"  {problem.tensors[residency.tensor].name} in fast memory during steps [{residency.start}, {residency.end})")


if __name__ == "__main__":
    main()
