"""Loops on Morpher's machines: its PathFinder and ours on the same graph.

    python -m benchmarks.foreign.morpher_loops --morpher CHECKOUT --mapper PROGRAM [GRAPH...] [--machines hycube-4x4]

``--morpher`` is a checkout of github.com/ecolab-nus/Morpher_CGRA_Mapper and ``--mapper`` its program, built for example by
``g++ -std=c++17 -O0 -Iinclude src/*.cpp src/*/*.cpp -o PROGRAM`` in the checkout; some of its functions return nothing where
they should, and crash if GCC 12 optimizes them. A GRAPH is an XML file of ``applications``; without any, those of CGRA-ME's
and PolyBench's loops. Each part of a row has ``--time-limit`` seconds of the processor: the mapper of Morpher, our bound, and
our mapping, which is list scheduling for the target with one seed and interval after the other, until the wires and registers
of the machine carry the values. Prints a table; ``--write PAGE`` puts it between the markers ``loops-morpher``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.foreign import morpher
from benchmarks.foreign.fabric import Fabric, carries
from benchmarks.foreign.loops import solve
from benchmarks.lib.tables import table, write_into
from stowplan.errors import InputError
from stowplan.hardware.se import load_machine
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.assemble import make_plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.mapper import Mapper
from stowplan.portfolio.modulo_scheduling.search import Tally

#: Schedules that are tried at each interval.
SEEDS = 8

#: Work of CP-SAT for the wires of one schedule, in its own seconds.
ROUTING = 2.0

HEAD = (
    "loop",
    "instructions",
    "machine",
    "II of Morpher",
    "CPU s",
    "no mapping below II",
    "CPU s",
    "our II",
    "CPU s",
    "schedules tried",
    "our rules allow theirs",
)


class Realized(NamedTuple):
    """Our mapping of a loop to a machine of Morpher."""

    ii: int | None
    seconds: float
    tried: int
    """Schedules, until the wires and registers carried the values of one."""


def realize(problem: Problem, fabric: Fabric, hops: int, seconds: float) -> Realized:
    """The first schedule whose values the wires and registers of a machine carry, from the least interval upwards."""
    began, tried = time.process_time(), 0
    body = Body(problem)
    tally = Tally(body)
    for ii in body.iis:
        for seed in range(SEEDS):
            if time.process_time() > began + seconds:
                return Realized(None, seconds, tried)
            chance = random.Random(f"0 {ii} {seed}")
            mapper = Mapper(body, ii, chance)
            order = [height * (1 + 0.1 * seed * chance.random()) for height in body.heights(ii)]
            if not mapper.run(order, 6 * body.count, lambda: False):
                continue
            plan = make_plan(body.structure, ii, mapper.tiles, tally.shorten_delays(ii, mapper.tiles, mapper.times))
            tried += 1
            if plan is not None and carries(fabric, hops, problem, plan, ROUTING) == "yes":
                assert verify(problem, plan).ok
                return Realized(ii, time.process_time() - began, tried)
    return Realized(None, time.process_time() - began, tried)


def row_of(mapper: Path, checkout: Path, path: Path, name: str, seconds: float) -> list[object]:
    """A row of the table."""
    graph, machine = morpher.read(path), load_machine(name)
    architecture, hops = checkout / "json_arch" / morpher.MACHINES[name], morpher.HOPS[name]
    mapped = morpher.run(mapper, architecture, graph, hops, seconds)
    bound = solve(morpher.relaxed_problem(graph.dfg, machine), seconds)
    problem = morpher.target_problem(graph.dfg, machine)
    ours = realize(problem, Fabric(architecture), hops, seconds)
    allowed = ""
    if mapped.ii is not None:
        plan = cpsat.solve(morpher.fixed_problem(problem, mapped), time_limit=20 * seconds, workers=1).plan
        allowed = "no" if plan is None else "yes"
    found = ["none" if ii is None else ii for ii in (mapped.ii, ours.ii)]
    row: list[object] = [graph.dfg.name, len(graph.dfg.instructions), name, found[0], f"{mapped.seconds:.1f}"]
    return [*row, bound.least, f"{bound.seconds:.1f}", found[1], f"{ours.seconds:.1f}", ours.tried, allowed]


def compared(row: list[object]) -> list[str]:
    """What a row counts as."""
    theirs, bound, ours = row[3], row[5], row[7]
    counts = [f"{who} proven minimal" for who, ii in (("Morpher's II", theirs), ("our II", ours)) if ii == bound]
    if isinstance(theirs, int) and isinstance(ours, int):
        return [*counts, "our II smaller" if ours < theirs else "Morpher's II smaller" if theirs < ours else "equal"]
    return [*counts, *(f"{who} found none" for who, ii in (("Morpher", theirs), ("ours", ours)) if ii == "none")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("graphs", nargs="*", type=Path, help="XML files of Morpher")
    parser.add_argument("--morpher", type=Path, required=True, help="checkout of Morpher_CGRA_Mapper")
    parser.add_argument("--mapper", type=Path, required=True, help="its program")
    parser.add_argument("--machines", default=",".join(morpher.MACHINES), help="names of targets")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of the processor")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="put the table into this page")
    arguments = parser.parse_args()
    applications = arguments.morpher / "applications"
    graphs = arguments.graphs or [*applications.glob("cgra_me_bench/*/*.xml"), *applications.glob("polybench/*.xml")]
    rows: list[list[object]] = []
    for path in sorted(graphs, key=lambda path: path.stat().st_size):
        for name in arguments.machines.split(","):
            rows.append(row_of(arguments.mapper.absolute(), arguments.morpher, path, name, arguments.time_limit))
            print(", ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    text = table(rows, HEAD)
    counts = Counter(count for row in rows for count in compared(row))
    print(f"{text}\n\n{table(sorted(counts.items()), ('what', 'loops and machines'))}")
    if arguments.write is not None:
        try:
            write_into(arguments.write, {"loops-morpher": text})
        except InputError as error:
            sys.exit(f"{error}")


if __name__ == "__main__":
    main()
