"""Options of a search for a plan, as all back ends take them, and the search under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from stowplan.portfolio.context import Options
from stowplan.portfolio.solve import solve
from stowplan.result import Result


class SearchOptions(TypedDict, total=False):
    """Keyword arguments beside a time limit; as :func:`stowplan.solve` takes them."""

    deterministic: bool
    seed: int
    workers: int


def solve_with(options: Options, problem: Any, plans: Mapping[str, Any] | None = None) -> Result:
    """:func:`stowplan.solve` under checked options, with the plans at hand."""
    return solve(
        problem,
        time_limit=options.time_limit,
        deterministic=options.deterministic,
        seed=options.seed,
        workers=options.workers,
        plans=plans,
    )
