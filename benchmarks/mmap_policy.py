"""Makes the policy of MMapGame that is shipped: demonstrations on windows of real programs, then training from them.

    python benchmarks/mmap_policy.py demonstrate ../shared/corpus/tpu_v4/*.hlo.txt.gz -o demonstrations/
    python benchmarks/mmap_policy.py train demonstrations/ -o stowplan/learned_guidance/checkpoints/mmap_muzero.pt
    python benchmarks/mmap_policy.py compare POLICY ../shared/corpus/tpu_v4/*.hlo.txt.gz

Of the modules given, in the order of their names, every second one is learned from; the policy is judged by the others.
``demonstrate`` goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mmap_speedups import greedy_plan
from msgspec import structs

import stowplan
from stowplan import files
from stowplan.deadline import Deadline
from stowplan.learned_guidance.memory_mapping.baselines.local_search import improve
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.kernel.play import play_greedy
from stowplan.learned_guidance.memory_mapping.game.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.game.variants import as_played, training_variants
from stowplan.models.memory_mapping import problem as problems
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.candidates import LOSS
from stowplan.portfolio.memory_mapping.convert import export_best
from stowplan.portfolio.memory_mapping.search import new_search, ruin_and_recreate

#: Moves of the windows that are learned from, at most; programs up to the second number are learned from whole as well.
WINDOW_MOVES, WHOLE_MOVES = 400, 1500


def learned_from(modules: list[Path]) -> list[Path]:
    """Every second module by name."""
    return sorted(modules)[1::2]


def variants(modules: list[Path], windows: int, synthetics: int, seed: int) -> Iterator[tuple[str, Problem]]:
    """Problems to learn from, each with a name that is a file's."""
    for number, module in enumerate(learned_from(modules)):
        problem = as_played(stowplan.read(module, target="tpu-v4"))
        stem = module.name.split(".")[0]
        if len(CompiledGame(problem).moves) <= WHOLE_MOVES:
            yield f"{stem}-whole", problem
        rng = np.random.default_rng([seed, number])
        for index, variant in enumerate(training_variants(problem, rng, moves=WINDOW_MOVES, count=windows)):
            yield f"{stem}-{index:03d}", variant
    for index in range(synthetics):
        yield f"synthetic-{index:03d}", as_played(synthetic(np.random.default_rng([seed, 1000, index]), moves=WINDOW_MOVES))


def demonstrate(arguments: argparse.Namespace) -> int:
    """Write one folder of problems and good games of them."""
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    for name, problem in variants(arguments.modules, arguments.windows, arguments.synthetic, arguments.seed):
        path = folder / f"{name}.json"
        if path.exists():
            continue
        game = CompiledGame(problem)
        plan = good_plan(problem, arguments.seconds, arguments.seed)
        found = actions_of(problem, plan, game)
        best = improve(game, found.actions, time_limit=arguments.seconds, seed=arguments.seed)
        problem.save(folder / f"{name}.problem.json")
        record = {
            "problem": f"{name}.problem.json",
            "moves": len(game.moves),
            "plan": problem.normalised_return(plan.objective_ps),
            "greedy_game": problem.normalised_return(problem.all_slow_ps - greedy_return(game)),
            "game": problem.normalised_return(problem.all_slow_ps - best.return_ps),
            "actions": [int(action) for action in best.actions],
        }
        files.write_atomic(path, json.dumps(record).encode())
        print(
            f"{name}: {len(game.moves)} moves, plan {record['plan']:.4f}, game {record['game']:.4f}",
            file=sys.stderr,
            flush=True,
        )
    return 0


def good_plan(problem: Problem, seconds: float, seed: int) -> Plan:
    """The heuristics' best plan after so many seconds of ruin and recreate."""
    data = arrays.build(problem)
    state = min(
        (heuristics.run(built, lambda: False)[0] for _, built in heuristics.constructive(data)),
        key=lambda each: each.totals[0].total,
    )
    found = new_search(data, state, heuristics.densities(data, 1), seed)
    started, floor = int(found.status[0].best), sum(step.weight * step.floor_ps for step in problem.steps)
    deadline = Deadline(seconds)
    while not deadline.expired:
        ruin_and_recreate(data, state, found, 10, LOSS * (started - floor) * (1.0 - min(1.0, deadline.elapsed / seconds)) ** 2)
    return export_best(problem, data, found)


def greedy_return(game: CompiledGame) -> int:
    """Return of the game that always takes what earns most."""
    return int(play_greedy(game.tables, game.reset().data))


