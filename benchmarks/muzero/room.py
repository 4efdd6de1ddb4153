"""Players of MMapGame where there is room: little fast memory, other copy bandwidths, windows of programs (``scarce.py``).

    python -m benchmarks.muzero.room measure testing --ways greedies insertion solved policy relaxation --match 0.35
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
from benchmarks.lib.tables import table
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, play_greedy
from stowplan.learned_guidance.memory_mapping.game.programs import as_played
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.portfolio.memory_mapping import arrays, heuristics

#: Processor seconds of a relaxation, and of the portfolio.
RELAXATION_SECONDS, SOLVE_SECONDS = 30.0, 10.0

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


Rewards = dict[str, float]


def _greedies(case: Case) -> Rewards:
    played = int(play_greedy(case.game.tables, case.game.reset().data))
    # The production greedies plan with stalls where they may; under the game's rules they may not.
    return {
        "greedy game": case.reward(case.problem.all_slow_ps - played),
        "greedy": case.reward(stronger_greedy(case.whole)[1].objective),
    }


def _insertion(case: Case) -> Rewards:
    data = arrays.build(case.problem)
    built = [heuristics.run(steps, lambda: False)[0] for name, steps in heuristics.constructive(data) if name == "insertion"]
    return {"insertion": case.reward(min(int(state.totals[0].total) for state in built))}


def _solved(case: Case) -> Rewards:
    """The default candidates' plan of a second's work."""
    import stowplan

    return {"solve": case.reward(stowplan.solve(case.problem, time_limit=1.0, deterministic=True).plan.objective)}


def _policy(case: Case) -> Rewards:
    """The shipped policy's likeliest game, and its games with search."""
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
    from stowplan.portfolio.memory_mapping.learned import POLICY

    torch.set_num_threads(1)
    policy = Policy.load(str(POLICY.path))
    played = {"policy": policy.rollout(case.game)}
    for simulations in SIMULATIONS if len(case.game.moves) <= MOST_SEARCHED else ():
        played[f"policy, {simulations} simulations"] = policy.searched(case.game, simulations=simulations)[0]
    return {name: case.reward(game.plan.objective) for name, game in played.items() if game is not None}


def _relaxation(case: Case) -> Rewards:
    bound = relaxation_hint(case.problem, Effort(end=time.monotonic() + RELAXATION_SECONDS))[1]
    return {BOUND: case.reward(bound)}


def _portfolio(case: Case) -> Rewards:
    import stowplan

    result = stowplan.solve(case.problem, time_limit=SOLVE_SECONDS, workers=1)
    assert result.plan is not None
    return {KNOWN: case.reward(result.plan.objective)}


WAYS: dict[str, Callable[[Case], Rewards]] = {
    "greedies": _greedies,
    "insertion": _insertion,
    "solved": _solved,
    "policy": _policy,
    "relaxation": _relaxation,
    "portfolio": _portfolio,
}


def measure(arguments: argparse.Namespace) -> int:
    """All ways on all cases that are not in the file yet."""
    known = {(row["case"], row["way"]) for row in rows(arguments.results)}
    began, done = time.monotonic(), 0
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for name in chosen(arguments):
        wanted = [way for way in arguments.ways if (name, way) not in known]
        if not wanted or time.monotonic() - began > arguments.seconds:
            continue
        case = Case(name)
        if len(case.game.moves) > arguments.most_moves:
            continue
        for way in wanted:
            before = time.process_time()
            reached = WAYS[way](case)
            note(arguments.results, case, way, time.process_time() - before, reached)
        done += 1
        print(f"{time.monotonic() - began:.0f} s: {name}", file=sys.stderr, flush=True)
    return 0


def note(path: Path, case: Case, way: str, seconds: float, reached: Rewards) -> None:
    """Add a row."""
    row = {"case": case.name, "way": way, "moves": len(case.game.moves), "seconds": round(seconds, 3)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps({**row, "R": reached}) + "\n")


