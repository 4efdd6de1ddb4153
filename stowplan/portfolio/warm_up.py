"""Compile the heuristics now rather than in the first run: ``python -m stowplan.portfolio.warm_up``."""

from __future__ import annotations

import sys
import time
from typing import Any

from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use
from stowplan.models.packing.problem import Buffer
from stowplan.models.packing.problem import Problem as PackingProblem
from stowplan.portfolio.compiled import cache_folder, is_warm
from stowplan.portfolio.context import Options
from stowplan.portfolio.memory_mapping.candidates import search
from stowplan.portfolio.packing import candidates as packing


class _Ignore:
    """A context that lets a candidate run briefly and keeps nothing."""

    options = Options(time_limit=0.01, deterministic=True)
    start_plan = None

    def plan(self, plan: Any, source: str) -> None:
        """Nothing."""

    def bound(self, bound: int, source: str) -> None:
        """Nothing."""

    def proven_infeasible(self, source: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def incumbent(self) -> tuple[Any, int | None]:
        """Nothing."""
        return None, None

    def stop(self) -> bool:
        """Never."""
        return False

    def remaining(self) -> float:
        """Enough."""
        return 3600.0


def _tiny_problem() -> Problem:
    read, write = Use(0, False, 8), Use(1, True, 8)
    pieces = (Piece(1, (2, 2), (1, 1)),)
    return Problem(
        name="warm-up",
        target="none",
        cost_model="none",
        capacity=64,
        tensors=(Tensor("a", 8, 1, 1, is_input=True), Tensor("b", 8, 1, 1, is_output=True)),
        steps=(Step("first", "fusion", 1, (read, write), pieces), Step("second", "fusion", 1, (read, write), pieces)),
    )


def warm_up() -> None:
    """Compile everything that is not in the cache yet."""
    search(_tiny_problem(), _Ignore())
    buffers = tuple(Buffer(id=name, lower=0, upper=2, size=8) for name in ("a", "b"))
    for candidate in (packing.search, packing.exact):
        candidate(PackingProblem(buffers=buffers), _Ignore())


def main() -> None:
    """Compile, and say so."""
    if is_warm():
        return
    print("stowplan: compiling the heuristics, once on this machine ...", file=sys.stderr)
    began = time.monotonic()
    warm_up()
    print(f"stowplan: compiled in {time.monotonic() - began:.0f} s, kept in {cache_folder()}", file=sys.stderr)


if __name__ == "__main__":
    main()
