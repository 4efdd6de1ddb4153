"""The PPO mapper that the package ships: ``python -m benchmarks.ppo.train_policy --output ppo.pt``.

Generated graphs, each with a plan of the heuristics to imitate; then rounds of PPO on the same graphs. No graph of a suite is
among them, so that all suites are unseen. Prints the training curve. Plans are kept in ``--plans``, where that is given.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmarks.lib.modulo_scheduling.flipped import flipped
from benchmarks.lib.modulo_scheduling.generated_graphs import INSTRUCTIONS, generated
from stowplan.learned_guidance.modulo_scheduling.ppo.config import POLICY, PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import IMITATIONS, Trainer
from stowplan.learned_guidance.training.checkpoint import load_policy
from stowplan.learned_guidance.training.curve import CurveFile
from stowplan.learned_guidance.training.run import run
from stowplan.learned_guidance.training.settings import with_settings
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.search import MappingSearch, Tally, list_scheduling


def planned(problem: Problem, evaluations: int) -> Plan | None:
    """A plan of list scheduling, then of the search, until the least interval of the bounds or so many evaluations."""
    tally = Tally(Body(problem))
    list_scheduling(tally, 0, lambda: tally.evaluations > evaluations)
    if tally.best is None:
        return None
    search, least = MappingSearch(tally, 1), least_ii(problem)
    while tally.best.ii > least and tally.evaluations < evaluations:
        search.step(least, lambda: tally.evaluations > evaluations)
    return tally.best


def lesson(
    count: int, seed: int, evaluations: int, kept: Path | None, instructions: tuple[int, int] = INSTRUCTIONS
) -> list[tuple[Problem, Plan | None]]:
    """Generated graphs with their plans."""
    chance = np.random.default_rng(seed)
    problems = [generated(chance, instructions=instructions) for _ in range(count)]
    file = kept / f"plans-{count}-{seed}-{evaluations}.json" if kept else None
    if not evaluations:
        plans: list[Plan | None] = [None] * count
    elif file is not None and file.exists():
        plans = msgspec.json.decode(file.read_bytes(), type=list[Plan | None])
    else:
        plans = [planned(problem, evaluations) for problem in problems]
        if file is not None:
            file.write_bytes(msgspec.json.encode(plans))
    return list(zip(problems, plans, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--graphs", type=int, default=300)
    parser.add_argument("--instructions", type=int, nargs=2, default=INSTRUCTIONS, metavar=("LEAST", "MOST"))
    parser.add_argument("--from", type=Path, dest="start", help="policy to begin with")
    parser.add_argument("--evaluations", type=int, default=60, help="of the search for a plan to imitate; 0: no plans")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plans", type=Path, help="folder that keeps plans")
    parser.add_argument("--imitated", type=Path, help="write the policy here as it is after imitation, too")
    parser.add_argument("--curve", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the configuration")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    config = with_settings(PpoConfig.cpu(), arguments.set)
    pairs = lesson(arguments.graphs, arguments.seed, arguments.evaluations, arguments.plans, tuple(arguments.instructions))
    found = sum(plan is not None for _, plan in pairs)
    print(f"{len(pairs)} graphs, {found} plans, {time.process_time() - began:.0f} s", flush=True)
    weights = None if arguments.start is None else load_policy(arguments.start, POLICY)[1].state_dict()
    trainer = Trainer([problem for problem, _ in pairs], config, seed=arguments.seed, weights=weights)
    if config.imitation_steps and arguments.evaluations:
        for number, (problem, plan) in enumerate(pairs):
            for each in (plan, flipped(plan, problem)) if plan is not None else ():
                if each is not None:
                    trainer.demonstrate(number, each)
    from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Progress

    if arguments.imitated is not None:
        # As many reports as the imitation has.
        reports = -(-config.imitation_steps // IMITATIONS)
        run(trainer, on_progress=lambda progress: print(progress.line, flush=True), max_reports=reports)
        trainer.save_policy(arguments.imitated)
    curve = None if arguments.curve is None else CurveFile(arguments.curve, Trainer.COLUMNS)

    def report(progress: Progress) -> None:
        print(progress.line, flush=True)
        if curve is not None:
            curve.append(progress.row)

    run(trainer, on_progress=report, save=lambda: trainer.save_policy(arguments.output), save_every=120)
    print(f"{time.process_time() - began:.0f} s of processor time, sha256 {trainer.save_policy(arguments.output)}")


if __name__ == "__main__":
    main()