def chosen(arguments: argparse.Namespace) -> Iterator[str]:
    """Cases of the part that are wanted."""
    for name in scarce.cases(arguments.part):
        if all(text in f"{name} " for text in arguments.match):
            yield name


def rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a results file; none where there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def rewards(part: str, measured: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """R by case and way, of the cases of a part; with the best plan known."""
    cases = set(scarce.cases(part))
    result: dict[str, dict[str, float]] = defaultdict(dict)
    for row in measured:
        if row["case"] in cases:
            result[row["case"]] |= row["R"]
    for ways in result.values():
        ways["best known"] = max(reward for way, reward in ways.items() if way != BOUND)
    return result


def interval(values: Sequence[float], modules: Sequence[str], seed: int = 0) -> tuple[float, float]:
    """95 % of bootstrap means; whole modules are drawn, for cases of one module have much in common."""
    groups: dict[str, list[float]] = defaultdict(list)
    for value, module in zip(values, modules, strict=True):
        groups[module].append(value)
    sums = np.array([[sum(group), len(group)] for group in groups.values()])
    drawn = np.random.default_rng(seed).integers(len(sums), size=(SAMPLES, len(sums)))
    totals = sums[drawn].sum(axis=1)
    low, high = np.percentile(totals[:, 0] / totals[:, 1], [2.5, 97.5])
    return float(low), float(high)


def show(arguments: argparse.Namespace) -> int:
    """Every case, and means with intervals."""
    reached = rewards(arguments.part, rows(arguments.results))
    names = list(dict.fromkeys(way for ways in reached.values() for way in ways))
    if arguments.columns:
        names = [*arguments.columns]
    reached = {
        case: ways for case, ways in reached.items() if all(name in ways for name in names) and case in chosen(arguments)
    }
    if arguments.cases:
        print(table([[case, *(f"{ways[name]:.4f}" for name in names)] for case, ways in reached.items()], ["case", *names]))
        print()
    modules = [case.split()[0] for case in reached]
    lines: list[list[object]] = []
    for name in names:
        values = [ways[name] for ways in reached.values()]
        low, high = interval(values, modules)
        line: list[object] = [name, f"{np.mean(values):.4f}", f"{low:.4f} to {high:.4f}"]
        for other in ("greedy", "insertion", arguments.against):
            if name == BOUND or other not in names:
                line += ["", ""]
                continue
            gains = [ways[name] - ways[other] for ways in reached.values()]
            low, high = interval(gains, modules)
            line += [f"{100 * np.mean(np.array(gains) >= -NEAR):.0f} %", f"{np.mean(gains):+.4f} ({low:+.4f} to {high:+.4f})"]
        lines.append(line)
    heads = [
        head for other in ("greedy", "insertion", arguments.against) for head in (f"at least {other}", f"R - {other} (95 %)")
    ]
    print(table(lines, [f"{len(reached)} cases", "mean R", "95 %", *heads]))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    two = commands.add_parser("show")
    for parser_of in (one, two):
        parser_of.add_argument("part", choices=scarce.PARTS)
        parser_of.add_argument("--results", type=Path, default=Path("results/room.jsonl"))
        parser_of.add_argument("--match", nargs="*", default=[], help="only cases that hold these texts")
    one.add_argument("--ways", nargs="+", choices=WAYS, default=["greedies", "insertion", "solved", "policy"])
    one.add_argument("--seconds", type=float, default=3600.0, help="begin no case after so long")
    one.add_argument("--most-moves", type=int, default=sys.maxsize, help="only cases of at most so many (default: all)")
    one.set_defaults(run=measure)
    two.add_argument("--cases", action="store_true", help="every case, too")
    two.add_argument("--columns", nargs="*", default=[], help="these ways alone, of cases that have them all")
    two.add_argument("--against", default="solve")
    two.set_defaults(run=show)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
