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
from stowplan.kernel.kind import kind
from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.batch.task import find_inputs
from stowplan.portfolio.validation.decisions import Decision
from stowplan.portfolio.validation.policies import Policies
from stowplan.portfolio.validation.records import ProblemReport, Summary, Validation, summarize
from stowplan.portfolio.validation.suite import validate

PAGE = ROOT / "docs" / "results" / "validation.md"

#: Exact solves for the decisions of a problem.
SOLVES = 16

#: Dearest decisions that are shown of an agent.
DEAREST = 1

#: Part of the optimum that a decision costs that is shown.
LEAST_COST = 1e-3


def validated(agent: str, options: argparse.Namespace) -> Validation:
    """The validation of an agent's policy; of each problem from its file where there is one."""
    import torch

    torch.set_num_threads(1)
    write(agent, options.folder / agent)
    # By work, not by the clock: on a busy machine, games that are cut short would be those of large problems.
    settings = Settings(time_limit=options.time_limit, seed=options.seed, workers=options.workers, deterministic=True)
    policies, items = Policies((), options.seed), find_inputs([options.folder / agent])
    problems = []
    for item in items:
        kept = options.folder / "reports" / agent / item.path.name
        if kept.exists():
            problems.append(msgspec.json.decode(kept.read_bytes(), type=ProblemReport))
            continue
        (problem,) = validate([item], settings, policies, games=options.games, solves=SOLVES)
        problems.append(problem)
        kept.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(kept, msgspec.json.encode(problem))
        print(f"{len(problems)}/{len(items)} {problem.name} {problem.error or ''}", file=sys.stderr, flush=True)
    return Validation(
        settings=settings,
        games=options.games,
        solves=SOLVES,
        problems=tuple(problems),
        summaries=summarize(problems, lambda name: policies.of(kind(name))),
        asked=len(items),
    )


def spreads(found: dict[str, Summary]) -> str:
    """Markdown: a row for each way to plan; of loop bodies gaps are of the initiation interval."""
    ways = [row.name for row in next(iter(found.values())).rows if "sample" not in row.name]
    ways[-1] = "heuristic"
    rows = []
    for way in ways:
        cells = []
        for summary in found.values():
            (gaps,) = (row.gaps for row in summary.rows if row.name == way or (way, row) == ("heuristic", summary.rows[-1]))
            shares = ["" if each is None else f"{each:.0%}" for each in (gaps.optimal, gaps.within_1)]
            cells += [*shares, "" if gaps.mean is None else f"{gaps.mean:.1%}"]
        rows.append([way, *cells])
    head = [f"{agent}: {part}" for agent in found for part in ("optimal", "within 1 %", "mean gap")]
    return table(rows, ["", *head])


def dearest(found: dict[str, Validation]) -> str:
    """Markdown: the decisions of each agent's likeliest games that cost most, over the optimum of their problem."""
    rows = []
    for agent, validation in found.items():
        costs: list[tuple[float, str, Decision]] = [
            (each.cost / problem.exact.objective, problem.name.partition("_")[2], each)
            for problem in validation.problems
            if problem.decisions is not None and problem.exact is not None and problem.exact.objective
            for each in problem.decisions.costly
            if each.first == each.last and each.cost >= LEAST_COST * problem.exact.objective
        ]
        costs.sort(key=lambda one: -one[0])
        rows += [[agent, name, each.name, f"{cost:.1%}", f"{each.share:.0%}"] for cost, name, each in costs[:DEAREST]]
    return table(rows, ("agent", "problem", "decision", "cost", "share of the gap"))


def texts_of(found: dict[str, Validation]) -> dict[str, str]:
    """Tables by the name of their place in the page."""
    summaries = {each.summaries[0].agent: each.summaries[0] for each in found.values()}
    counts = (f"{each.agent}: {each.problems} problems, {each.proven} proven optimal" for each in summaries.values())
    ranks = (
        f"{each.agent} {each.at_equal_positions:.2f}" for each in summaries.values() if each.at_equal_positions is not None
    )
    values = f"Rank correlation of predicted values with the returns of games, among equal positions: {', '.join(ranks)}."
    said = f"{'; '.join(counts)}. {values}"
    named = {each.summaries[0].agent: each for each in found.values()}
    return {"gaps": f"{said}\n\n{spreads(summaries)}", "decisions": dearest(named)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--folder", type=Path, default=Path("results") / "validation")
    parser.add_argument("--time-limit", type=float, default=10.0, help="deterministic seconds for each problem")
    parser.add_argument("--games", type=int, default=16, help="drawn from each policy and its control")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    texts = texts_of({agent: validated(agent, options) for agent in options.agents})
    if options.write:
        write_into(PAGE, texts)
    print("\n\n".join(texts.values()))


if __name__ == "__main__":
    main()
