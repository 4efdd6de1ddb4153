"""Players of MMapGame where there is room: little fast memory, other copy bandwidths, windows of programs (``scarce.py``).

    python -m benchmarks.muzero.room measure testing --ways greedies insertion priced evolved relaxation --match 0.35
    python -m benchmarks.muzero.room show testing

R is the normalised return under the game's rules: no stalls, no preloads, one channel. A row of the results file is one case
and one way to plan it; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.memory_mapping import scarce
from benchmarks.lib.memory_mapping.greedies import stronger_greedy
from benchmarks.lib.memory_mapping.priced_play import evolve_prices, priced
from benchmarks.lib.memory_mapping.rollouts import Rollouts
from benchmarks.lib.tables import table
from stowplan.learned_guidance.memory_mapping.game.best import Best
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame, play_greedy
from stowplan.learned_guidance.memory_mapping.game.programs import as_played
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan

#: Processor seconds of a relaxation, of an evolution, and of the portfolio.
RELAXATION_SECONDS, EVOLUTION_SECONDS, SOLVE_SECONDS = 30.0, 0.5, 10.0

#: Of searches, and most moves of a game that is searched.
SIMULATIONS, MOST_SEARCHED = (16, 64), 450

#: What is a bound, not a plan; and what counts only towards the best plan known.
BOUND, KNOWN = "relaxation", "portfolio"

#: Resamples of a bootstrap.
SAMPLES = 10_000

#: A return this close is as good.
NEAR = 1e-9


class Case:
    """A case, read once, and what it takes to play it."""

    def __init__(self, name: str):
        self.name = name
        self.whole = scarce.made(name)
        self.problem = as_played(self.whole)
        self.game = CompiledGame(self.problem)

    def reward(self, objective_ps: int) -> float:
        """R of an objective."""
        return float(self.problem.normalised_return(objective_ps))

    def of_game(self, found: Best) -> float:
        """R of a best game, which is verified."""
        state = self.game.reset()
        assert found.actions is not None
        state.play(found.actions)
        plan = state.plan()
        assert verify(self.problem, plan).ok
        return self.reward(plan.objective)


Found = dict[str, float]


def _greedies(case: Case, _: int) -> Found:
    played = int(play_greedy(case.game.tables, case.game.reset().data))
    # The production greedies plan with stalls where they may; under the game's rules they may not.
    return {
        "greedy game": case.reward(case.problem.all_slow_ps - played),
        "greedy": case.reward(stronger_greedy(case.whole)[1].objective),
    }


def _insertion(case: Case, _: int) -> Found:
    data = arrays.build(case.problem)
    built = [heuristics.run(each, lambda: False)[0] for name, each in heuristics.constructive(data) if name == "insertion"]
    return {"insertion": case.reward(min(int(each.totals[0].total) for each in built))}


def _priced(case: Case, _: int) -> Found:
    return {"priced": case.of_game(priced(case.game))}


def _evolved(case: Case, seed: int) -> Found:
    return {"evolved": case.of_game(evolve_prices(case.game, seed=seed, time_limit=EVOLUTION_SECONDS))}


def _rolled_out(case: Case, known: Sequence[int] = ()) -> Best:
    best, rollouts = Best(), Rollouts(case.game, known)
    rollouts.play(case.game.reset(), len(case.game.moves))
    best.offer(rollouts.return_ps, rollouts.actions)
    return best


def _rollouts(case: Case, _: int) -> Found:
    return {"rollouts": case.of_game(_rolled_out(case))}


def _beside(case: Case, _: int) -> Found:
    """Rollouts beside the plan of insertion, which is followed."""
    data = arrays.build(case.problem)
    built = [heuristics.run(each, lambda: False)[0] for name, each in heuristics.constructive(data) if name == "insertion"]
    return _followed(case, "insertion", export_plan(case.problem, data, min(built, key=lambda state: state.totals[0].total)))


def _solved(case: Case, _: int) -> Found:
    """The default candidates' plan of a second's work, and rollouts beside it."""
    import stowplan

    plan = stowplan.solve(case.problem, time_limit=1.0, deterministic=True).plan
    return {"solve": case.reward(plan.objective), **_followed(case, "solve", plan)}


def _followed(case: Case, name: str, known: Plan) -> Found:
    followed = actions_of(case.problem, known, case.game)
    return {
        f"{name}, followed": case.reward(case.problem.all_slow_ps - followed.return_ps),
        f"rollouts beside {name}": case.of_game(_rolled_out(case, followed.actions)),
    }


def _policy(case: Case, _: int) -> Found:
    """The shipped policy's likeliest game, and its games with search."""
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
    from stowplan.portfolio.memory_mapping.learned import POLICY

    torch.set_num_threads(1)
    policy = Policy.load(str(POLICY.path))
    game = case.game
    played = {"policy": policy.rollout(game)}
    for simulations in SIMULATIONS if len(game.moves) <= MOST_SEARCHED else ():
        played[f"policy, {simulations} simulations"] = policy.searched(game, simulations=simulations)[0]
    return {name: case.reward(each.plan.objective) for name, each in played.items() if each is not None}


def _relaxation(case: Case, _: int) -> Found:
    bound = relaxation_hint(case.problem, Effort(end=time.monotonic() + RELAXATION_SECONDS))[1]
    return {BOUND: case.reward(bound)}


def _portfolio(case: Case, seed: int) -> Found:
    import stowplan

    result = stowplan.solve(case.problem, time_limit=SOLVE_SECONDS, seed=seed, workers=1)
    assert result.plan is not None
    return {KNOWN: case.reward(result.plan.objective)}