def train(arguments: argparse.Namespace) -> int:
    """Imitate, at two learning rates; write the policy after each."""
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.checkpoint import POLICY
    from stowplan.learned_guidance.memory_mapping.muzero.progress import Progress
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
    from stowplan.learned_guidance.memory_mapping.muzero.training_config import TrainingConfig
    from stowplan.learned_guidance.training.checkpoint import plain_weights, save
    from stowplan.learned_guidance.training.run import run

    torch.set_num_threads(1)
    records = [
        (path, json.loads(path.read_bytes()))
        for path in sorted(arguments.demonstrations.glob("*.json"))
        if ".problem." not in path.name
    ]
    found = [problems.Problem.load(path.parent / record["problem"]) for path, record in records]
    print(f"{len(found)} problems, {sum(record['moves'] for _, record in records)} moves", file=sys.stderr)
    # Demonstrations show how to play; nothing of a game's own exploration is needed to imitate them.
    imitating: dict[str, Any] = {
        "games": 1,
        "moves_per_iteration": 1,
        "updates_per_iteration": 100,
        "unroll_steps": 3,
        "reanalyse_fraction": 0.0,
        "kept_fraction": 1.0,
        "elite_games": 0,
        "imitation": 1.0,
        "warm_start_moves": 0,
        "exploration_bias_fraction": 0.0,
        "restart_fraction": 0.0,
        "local_search_moves": 0,
    }
    stages = [(arguments.steps, 1e-3), (arguments.steps // 3, 2e-4)]
    weights: dict[str, Any] | None = None
    done = 0

    def show(progress: Progress) -> None:
        if progress.losses is not None:
            said = f"policy loss {progress.losses.policy:.3f}, value error {progress.losses.value_error:.3f}"
            print(f"{progress.seconds:7.1f} s, {progress.training_steps} steps, {said}", file=sys.stderr, flush=True)

    for steps, rate in stages:
        config = TrainingConfig.cpu(training_steps=steps, learning_rate=rate, **imitating)
        trainer = Trainer(found, config, seed=arguments.seed, weights=weights)
        for number, (_, record) in enumerate(records):
            trainer.demonstrate(number, record["actions"])
        run(trainer, on_progress=show)
        weights = trainer.learner.network.state_dict()
        # Who trains it on plays as from scratch, not as it was taught.
        done += steps
        came_from = structs.replace(trainer.provenance(), training_steps=done)
        values = {"weights": plain_weights(weights)}
        print(save(arguments.output, POLICY, TrainingConfig.cpu(), came_from, values), file=sys.stderr)
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """The policy's greedy rollouts beside the production-style greedy, on every module."""
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    torch.set_num_threads(1)
    policy = Policy.load(arguments.policy)
    learned = {path.name for path in learned_from(arguments.modules)}
    print("| module | learned from | moves | greedy | greedy, no stalls | greedy game | rollout | better | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    better, total = 0, 0
    for module in sorted(arguments.modules):
        if arguments.unseen and module.name in learned:
            continue
        problem = stowplan.read(module, target="tpu-v4")
        own = as_played(problem)
        game = CompiledGame(problem)
        began = time.monotonic()
        played = policy.rollout(game)
        seconds = time.monotonic() - began
        assert played is not None
        greedy, greedy_own = greedy_objective(problem), greedy_objective(own)
        objective = problem.all_slow_ps - played.return_ps
        if module.name not in learned:
            total += 1
            better += objective < greedy
        row = [
            problem.normalised_return(each)
            for each in (greedy, greedy_own, problem.all_slow_ps - greedy_return(game), objective)
        ]
        cells = [module.name.split(".")[0], "yes" if module.name in learned else "no", str(len(game.moves))]
        cells += [f"{each:.4f}" for each in row] + ["yes" if objective < greedy else "no", f"{seconds:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\nbetter than greedy on {better} of the {total} modules that were not learned from")
    return 0


def greedy_objective(problem: Problem) -> int:
    """Objective of the production-style greedy's plan, verified."""
    found = verify(problem, greedy_plan(problem))
    assert found.ok, found.violations[:1]
    return int(found.objective_ps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("demonstrate")
    one.add_argument("modules", nargs="+", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--windows", type=int, default=12, help="of each module")
    one.add_argument("--synthetic", type=int, default=24)
    one.add_argument("--seconds", type=float, default=1.5, help="of solving, and as many of local search")
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(run=demonstrate)
    two = commands.add_parser("train")
    two.add_argument("demonstrations", type=Path)
    two.add_argument("-o", "--output", type=Path, required=True)
    two.add_argument("--steps", type=int, default=1500, help="training steps of imitation; a third more at a lower rate")
    two.add_argument("--seed", type=int, default=0)
    two.set_defaults(run=train)
    three = commands.add_parser("compare")
    three.add_argument("policy", type=Path)
    three.add_argument("modules", nargs="+", type=Path)
    three.add_argument("--unseen", action="store_true", help="only modules that were not learned from")
    three.set_defaults(run=compare)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
