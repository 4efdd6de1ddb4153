"""Modulo scheduling over data-flow graphs: ``python benchmarks/modulo_scheduling.py [GRAPH...] [--time-limit S]``.

A GRAPH is a JSON or DOT file, or a kernel: distance, vector_add, multiply_add, fft8, ifft16, fft32 ... Without any, the
kernels. Every plan is verified, and run in the simulator against NumPy. Prints a markdown table: what the naive bound (MII)
says, the initiation interval (II) reached and proven, when it was proven, makespan and its bound. What is proven holds for the
delays that the first line names.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from stowplan.errors import VerificationError
from stowplan.frontends.dfg import Dfg, kernels, lower, read_dot, read_json
from stowplan.hardware.se import compare, load_machine
from stowplan.models.modulo_scheduling import cpsat, milp
from stowplan.models.modulo_scheduling.bounds import least_ii, objective_bound
from stowplan.models.modulo_scheduling.plan import Plan, decode_objective
from stowplan.models.modulo_scheduling.problem import Problem, Rules
from stowplan.models.modulo_scheduling.verify import verify

KERNELS = ("distance", "vector_add", "multiply_add", "fft8", "ifft8", "fft16", "ifft16", "fft32", "fft64", "ifft64")


def graph(name: str) -> Dfg:
    if name.endswith(".json"):
        return read_json(name)
    if name.endswith((".dot", ".gv")):
        return read_dot(name)
    kind = name.rstrip("0123456789")
    if kind in ("fft", "ifft"):
        return kernels.fft(int(name[len(kind) :]), inverse=kind == "ifft")
    made: Dfg = getattr(kernels, name)()
    return made


class Watch:
    """When the initiation interval was proven, and the best plan and bound so far."""

    def __init__(self, problem: Problem, ii_only: bool):
        self.began = time.monotonic()
        self.ii_only = ii_only
        self.plan: Plan | None = None
        self.bound = objective_bound(problem)
        self.proven_after: float | None = None

    def take(self) -> None:
        """Note the moment at which plan and bound agree on the initiation interval."""
        if self.proven_after is None and self.plan is not None and self.plan.ii == decode_objective(self.bound)[0]:
            self.proven_after = time.monotonic() - self.began

    def on_plan(self, plan: Plan) -> None:
        """A better plan."""
        self.plan = plan
        self.take()

    def on_bound(self, bound: int) -> None:
        """A better bound."""
        self.bound = max(self.bound, bound)
        self.take()

    def should_stop(self) -> bool:
        """Whether all that is asked for is known."""
        return self.ii_only and self.proven_after is not None


def run(problem: Problem, arguments: argparse.Namespace) -> str:
    watch = Watch(problem, arguments.ii_only)
    if arguments.milp:
        other = milp.solve(problem, arguments.milp, time_limit=arguments.time_limit, on_plan=watch.on_plan)
        status, plan, bound, reason = other.status, other.plan, other.bound, None
    else:
        outcome = cpsat.solve(
            problem,
            time_limit=arguments.time_limit,
            workers=arguments.workers,
            seed=arguments.seed,
            on_plan=watch.on_plan,
            on_bound=watch.on_bound,
            should_stop=watch.should_stop,
        )
        status, plan, bound, reason = outcome.status, outcome.plan, outcome.bound, outcome.reason
    seconds = time.monotonic() - watch.began
    checked = reason or ""
    if plan is not None:
        found = verify(problem, plan)
        try:
            compare(problem, plan, 6)
            checked = "verified, same numbers" if found.ok else str(found.violations[0])
        except VerificationError as error:
            checked = f"wrong numbers: {error}"
    low, span = ("", "") if bound is None else decode_objective(bound)
    cells = [
        problem.name,
        len(problem.instructions),
        len(problem.edges),
        least_ii(problem),
        "" if plan is None else plan.ii,
        low,
        "" if watch.proven_after is None else f"{watch.proven_after:.1f} s",
        "" if plan is None else plan.makespan,
        span,
        status,
        f"{seconds:.1f} s",
        checked,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("graphs", nargs="*", default=list(KERNELS))
    parser.add_argument("--machine", default="se", help="name, or path of a machine file")
    parser.add_argument("--inputs", choices=["variables", "copies", "instructions"], default="variables")
    parser.add_argument("--siblings", choices=["consumers", "consumers_and_producers", "none"], default="consumers")
    parser.add_argument("--starts", choices=["flow", "source"], default="flow")
    parser.add_argument("--max-delay", type=int, help="clocks that a value may wait; without it, any number")
    parser.add_argument("--pass-through", action="store_true", help="values may go through tiles on their way")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each graph")
    parser.add_argument("--ii-only", action="store_true", help="stop once the initiation interval is proven")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--milp", metavar="SOLVER", help="the mixed-integer program instead, with this solver")
    arguments = parser.parse_args()
    rules = Rules(
        max_delay=arguments.max_delay,
        pass_through=arguments.pass_through,
        starts=arguments.starts,
        siblings=arguments.siblings,
    )
    machine = load_machine(arguments.machine)
    delays = "unlimited delays" if rules.max_delay is None else f"delays of at most {rules.max_delay} clocks"
    print(f"Initiation intervals are proven for {delays}.\n")
    print("| graph | nodes | edges | MII | II | II proven | after | makespan | proven | status | seconds | check |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|---|")
    for name in sorted(arguments.graphs, key=lambda each: Path(each).stat().st_size if Path(each).exists() else 0):
        print(run(lower(graph(name), machine, rules=rules, inputs=arguments.inputs), arguments), flush=True)


if __name__ == "__main__":
    main()
