"""What the policies of EGRL and PPO are worth as guides of the search: objectives after equal processor time.

    python benchmarks/policy_guides.py tiers --seconds 15 --seeds 0,1,2
    python benchmarks/policy_guides.py modulo GRAPH ... --seconds 10 --seeds 0,1,2

The candidate ``search`` runs alone, on the clock of its processor time, with no guide, with the policy's, with that of an
untrained network of the same shape, with the policy's values at other decisions (the control), and, of tier placement, with the
relaxation's. The guide's own time counts, torch's start and the relaxation's solution do not. Without a guide of its own, no
search solves the relaxation here. Networks are those of ``examples/data``, stacked to 5,000 layers; gaps are to the bound of
the linear relaxation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

import stowplan
from lib.tier_placement.stacked import stacked
from stowplan.learned_guidance.modulo_scheduling.ppo.guide import policy_hint as mapper_hint
from stowplan.learned_guidance.modulo_scheduling.rollouts import warm_up
from stowplan.learned_guidance.tier_placement.egrl.guide import policy_hint as placer_hint
from stowplan.models.hint import Hint
from stowplan.models.modulo_scheduling.bounds import unrefuted_iis
from stowplan.models.modulo_scheduling.plan import describe_objective
from stowplan.models.tier_placement.relaxed import relaxation
from stowplan.portfolio.context import Options
from stowplan.portfolio.modulo_scheduling import candidates as mapping
from stowplan.portfolio.modulo_scheduling import learned as mappers
from stowplan.portfolio.modulo_scheduling.validation import ADAPTER as MAPPERS
from stowplan.portfolio.tier_placement import candidates as placement
from stowplan.portfolio.tier_placement import learned as placers
from stowplan.portfolio.tier_placement.validation import ADAPTER as PLACERS

from alone import Alone  # isort: skip - stands beside this file
from guidance import shuffled  # isort: skip - stands beside this file
from modulo_runs import problem_of  # isort: skip - stands beside this file
from tables import table  # isort: skip - stands beside this file

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "data"
NETWORKS, LAYERS = ("resnet50", "resnet101", "bert_base_s128"), 5_000

#: Budget of a first run that is thrown away, in which everything is compiled.
FIRST = 2.0


def searched(module: Any, problem: Any, hint: Hint | None, spent: float, seconds: float, seed: int) -> int | None:
    """Objective of the search alone, after so many processor seconds, some of which the guide has spent."""
    options = Options(time_limit=seconds - spent, seed=seed, workers=1)
    context = Alone(problem, options, hints=() if hint is None else (hint,), clock=time.process_time)
    module.search(problem, context)
    return None if context.best is None else context.objective(context.best)


def timed(make: Any) -> tuple[Hint | None, float]:
    """A guide's hint and the processor seconds that it took."""
    began = time.process_time()
    return make(), time.process_time() - began


def tiers(arguments: argparse.Namespace) -> None:
    """Tier placement: a table of gaps in %."""
    policy = PLACERS.load(placers.POLICY.path)
    untrained = PLACERS.untrained(policy, 0)
    # None that is not given.
    placement.solve_relaxation = lambda problem, context: (None, 0)  # type: ignore[assignment]
    placement.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[attr-defined]
    rows = []
    for name in arguments.networks.split(","):
        problem = stacked(stowplan.read(EXAMPLES / f"{name}.layers.json", target="nnp-i"), LAYERS)
        relaxed, bound = relaxation(problem, time_limit=300.0)
        placer_hint(policy.policy, problem)
        hinted = timed(partial(placer_hint, policy.policy, problem))
        guides = {
            "none": (None, 0.0),
            "policy": hinted,
            "untrained": timed(partial(placer_hint, untrained.policy, problem)),
            "shuffled": (shuffled(hinted[0], 0), hinted[1]),
            "relaxation": (relaxed, 0.0),
        }
        searched(placement, problem, hinted[0], 0.0, FIRST, 0)
        cells = []
        for guide, (hint, spent) in guides.items():
            found = [searched(placement, problem, hint, spent, arguments.seconds, seed) for seed in seeds(arguments)]
            gaps = [100 * (each / bound - 1) for each in found if each is not None]
            cells.append(f"{statistics.fmean(gaps):.3f} ({min(gaps):.3f} to {max(gaps):.3f})")
            print(f"{name} {guide}: {cells[-1]}", flush=True)
        rows.append([name, *cells])
    print(table(rows, ("network, 5,000 layers", *guides)))


def modulo(arguments: argparse.Namespace) -> None:
    """Modulo scheduling: a table of II and latency."""
    warm_up()
    policy = MAPPERS.load(mappers.POLICY.path).policy
    untrained = MAPPERS.untrained(SimpleNamespace(policy=policy), 0).policy
    rows = []
    for graph in arguments.graphs:
        problem = problem_of(graph, None, "instructions", arguments.machine)
        seen = msgspec.structs.replace(problem, rules=msgspec.structs.replace(problem.rules, pass_through=False))
        intervals = unrefuted_iis(problem).iis[: mappers.INTERVALS]

        def said(player: Any, seed: int, problem: Any = problem, seen: Any = seen, intervals: Any = intervals) -> Hint | None:
            hint = mapper_hint(player, seen, intervals, seed)
            return None if hint is None else msgspec.structs.replace(hint, problem=problem.digest)

        found: dict[str, list[int | None]] = {"none": [], "policy": [], "untrained": [], "shuffled": []}
        said(policy, 0)
        searched(mapping, problem, None, 0.0, FIRST, 0)
        for seed in seeds(arguments):
            hint, spent = timed(partial(said, policy, seed))
            other, other_spent = timed(partial(said, untrained, seed))
            moved = None if hint is None else shuffled(hint, seed)
            for guide, given, taken in (
                ("none", None, 0.0),
                ("policy", hint, spent),
                ("untrained", other, other_spent),
                ("shuffled", moved, spent),
            ):
                found[guide].append(searched(mapping, problem, given, taken, arguments.seconds, seed))
        rows.append([problem.name, str(len(problem.instructions)), *(", ".join(map(_shown, each)) for each in found.values())])
        print(f"{' | '.join(rows[-1])} ({spent:.1f} s)", flush=True)
    print(table(rows, ("loop body", "instructions", *found)))


def _shown(objective: int | None) -> str:
    return "none" if objective is None else describe_objective(objective)


def seeds(arguments: argparse.Namespace) -> list[int]:
    return [int(each) for each in arguments.seeds.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    first = kinds.add_parser("tiers", help="EGRL's policy, tier placement")
    first.add_argument("--networks", default=",".join(NETWORKS))
    second = kinds.add_parser("modulo", help="PPO's policy, modulo scheduling")
    second.add_argument("graphs", nargs="+")
    second.add_argument("--machine", default="se")
    for each in (first, second):
        each.add_argument("--seconds", type=float, default=10.0, help="processor time of each search")
        each.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    (tiers if arguments.kind == "tiers" else modulo)(arguments)


if __name__ == "__main__":
    main()
