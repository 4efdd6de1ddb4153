"""Modulo scheduling over data-flow graphs: ``python -m benchmarks.modulo_scheduling.graphs [GRAPH...] [--max-delay 1]``.

A GRAPH is a JSON or DOT file, a folder of them, or a kernel: distance, vector_add, multiply_add, fft8, fft16, ifft32 ...
Without any, the kernels. For each and each ``--max-delay``, ``--method`` proves, and methods ``--beside`` it are run at equal
evaluations. Every plan is verified, and run in the simulator against NumPy. Prints markdown tables.

Records are appended to ``--records`` as JSON lines; a run that is there already is not run again. ``--write PAGE`` puts the
tables between the markers of a page, as in docs/results/modulo-scheduling.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from benchmarks.lib.tables import write_into
from benchmarks.modulo_scheduling.runs import COUNTED, KERNELS, Options, Record, Store, method_of
from benchmarks.modulo_scheduling.tables import delay_name, kernel_table, open_table, outcome_table, suite_table
from stowplan.errors import InputError


def graphs_of(names: list[str]) -> list[str]:
    """Kernels and files, those of folders too; small files first."""
    found = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = (each for each in path.rglob("*") if each.suffix in (".json", ".dot", ".gv"))
            found += [str(each) for each in inside]
        else:
            found.append(name)
    return sorted(found, key=lambda each: Path(each).stat().st_size if Path(each).exists() else 0)


def delays_of(text: str) -> list[int | None]:
    return [None if each == "unlimited" else int(each) for each in text.split(",")]


def say(record: Record) -> None:
    """A line on standard error for each run that has ended."""
    found = "no plan" if record.ii is None else f"II {record.ii}, latency {record.makespan}, {record.checked}"
    proven = f", {record.ii_bound} or more" if record.ii_bound is not None else ""
    delays = delay_name(record.max_delay)
    what = f"{record.suite}/{record.graph}, delays {delays}, {record.options.method} {record.options.seed}"
    print(f"{what}: {record.status}, {found}{proven}, {record.seconds} s", file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("graphs", nargs="*", default=list(KERNELS))
    parser.add_argument("--machine", default="se", help="name, or path of a machine file")
    parser.add_argument("--inputs", choices=["variables", "copies", "instructions"], default="variables")
    parser.add_argument("--max-delay", default="unlimited,1,0", help="clocks that a value may wait; several, with commas")
    parser.add_argument("--method", default="portfolio", help="portfolio, cpsat or milp:SOLVER")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each run of it")
    parser.add_argument("--ii-only", action="store_true", help="end it once the initiation interval is proven")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--beside", default="", help="methods counted in evaluations, with commas: search, random, evolution")
    parser.add_argument("--evaluations", type=int, default=1000, help="of each of them")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each of them")
    parser.add_argument("--most-seconds", type=float, default=600.0, help="of each of their runs, should they take so long")
    parser.add_argument("--records", type=Path, help="file of JSON lines to go on with")
    parser.add_argument("--summary", action="store_true", help="outcomes by suite, not a row for each graph")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="put the tables into this page")
    parser.add_argument("--as", dest="name", default="kernels", help="name of its markers; with --max-delay 1 NAME-1 and so on")
    arguments = parser.parse_args()
    beside = [each for each in arguments.beside.split(",") if each]
    if any(each not in COUNTED for each in beside):
        parser.error(f"--beside: found {arguments.beside!r}, expected some of {', '.join(COUNTED)}")
    try:
        method_of(arguments.method)
    except KeyError:
        parser.error(f"--method: found {arguments.method!r}, expected portfolio, cpsat or milp:SOLVER")
    arguments.beside = beside
    return arguments


def main() -> None:
    arguments = parse()
    store = Store(arguments.records)
    proof = Options(
        method=arguments.method,
        time_limit=arguments.time_limit,
        interval_only=arguments.ii_only,
        workers=arguments.workers,
    )
    columns: dict[str, list[Record]] = {}
    texts: dict[str, str] = {}
    for max_delay in delays_of(arguments.max_delay):
        rows = []
        for name in graphs_of(arguments.graphs):
            of = (name, max_delay, arguments.inputs, arguments.machine)
            first = store.get(*of, proof)
            say(first)
            beside: dict[str, list[Record]] = {}
            for method in arguments.beside:
                counted = Options(method=method, evaluations=arguments.evaluations, time_limit=arguments.most_seconds)
                beside[method] = []
                for seed in range(arguments.seeds):
                    beside[method].append(store.get(*of, msgspec.structs.replace(counted, seed=seed)))
                    say(beside[method][-1])
            rows.append((first, beside))
        columns[delay_name(max_delay)] = [record for record, _ in rows]
        if not arguments.summary:
            texts[f"{arguments.name}-{delay_name(max_delay)}"] = kernel_table(rows)
    if arguments.summary:
        texts[f"{arguments.name}-outcomes"] = outcome_table(columns)
        texts[f"{arguments.name}-suites"] = suite_table(columns)
        first = next(iter(columns))
        texts[f"{arguments.name}-open"] = open_table({first: columns[first]})
    for title, text in texts.items():
        print(f"\n{title}\n\n{text}")
    if arguments.write is not None:
        try:
            write_into(arguments.write, texts)
        except InputError as error:
            sys.exit(f"{error}")


if __name__ == "__main__":
    main()
