"""The search for small initiation intervals with parallel tempering and without.

    python -m benchmarks.modulo_scheduling.tempering GRAPH...

Both get the same processor time, one after the other in one process, for each graph and seed; CP-SAT has no part in it. Every
plan is verified. Prints a markdown table; ``--write PAGE`` puts it between the markers ``tempering`` of a page.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.lib.modulo_scheduling.equal_work import spend
from benchmarks.lib.tables import table, write_into
from benchmarks.modulo_scheduling.runs import problem_of
from stowplan.errors import InputError
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure
from stowplan.models.modulo_scheduling.verify import verify


def interval(problem: Problem, seed: int, seconds: float, *, tempering: bool) -> int | None:
    """The initiation interval that the search reaches in so many processor seconds."""
    until = time.process_time() + seconds
    # More evaluations than there is time for.
    tally = spend(problem, "search", 1 << 40, seed=seed, tempering=tempering, should_stop=lambda: time.process_time() >= until)
    if tally.best is None:
        return None
    assert verify(problem, tally.best).ok
    return tally.best.ii


def name_of(ii: int | None) -> str:
    return "none" if ii is None else str(ii)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("graphs", nargs="+", help="JSON or DOT files, or kernels")
    parser.add_argument("--machine", default="se", help="name, or path of a machine file")
    parser.add_argument("--inputs", choices=["variables", "copies", "instructions"], default="instructions")
    parser.add_argument("--seconds", type=float, default=30.0, help="processor time of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", metavar="PAGE", type=Path, help="put the table into this page")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.graphs:
        problem = problem_of(name, None, arguments.inputs, arguments.machine)
        cells = []
        for tempering in (False, True):
            found = []
            for seed in range(arguments.seeds):
                found.append(interval(problem, seed, arguments.seconds, tempering=tempering))
                print(
                    f"{problem.name}, seed {seed}, tempering {tempering}: II {name_of(found[-1])}", file=sys.stderr, flush=True
                )
            cells.append(", ".join(map(name_of, found)))
        rows.append((problem.name, len(problem.instructions), least_ii(problem, Structure(problem)), *cells))
    text = table(rows, ("graph", "instructions", "MII", "without tempering", "with tempering"))
    print(text)
    if arguments.write is not None:
        try:
            write_into(arguments.write, {"tempering": text})
        except InputError as error:
            sys.exit(f"{error}")


if __name__ == "__main__":
    main()
