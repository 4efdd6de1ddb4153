"""The published suite: the three shipped policies against exact optima.

    python -m benchmarks.validation.suite [--agents muzero egrl ppo] [--write]

Writes the problems below ``results/validation``, validates them as ``stowplan validate`` does, keeps what it says of each, and
prints tables; ``--write`` puts them on ``docs/results/validation.md``. What is kept is not made again. The problems need
nothing but the checkout; ``stowplan validate results/validation/muzero`` says more of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from benchmarks.lib.places import ROOT
from benchmarks.lib.tables import table, write_into
from benchmarks.validation.problems import PROBLEMS, write
from stowplan import files
from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.batch.task import find_inputs
from stowplan.portfolio.kind import kind
from stowplan.portfolio.validation.adapter import Policies
from stowplan.portfolio.validation.decisions import Decision
from stowplan.portfolio.validation.records import ProblemReport, Summary, Validation, summarize
from stowplan.portfolio.validation.suite import validate
from stowplan.result import format_gap

PAGE = ROOT / "docs" / "results" / "validation.md"

#: Dearest decisions that are shown of an agent.
DEAREST = 4

#: Part of the optimum that a decision costs that is shown.
LEAST_COST = 1e-3


def validated(agent: str, options: argparse.Namespace) -> Validation:
    """The validation of an agent's policy; of each problem from its file where there is one."""
    import torch

    torch.set_num_threads(1)
    write(agent, options.folder / agent)
    settings = Settings(time_limit=options.time_limit, seed=options.seed, workers=options.workers)
    policies, items = Policies((), options.seed), find_inputs([options.folder / agent])
    problems = []
    for item in items:
        kept = options.folder / "reports" / agent / item.path.name
        if kept.exists():
            problems.append(msgspec.json.decode(kept.read_bytes(), type=ProblemReport))
            continue
        (problem,) = validate([item], settings, policies, games=options.games)
        problems.append(problem)
        kept.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(kept, msgspec.json.encode(problem))
        print(f"{len(problems)}/{len(items)} {problem.name} {problem.error or ''}", file=sys.stderr, flush=True)
    return Validation(
        settings=settings,
        games=options.games,
        solves=24,
        problems=tuple(problems),
        summaries=summarize(problems, lambda name: policies.of(kind(name))),
        asked=len(items),
    )


def text_of(agent: str, found: Validation) -> str:
    """Spread of the gaps, and the dearest decisions."""
    (summary,) = found.summaries
    values = "" if summary.at_equal_positions is None else f" Values rank positions of equal number: {_rank(summary)}."
    lines = [f"{summary.problems} problems, {summary.proven} optima proven.{values}", "", spreads(summary)]
    if decisions := dearest(found):
        lines += ["", decisions]
    return "\n".join(lines)


def _rank(summary: Summary) -> str:
    return f"{summary.at_equal_positions:.2f}"


def spreads(summary: Summary) -> str:
    """Markdown: a row for each way to plan; of objectives of two numbers, the mean gap of the second beside the first's."""
    head = ["", "at the optimum", "within 1 %", "within 5 %", "mean gap", "median", "third quartile", "worst", "lost"]
    rows = []
    for row in summary.rows:
        found = row.gaps
        shares = ("" if each is None else f"{each:.0%}" for each in (found.optimal, found.within_1, found.within_5))
        moments = (found.mean, found.median, found.upper_quartile, found.worst)
        rows.append([row.name, *shares, *map(_gap, moments), str(found.lost)])
        if row.second_gaps is not None:
            rows[-1].append(_gap(row.second_gaps.mean))
    return table(rows, head + [f"mean gap of the {summary.second}"] * bool(summary.second))


def _gap(value: float | None) -> str:
    return "" if value is None else format_gap(value)


def dearest(found: Validation) -> str:
    """Markdown: decisions of likeliest games that cost most of all, as a part of their problem's optimum."""
    costs: list[tuple[float, str, Decision]] = [
        (each.cost / problem.exact.objective, problem.name.partition("_")[2], each)
        for problem in found.problems
        if problem.decisions is not None and problem.exact is not None and problem.exact.objective
        for each in problem.decisions.costly
        if each.first == each.last and each.cost >= LEAST_COST * problem.exact.objective
    ]
    rows = [
        [name, each.name, f"{cost:.1%}", f"{each.share:.0%}", "yes" if each.exact else "no"]
        for cost, name, each in sorted(costs, key=lambda one: -one[0])[:DEAREST]
    ]
    return table(rows, ("problem", "dearest decisions", "cost over the optimum", "part of the gap", "proven")) if rows else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--folder", type=Path, default=Path("results") / "validation")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each problem, all of it together")
    parser.add_argument("--games", type=int, default=16, help="drawn from each policy and its control")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    texts = {agent: text_of(agent, validated(agent, options)) for agent in options.agents}
    if options.write:
        write_into(PAGE, texts)
    for agent, text in texts.items():
        print(f"{agent}:\n\n{text}\n")


if __name__ == "__main__":
    main()
