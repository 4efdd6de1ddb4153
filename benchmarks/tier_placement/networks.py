"""Tier placement beside figure 3 of the EGRL paper.

    python -m benchmarks.tier_placement.networks [--stacked] [--generated N]
    python -m benchmarks.tier_placement.networks --large --time-limit 10

Prints markdown tables: for each network the speedup over the chip's compiler of the paper's baselines, of the local search and
of the proven optimum, with the evaluations of the hardware (complete maps tried) that each took. ``--stacked`` adds networks
of 5,000 layers, ``--generated`` so many of those that policies are trained on; the others are those of ``examples/data``.
``--speed`` prints nothing but evaluations of the simulated chip a second, and ``--large`` nothing but BERT-large, operation by
operation (needs torch).
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np

import stowplan
from benchmarks.lib.places import EXAMPLES
from benchmarks.lib.tier_placement import baselines
from benchmarks.lib.tier_placement.networks import FORMS
from benchmarks.lib.tier_placement.stacked import stacked
from benchmarks.lib.tier_placement.variants import generated
from stowplan.frontends.network import read_torch
from stowplan.hardware.network import Precision
from stowplan.hardware.nnp_i.chip import Chip
from stowplan.hardware.nnp_i.compiler import compiler_plan
from stowplan.hardware.nnp_i.problem import build_problem
from stowplan.hardware.nnp_i.target import load_target
from stowplan.models.tier_placement.problem import Problem
from stowplan.portfolio.tier_placement import arrays, heuristics
from stowplan.portfolio.tier_placement.arrays import Data
from stowplan.result import Result

#: Figure 3 of the paper: Greedy-DP, EA, EGRL (mean of five runs of up to 4,000 evaluations).
PAPER = {
    "resnet50": (0.72, 1.06, 1.28),
    "resnet101": (1.27, 1.47, 1.78),
    "bert_base_s128": (0.67, 1.64, 1.66),
    "bert_base_s384": (0.67, 1.64, 1.66),
}

#: Evaluations that the paper gives its agents.
BUDGET = 4_000

LAYERS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each proof")
    parser.add_argument("--stacked", action="store_true", help="networks of 5,000 layers, too")
    parser.add_argument("--generated", type=int, default=0, metavar="N", help="random networks, too")
    parser.add_argument("--speed", action="store_true", help="evaluations a second, and nothing else")
    parser.add_argument("--large", action="store_true", help="BERT-large, and nothing else")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.speed:
        speeds(arguments.seed)
        return
    compile_ahead()
    if arguments.large:
        print(BOUNDED)
        for sequence, precision in itertools.product((128, 384), ("int8", "fp16")):
            print_bounded(large(sequence, precision), f"bert_large_s{sequence}, {precision}", arguments)
        return
    head = "network|precision|layers|compiler|Greedy-DP|random|annealing|search|search, long|optimum|proof"
    paper = "paper: Greedy-DP|EA|EGRL"
    print(f"| {' | '.join(f'{head}|{paper}'.split('|'))} |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|")
    for name, figures in PAPER.items():
        for precision in ("int8", "fp16"):
            problem = read(name, precision)
            cells = [name, precision, str(len(problem.layers)), *compare(problem, arguments.seed), *prove(problem, arguments)]
            print(f"| {' | '.join([*cells, *(f'{figure:.2f}' for figure in figures)])} |", flush=True)
    if arguments.stacked:
        print(f"\n{BOUNDED}")
        for name, scaled in itertools.product(("resnet50", "resnet101", "bert_base_s128"), (False, True)):
            print_bounded(stacked(read(name, "int8"), LAYERS, scaled=scaled), f"{name}, stacked", arguments)
    if arguments.generated:
        print("\n| network | precision | layers | weights over LLC | LLC | compiler | optimum | proof |")
        print("|---|---|--:|--:|--:|--:|--:|---|")
        chance = np.random.default_rng(arguments.seed)
        for number in range(arguments.generated):
            problem = generated(chance, form=FORMS[number % len(FORMS)])
            print(f"| {' | '.join([*describe(problem), *prove(problem, arguments)])} |", flush=True)


def large(sequence: int, precision: Precision) -> Problem:
    """BERT-large with so many words, operation by operation."""
    from benchmarks.lib.torch_networks import build

    network = read_torch(*build("bert_large", sequence), name=f"bert_large_s{sequence}", granularity="fine")
    return build_problem(network, load_target("nnp-i"), precision)


BOUNDED = "| network | LLC, SRAM | compiler | found | bound | gap | seconds |\n|---|---|--:|--:|--:|--:|--:|"


def print_bounded(problem: Problem, label: str, arguments: argparse.Namespace) -> None:
    """A row of what is found and proven of a large network."""
    room = ", ".join(f"{tier.capacity >> 20} MiB" for tier in problem.tiers[1:])
    began = time.monotonic()
    result = solve(problem, arguments)
    seconds = time.monotonic() - began
    values = " | ".join(f"{value / 1e9:.3f} ms" for value in (result.baseline, result.objective, result.bound))
    print(f"| {label} | {room} | {values} | {result.gap:.3%} | {seconds:.1f} |", flush=True)


def speeds(seed: int) -> None:
    """Evaluations a second: one by one, and many at once, of random maps and of the compiler's."""
    print("| network | layers | maps | one by one | many at once |\n|---|--:|---|--:|--:|")
    for name in PAPER:
        problem = read(name, "int8")
        chip, count = Chip(problem), len(problem.layers)
        random = np.random.default_rng(seed).integers(len(problem.tiers), size=(1_000, count, 2))
        own = np.broadcast_to(np.stack(chip.compiler[:2], axis=1), random.shape)
        for what, maps in (("random", random), ("the compiler's", own)):
            chip.evaluate_many(maps[:1])
            began = time.perf_counter()
            for weights, outputs in maps[:200].transpose(0, 2, 1).tolist():
                chip.evaluate(weights, outputs)
            middle = time.perf_counter()
            chip.evaluate_many(maps)
            rates = 200 / (middle - began), len(maps) / (time.perf_counter() - middle)
            print(f"| {name} | {count} | {what} | {rates[0]:,.0f} | {rates[1]:,.0f} |", flush=True)


