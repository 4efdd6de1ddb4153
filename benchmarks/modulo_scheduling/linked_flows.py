"""Initiation intervals of loop bodies with memory as instructions and over the asynchronous fabric, as a Markdown table.

    python -m benchmarks.modulo_scheduling.linked_flows GRAPH.json ... --time-limit 20

Each graph is mapped six times: loads and stores as instructions and as accesses to memory, delays unlimited, 1 and 0 at most.
A cell is II (proven bound where it is lower), makespan; `none` is proven infeasible. Plans are run on the simulator, those with
memory accesses also with random latencies.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import stowplan
from stowplan.errors import InputError
from stowplan.frontends.dfg import open_loop_body, parse_rules
from stowplan.hardware.se import compare
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.plan import Plan, decode_objective

DELAYS = ("unlimited", "1", "0")
MEMORY = ("instructions", "asynchronous")


def run(path: Path, memory: str, delay: str, arguments: argparse.Namespace) -> tuple[str, str]:
    """(facts of the problem, what was found)."""
    rules = parse_rules([f"memory={memory}", f"max_delay={delay}", f"inputs={arguments.inputs}"])
    problem = open_loop_body(path, arguments.target, rules)
    facts = f"{len(problem.instructions)} in {len(set(problem.flows))}, MII {least_ii(problem)}"
    result = stowplan.solve(problem, time_limit=arguments.time_limit, seed=arguments.seed)
    if result.status == "infeasible":
        return facts, "none"
    bound = None if result.bound is None else decode_objective(result.bound)[0]
    if not isinstance(result.plan, Plan):
        return facts, f"open, {bound} or more"
    plan = result.plan
    compare(problem, plan, 6)
    if not problem.is_synchronous:
        compare(problem, plan, 12, seed=arguments.seed, wandering=True)
    is_open = bound is not None and bound < plan.ii
    return facts, f"{plan.ii}{f' ({bound})' if is_open else ''}, {plan.makespan}"


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--target", default="se")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds a cell (default 20)")
    parser.add_argument("--inputs", default="instructions", help="as in --set inputs=... (default instructions)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print("| graph | memory | instructions in flows | " + " | ".join(f"delays {delay}" for delay in DELAYS) + " |")
    print("|---|---|---|" + "---|" * len(DELAYS))
    for path in arguments.graphs:
        for memory in MEMORY:
            begin = time.monotonic()
            try:
                found = [run(path, memory, delay, arguments) for delay in DELAYS]
            except InputError as error:
                print(error, file=sys.stderr)
                return 2
            name = path.name.split(".")[0]
            print(f"| {name} | {memory} | {found[0][0]} | {' | '.join(cell for _, cell in found)} |", flush=True)
            print(f"{name}, {memory}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