WAYS: dict[str, Callable[[Case, int], Found]] = {
    "greedies": _greedies,
    "insertion": _insertion,
    "priced": _priced,
    "evolved": _evolved,
    "rollouts": _rollouts,
    "beside": _beside,
    "solved": _solved,
    "policy": _policy,
    "relaxation": _relaxation,
    "portfolio": _portfolio,
}

#: Ways that draw random numbers.
DRAWN = ("evolved",)


def measure(arguments: argparse.Namespace) -> int:
    """All ways on all cases that are not in the file yet."""
    known = {(row["case"], row["way"], row["seed"]) for row in rows(arguments.results)}
    began, done = time.monotonic(), 0
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for name in chosen(arguments):
        wanted = [
            (way, seed)
            for way in arguments.ways
            for seed in (arguments.seeds if way in DRAWN else [0])
            if (name, way, seed) not in known
        ]
        if not wanted or time.monotonic() - began > arguments.seconds:
            continue
        case = Case(name)
        if len(case.game.moves) > arguments.most_moves:
            continue
        for way, seed in wanted:
            before = time.process_time()
            found = WAYS[way](case, seed)
            note(arguments.results, case, way, seed, time.process_time() - before, found)
        done += 1
        print(f"{time.monotonic() - began:.0f} s: {name}", file=sys.stderr, flush=True)
    return 0


def note(path: Path, case: Case, way: str, seed: int, seconds: float, found: Found) -> None:
    """Add a row."""
    row = {"case": case.name, "way": way, "seed": seed, "moves": len(case.game.moves), "seconds": round(seconds, 3)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps({**row, "R": found}) + "\n")


def chosen(arguments: argparse.Namespace) -> Iterator[str]:
    """Cases of the part that are wanted."""
    for name in scarce.cases(arguments.part):
        if all(each in f"{name} " for each in arguments.match):
            yield name


def rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a results file; none where there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def rewards(part: str, found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """R by case and way, mean over seeds, of the cases of a part; with the best plan known."""
    cases = set(scarce.cases(part))
    drawn: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in found:
        if row["case"] in cases:
            for way, reward in row["R"].items():
                drawn[row["case"]][way].append(reward)
    result = {}
    for case, ways in drawn.items():
        result[case] = {way: float(np.mean(each)) for way, each in ways.items()}
        result[case]["best known"] = max(max(each) for way, each in ways.items() if way != BOUND)
    return result


def interval(values: Sequence[float], modules: Sequence[str], seed: int = 0) -> tuple[float, float]:
    """95 % of bootstrap means; whole modules are drawn, for cases of one module have much in common."""
    groups: dict[str, list[float]] = defaultdict(list)
    for value, module in zip(values, modules, strict=True):
        groups[module].append(value)
    sums = np.array([[sum(each), len(each)] for each in groups.values()])
    drawn = np.random.default_rng(seed).integers(len(sums), size=(SAMPLES, len(sums)))
    totals = sums[drawn].sum(axis=1)
    low, high = np.percentile(totals[:, 0] / totals[:, 1], [2.5, 97.5])
    return float(low), float(high)


def show(arguments: argparse.Namespace) -> int:
    """Every case, and means with intervals."""
    found = rewards(arguments.part, rows(arguments.results))
    names = list(dict.fromkeys(way for ways in found.values() for way in ways))
    if arguments.columns:
        names = [*arguments.columns]
    found = {case: ways for case, ways in found.items() if all(name in ways for name in names) and case in chosen(arguments)}
    if arguments.cases:
        print(table([[case, *(f"{ways[name]:.4f}" for name in names)] for case, ways in found.items()], ["case", *names]))
        print()
    modules = [case.split()[0] for case in found]
    lines: list[list[object]] = []
    for name in names:
        values = [ways[name] for ways in found.values()]
        low, high = interval(values, modules)
        line: list[object] = [name, f"{np.mean(values):.4f}", f"{low:.4f} to {high:.4f}"]
        for other in ("greedy", "insertion", arguments.against):
            if name == BOUND or other not in names:
                line += ["", ""]
                continue
            gains = [ways[name] - ways[other] for ways in found.values()]
            low, high = interval(gains, modules)
            line += [f"{100 * np.mean(np.array(gains) >= -NEAR):.0f} %", f"{np.mean(gains):+.4f} ({low:+.4f} to {high:+.4f})"]
        lines.append(line)
    heads = [head for other in ("greedy", "insertion", arguments.against) for head in (f"at least {other}", "R more")]
    print(table(lines, [f"{len(found)} cases", "mean R", "95 %", *heads]))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    two = commands.add_parser("show")
    for each in (one, two):
        each.add_argument("part", choices=scarce.PARTS)
        each.add_argument("--results", type=Path, default=Path("results/room.jsonl"))
        each.add_argument("--match", nargs="*", default=[], help="only cases that hold these texts")
    one.add_argument("--ways", nargs="+", choices=WAYS, default=["greedies", "insertion", "priced", "evolved", "rollouts"])
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--seconds", type=float, default=3600.0, help="begin no case after so long")
    one.add_argument("--most-moves", type=int, default=sys.maxsize, help="only cases of at most so many (default: all)")
    one.set_defaults(run=measure)
    two.add_argument("--cases", action="store_true", help="every case, too")
    two.add_argument("--columns", nargs="*", default=[], help="these ways alone, of cases that have them all")
    two.add_argument("--against", default="evolved")
    two.set_defaults(run=show)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