def describe(problem: Problem) -> list[str]:
    """Form, precision, layers, weights read over LLC, LLC, the compiler's latency."""
    compiled = compiler_plan(problem)
    latency = "-" if compiled is None else f"{compiled.objective / 1e6:.1f} us"
    read, room = sum(layer.weights_read for layer in problem.layers), problem.tiers[1].capacity
    precision = problem.cost_model.rpartition(" ")[2]
    return [problem.name, precision, str(len(problem.layers)), f"{read / room:.1f}", f"{room >> 20} MiB", latency]


def read(name: str, precision: str) -> Problem:
    problem: Problem = stowplan.read(EXAMPLES / f"{name}.layers.json", "nnp-i", precision=precision)
    return problem


def compare(problem: Problem, seed: int) -> list[str]:
    """The compiler's latency; speedups over it of the heuristics, with their evaluations. All begin with everything in DRAM."""
    compiled = compiler_plan(problem)
    data = arrays.build(problem)
    begin = heuristics.any_map(data)
    if compiled is None or begin is None:
        raise SystemExit(f"{problem.name} does not fit")

    def cell(walk: heuristics.Walk | None) -> str:
        if walk is None:
            return "-"
        # Evaluations until its best map, which later ones did not better.
        used = walk.progress[-1][0] if walk.progress else walk.evaluations
        return f"{compiled.objective / walk.latency:.3f} ({used:,})"

    return [
        f"{compiled.objective / 1e6:.1f} us",
        cell(heuristics.greedy_dp(data, begin, never)),
        cell(baselines.random_maps(data, seed, BUDGET, never)),
        cell(baselines.annealing(data, begin, seed, BUDGET, never)),
        cell(cooled(data, begin, seed, BUDGET)),
        cell(cooled(data, begin, seed, 100 * BUDGET)),
    ]


def cooled(data: Data, begin: arrays.Ints, seed: int, evaluations: int) -> heuristics.Walk:
    """One cooling of the local search, without the linear relaxation's help."""
    search = heuristics.Search(data, begin, seed)
    search.cool(evaluations, search.scale(), never)
    return search.walk


def prove(problem: Problem, arguments: argparse.Namespace) -> list[str]:
    """Speedup of the best plan of the whole portfolio, and what is proven of it."""
    began = time.monotonic()
    result = solve(problem, arguments)
    seconds = time.monotonic() - began
    proof = f"optimal, {seconds:.0f} s" if result.status == "optimal" else f"gap {result.gap:.3%}, {seconds:.0f} s"
    return [f"{result.speedup:.3f}", proof]


def solve(problem: Problem, arguments: argparse.Namespace) -> Result:
    return stowplan.solve(problem, time_limit=arguments.time_limit, workers=arguments.workers, seed=arguments.seed)


def compile_ahead() -> None:
    """Let the searches compile, so that this is not counted."""
    data = arrays.build(read("resnet50", "int8"))
    begin = heuristics.any_map(data)
    if begin is not None:
        baselines.annealing(data, begin, 0, 10, never)
        baselines.random_maps(data, 0, 1, never)


def never() -> bool:
    return False


if __name__ == "__main__":
    main()
