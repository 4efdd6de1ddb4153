"""Runs whose search begins with parallel tempering early, and runs in which list scheduling comes first, without a limit.

    python -m benchmarks.modulo_scheduling.early_tempering [FOLDER ...] --time-limit 3 --seeds 3

The search of modulo scheduling begins with list scheduling. If that has no schedule after a number of placements, parallel
tempering takes over (:attr:`stowplan.portfolio.modulo_scheduling.search.SearchParameters.first_placements`). Both variants,
with this number and without a limit, run in processes of their own, graph by graph in turn. The graphs are FFTs, those of
:mod:`benchmarks.lib.modulo_scheduling.networks`, and the JSON files in the folders that are named, one family for each folder.
Delays are not limited. Every run ends when its initiation interval (II) is proven minimal, or at the time limit.

Prints a row for each family. A cell has the number of runs with a plan, the number of runs that reach the least II that any run
found, and the median of the seconds until then, where a run that does not reach it counts with its time limit. ``--write PAGE``
puts the table between the markers ``early-tempering`` of a page.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import stowplan
from benchmarks.lib.modulo_scheduling import networks
from benchmarks.lib.parameter_files import environment
from benchmarks.lib.tables import table, write_into
from benchmarks.modulo_scheduling.runs import INTERVAL_GAP, graph_of
from stowplan.frontends.dfg import Dfg, lower
from stowplan.hardware.se import load_machine
from stowplan.models.modulo_scheduling.plan import decode_objective
from stowplan.models.modulo_scheduling.problem import Rules

#: Values of the parameters of each variant.
VARIANTS = {"early tempering": "", "list scheduling first": f"[modulo_scheduling.search]\nfirst_placements = {1 << 60}\n"}


class Outcome(NamedTuple):
    """The best plan of a run: its II, or None without a plan, and the seconds since the call until a plan had it."""

    ii: int | None
    seconds: float


def graphs(folders: list[str]) -> Iterator[tuple[str, Dfg]]:
    """Families with their graphs."""
    yield from (("FFTs", graph_of(f"fft{points}")) for points in (8, 16, 32, 64))
    for family, members in networks.families().items():
        yield from ((family, graph) for graph in members)
    for folder in folders:
        yield from ((Path(folder).name, graph_of(str(path))) for path in sorted(Path(folder).glob("*.json")))


def run(graph: Dfg, seed: int, seconds: float) -> Outcome:
    """What a run finds."""
    problem = lower(graph, load_machine("se"), rules=Rules(max_delay=None), inputs="instructions")
    result = stowplan.solve(problem, time_limit=seconds, seed=seed, gap=INTERVAL_GAP)
    if result.objective is None:
        return Outcome(None, seconds)
    plans = [(decode_objective(entry.objective)[0], entry.seconds) for entry in result.history if entry.objective is not None]
    best = min(ii for ii, _ in plans)
    return Outcome(best, next(after for ii, after in plans if ii == best))


def child(folders: list[str], seconds: float) -> None:
    """Answer lines ``index seed`` on standard input with lines of JSON, an :class:`Outcome` each."""
    members = list(graphs(folders))
    for line in sys.stdin:
        index, seed = map(int, line.split())
        print(json.dumps(run(members[index][1], seed, seconds)), flush=True)


def compared(folders: list[str], seeds: int, seconds: float) -> dict[str, dict[str, list[list[Outcome]]]]:
    """By family and variant: a list for each graph, with an outcome for each seed."""
    found: dict[str, dict[str, list[list[Outcome]]]] = defaultdict(lambda: defaultdict(list))
    command = [
        sys.executable,
        "-m",
        "benchmarks.modulo_scheduling.early_tempering",
        *folders,
        "--child",
        "--time-limit",
        str(seconds),
    ]
    with ExitStack() as stack:
        children = {
            variant: subprocess.Popen(
                command,
                env=stack.enter_context(environment(parameters)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for variant, parameters in VARIANTS.items()
        }
        for index, (family, graph) in enumerate(graphs(folders)):
            for variant, process in children.items():
                assert process.stdin is not None
                assert process.stdout is not None
                outcomes = []
                for seed in range(seeds):
                    process.stdin.write(f"{index} {seed}\n")
                    process.stdin.flush()
                    outcomes.append(Outcome(*json.loads(process.stdout.readline())))
                found[family][variant].append(outcomes)
            print(family, graph.name, *(found[family][variant][-1] for variant in VARIANTS), file=sys.stderr, flush=True)
        for process in children.values():
            process.communicate()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="Folders of JSON graphs.")
    parser.add_argument("--time-limit", type=float, default=3.0, help="Seconds of each run (default: 3).")
    parser.add_argument("--seeds", type=int, default=3, help="Number of seeds (default: 3).")
    parser.add_argument("--write", type=Path, help="Put the table between the markers of this page.")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.folders, arguments.time_limit)
        return
    found = compared(arguments.folders, arguments.seeds, arguments.time_limit)
    rows = []
    for family, variants in found.items():
        # The least II that any run found, for each graph.
        members = zip(*variants.values(), strict=True)
        least = [min((one.ii for runs in both for one in runs if one.ii is not None), default=None) for both in members]
        cells = []
        for outcomes in variants.values():
            runs = [(one, best) for each, best in zip(outcomes, least, strict=True) for one in each]
            times = [one.seconds if one.ii is not None and one.ii == best else arguments.time_limit for one, best in runs]
            plans = sum(one.ii is not None for one, _ in runs)
            reached = sum(one.ii is not None and one.ii == best for one, best in runs)
            cells.append(f"{plans}, {reached}, {statistics.median(times):.2g} s")
        rows.append((family, len(least), len(runs), *cells))
    text = table(rows, ("family", "graphs", "runs", *VARIANTS))
    print(text)
    if arguments.write is not None:
        write_into(arguments.write, {"early-tempering": text})


if __name__ == "__main__":
    main()
