"""Loops on other mappers' machines: their mapper and ours on the same graph and the same machine.

    python -m benchmarks.foreign.loops --lite CHECKOUT --python PYTHON [--satmapit CHECKOUT] [GRAPH...] [--sides 3,4]

``--lite`` is a checkout of github.com/CristianTirelli/SAT-MapIt-Lite, ``--python`` a Python with ``z3-solver``, ``--satmapit``
a checkout of github.com/CristianTirelli/SAT-MapIt with its history, whose loops are then mapped; a GRAPH is a JSON or DOT file,
or a folder of them. Both mappers have one thread and ``--time-limit`` seconds of the processor, without the start of Python.
Our verifier judges both mappings, and SAT-MapIt's own constraints judge ours. Prints a markdown table; ``--write PAGE`` puts it
between the markers ``loops-satmapit`` of a page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.foreign import satmapit
from benchmarks.lib.tables import table, write_into
from benchmarks.modulo_scheduling.graphs import graphs_of
from benchmarks.modulo_scheduling.runs import graph_of
from stowplan.errors import InputError
from stowplan.frontends.dfg import Dfg, lower
from stowplan.hardware.se import load_machine
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.plan import Plan, decode_objective
from stowplan.models.modulo_scheduling.problem import Problem, Rules
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling.candidates import list_plan


class Ours(NamedTuple):
    """What our run found about the initiation interval."""

    plan: Plan | None
    least: int
    """The proven bound."""
    planned: float | None
    """Seconds until the plan with this interval was found."""
    proven: float | None
    """Seconds until the bound met it."""
    seconds: float = 0.0
    """Seconds of the whole run."""


def solve(problem: Problem, seconds: float) -> Ours:
    """The least initiation interval by list scheduling and the exact search that follows it, in this thread.

    All seconds are those of the processor, which other programs on the machine hardly change.
    """
    began = time.process_time()
    state = Ours(None, 0, None, None)

    def after() -> float:
        return time.process_time() - began

    def on_bound(bound: int) -> None:
        nonlocal state
        state = state._replace(least=max(state.least, decode_objective(bound)[0]))
        settle()

    def on_plan(plan: Plan) -> None:
        nonlocal state
        if state.plan is None or plan.ii < state.plan.ii:
            state = state._replace(plan=plan, planned=after())
        settle()

    def settle() -> None:
        nonlocal state
        if state.proven is None and state.plan is not None and state.plan.ii <= state.least:
            state = state._replace(proven=after())

    def should_stop() -> bool:
        return state.proven is not None or after() > seconds

    hint = list_plan(problem, 0, should_stop)
    if hint is not None:
        on_plan(hint)
    # The limit of the search is in seconds of the clock; a busy machine needs many of them for one of the processor.
    outcome = cpsat.solve(
        problem, hint=hint, time_limit=20 * seconds, workers=1, on_plan=on_plan, on_bound=on_bound, should_stop=should_stop
    )
    if outcome.plan is not None:
        on_plan(outcome.plan)
    if outcome.bound is not None:
        on_bound(outcome.bound)
    return state._replace(seconds=after())


def row_of(peer: satmapit.Peer, graph: Dfg, side: int, seconds: float) -> tuple[list[object], list[str]]:
    """A row of the table, and what it counts as."""
    # Producer and consumers may share a tile there, and so may starts: a plan of another rule would not be theirs.
    rules = Rules(siblings="none", starts="flow")
    problem = lower(graph, load_machine(f"satmapit-{side}x{side}"), rules=rules, inputs="instructions")
    mapped, ours = satmapit.run(peer, problem, seconds), solve(problem, seconds)
    counts: list[str] = []
    theirs_checked = ours_checked = ""
    if mapped.ii is not None:
        plan = satmapit.plan_of(problem, mapped)
        theirs_checked = "yes" if plan is not None and verify(problem, plan).ok else "no"
        counts.append(f"ours on theirs: {theirs_checked}")
    if ours.plan is not None:
        assert verify(problem, ours.plan).ok
        ours_checked = "yes" if satmapit.accepts(peer, problem, ours.plan) else "no"
        counts.append(f"theirs on ours: {ours_checked}")
    counts.append(_compared(mapped.ii, None if ours.plan is None else ours.plan.ii))
    found = mapped.ii if mapped.ii is not None else f"none, ran out at II {mapped.at_least}"
    row = [graph.name, len(problem.instructions), f"{side} x {side}", found, f"{mapped.seconds:.1f}", theirs_checked]
    row += ["none" if ours.plan is None else ours.plan.ii, _proof(ours), seconds_text(ours.planned), seconds_text(ours.proven)]
    return [*row, ours_checked], counts


def _compared(theirs: int | None, ours: int | None) -> str:
    if theirs is None or ours is None:
        return {(True, True): "neither found", (True, False): "only ours found", (False, True): "only theirs found"}[
            theirs is None, ours is None
        ]
    return "ours smaller" if ours < theirs else "theirs smaller" if theirs < ours else "equal"


def _proof(ours: Ours) -> str:
    return "minimal" if ours.proven is not None else f"{ours.least} or more"


def seconds_text(value: float | None) -> str:
    """Seconds with one digit; empty for None."""
    return "" if value is None else f"{value:.1f}"


HEAD = (
    "loop",
    "instructions",
    "tiles",
    "II of SAT-MapIt",
    "CPU s",
    "our verifier accepts it",
    "our II",
    "II proven",
    "CPU s to plan",
    "CPU s to proof",
    "their constraints accept ours",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("graphs", nargs="*", help="JSON or DOT files, or folders of them")
    parser.add_argument("--lite", type=Path, required=True, help="checkout of SAT-MapIt-Lite")
    parser.add_argument("--python", type=Path, required=True, help="Python that has z3-solver")
    parser.add_argument("--satmapit", type=Path, help="checkout of SAT-MapIt with its history: also map its loops")
    parser.add_argument("--sides", default="2,3,4,5", help="numbers of rows of the square tori")
    parser.add_argument(
        "--time-limit", type=float, default=60.0, help="seconds of the processor for each mapper, graph and torus"
    )
    parser.add_argument("--summary", action="store_true", help="print counts in place of rows")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="put the table into this page")
    parser.add_argument("--as", dest="name", default="loops-satmapit", help="name of its markers")
    arguments = parser.parse_args()
    peer = satmapit.Peer(arguments.lite.resolve(), arguments.python.absolute())
    graphs = satmapit.loops(arguments.satmapit) if arguments.satmapit is not None else []
    graphs += [graph_of(name) for name in graphs_of(arguments.graphs)]
    rows: list[list[object]] = []
    counts: Counter[str] = Counter()
    for graph in graphs:
        for side in map(int, arguments.sides.split(",")):
            problem = lower(graph, load_machine(f"satmapit-{side}x{side}"), inputs="instructions", fan_out=0)
            reason = satmapit.why_not(problem)
            if reason is not None:
                print(f"{graph.name}: left out, it has {reason}", file=sys.stderr)
                break
            row, counted = row_of(peer, graph, side, arguments.time_limit)
            print(", ".join(map(str, row)), file=sys.stderr, flush=True)
            rows.append(row)
            counts.update(counted)
    text = table(sorted(counts.items()), ("what", "loops and tori")) if arguments.summary else table(rows, HEAD)
    print(text)
    if not arguments.summary:
        print("\n" + table(sorted(counts.items()), ("what", "loops and tori")))
    if arguments.write is not None:
        try:
            write_into(arguments.write, {arguments.name: text})
        except InputError as error:
            sys.exit(f"{error}")


if __name__ == "__main__":
    main()
