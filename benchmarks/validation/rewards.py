"""Reward beside XLA's cycles on a policy's own solutions: table 5 of Wang et al. 2023.

    python -m benchmarks.validation.rewards [MODULE ...] [--write]

A row for each module of ``../shared/corpus`` that XLA's code generator has estimated, the small ones where none is named. The
policy's likeliest game and games drawn from it are scored twice: by the reward, which is the saving by the roofline; and by
cycles, which are XLA's estimates where it was compiled with a step's arrays in the same memories (two compiles: its own plan,
and everything in slow memory), else predicted from those two. Games have no stalls. ``--write`` puts the table on
``docs/results/validation.md``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import pearsonr, spearmanr

from benchmarks.lib.places import SHARED
from benchmarks.lib.tables import table, write_into
from benchmarks.validation.suite import PAGE
from stowplan.frontends.hlo import program_from_module, read_module
from stowplan.frontends.hlo.placed import read_costs
from stowplan.hardware.costs import make_problem
from stowplan.hardware.targets import load_target
from stowplan.learned_guidance.memory_mapping.game.programs import as_played
from stowplan.models.memory_mapping.plan import Plan
from stowplan.portfolio.memory_mapping.learned import POLICY

#: Of the draws: the warmer, the worse the games, as those of an agent that has yet to learn.
TEMPERATURES = (1.0, 2.0, 4.0)

#: Programs that the page shows, as table 5 does: those with the strongest and the weakest correlation.
SHOWN = 3

#: Correlation that is strong.
STRONG = -0.9

HEAD = ("program", "Pearson", "ranks", "cycles, least to most", "estimated by XLA")


def row_of(path: Path, cycles: Sequence[Path], games: int, seed: int) -> list[str]:
    """Cells of a module."""
    target, module = load_target("tpu-v4"), read_module(path)
    program = program_from_module(module)
    problem = as_played(make_problem(program, target, cost_model="roofline"))
    costs = read_costs(cycles, module, program)
    policy = POLICY.load()
    played = [policy.rollout(problem)]
    for heat in TEMPERATURES:
        played += policy.rollouts(problem, games, temperature=heat, seed=seed)
    rewards, totals, known = [], [], []
    for each in played:
        if each is None:
            continue
        found = costs.of_fast_uses(program.steps, _mask(each.plan, problem.use_count))
        run = found.weight * found.cycles
        rewards.append(each.return_ps)
        totals.append(found.total)
        known.append(float(run[found.is_known].sum() / run.sum()))
    pearson, ranks = (
        f"{measure(rewards, totals).statistic:.4f}" if min(len(set(rewards)), len(set(totals))) > 1 else "none"
        for measure in (pearsonr, spearmanr)
    )
    name = path.name.removesuffix(".hlo.txt.gz")
    return [
        name,
        pearson,
        ranks,
        f"{min(totals):,.0f} to {max(totals):,.0f}",
        f"{np.mean(known):.0%}",
    ]


def _mask(plan: Plan, uses: int) -> list[bool]:
    fast = set(plan.fast_uses)
    return [use in fast for use in range(uses)]


def main() -> None:
    import torch

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", help="names; the small ones without")
    parser.add_argument("--count", type=int, default=10, help="modules at most")
    parser.add_argument("--games", type=int, default=4, help="drawn at each temperature, beside the likeliest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("results") / "validation" / "rewards.jsonl", help="rows made before")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    corpus, rows = SHARED / "corpus", []
    found = sorted((corpus / "tpu_v4_cycles").glob("*.nomsa.hlo.txt.gz"), key=lambda path: path.stat().st_size)
    if not found:
        raise SystemExit(f"found no module with cycles in {corpus}")
    kept = dict(json.loads(line) for line in options.kept.read_text().splitlines()) if options.kept.exists() else {}
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    names = [path.name.removesuffix(".nomsa.hlo.txt.gz") for path in found]
    for name in [name for name in names if not options.modules or name in options.modules][: options.count]:
        key = f"{name} {options.games} {options.seed}"
        if key not in kept:
            paths = [corpus / "tpu_v4_cycles" / f"{name}{way}.hlo.txt.gz" for way in ("", ".nomsa")]
            kept[key] = row_of(corpus / "tpu_v4" / f"{name}.hlo.txt.gz", paths, options.games, options.seed)
            with options.kept.open("a") as stream:
                stream.write(json.dumps([key, kept[key]]) + "\n")
        rows.append(kept[key])
        print(*kept[key], sep=" | ", flush=True)
    known = [[float(row[part]) for row in rows if row[part] != "none"] for part in (1, 2)]
    medians = [f"{median(each):.2f}" for each in known]
    strong = sum(each < STRONG for each in known[0])
    games = 1 + len(TEMPERATURES) * options.games
    summary = (
        f"{len(rows)} programs with {games} games each: the median of Pearson's correlation is {medians[0]}, that of the rank "
        f"correlation {medians[1]}; Pearson's is below {STRONG:g} on {strong} programs."
    )
    print(summary)
    if options.write:
        rows.sort(key=lambda row: (row[1] == "none", float(row[1]) if row[1] != "none" else 0.0))
        shown = rows if len(rows) <= 2 * SHOWN else [*rows[:SHOWN], *rows[-SHOWN:]]
        write_into(PAGE, {"rewards": f"{summary}\n\n{table(shown, HEAD)}"})


if __name__ == "__main__":
    main()
