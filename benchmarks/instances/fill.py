"""Fills the table of the library: solves instances, and adds plans and certificates that are better than what is there.

    nice -n 10 python -m benchmarks.instances.fill --time-limit 15 --budget 1500

Each instance is solved with its certificate, from the best known plan if there is one. Plans and certificates pass the same
checks as those of anybody (``stowplan library add``), and the table is written after every instance, so that a run that was
interrupted goes on where it was. Instances whose optimum has a certificate are left out.

An instance whose optimum is proven in a first run within ``EASY`` seconds is easy, one that takes longer is hard.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import stowplan
from benchmarks.instances.make import FOLDER
from benchmarks.lib.tables import table
from stowplan.kernel.kind import kind_of
from stowplan.library.check import Addition, added, is_at_least
from stowplan.library.table import INFEASIBLE, Bound, Library, Row
from stowplan.result import Result

#: Seconds from the call of ``solve`` to the proof of the optimum, at most, for an instance that is easy.
EASY = 2.0

WHO = "the stowplan authors"


def without_labels(problem: Any, plan: Any) -> Any:
    """The plan without the fields that repeat facts of the problem, but for names."""
    labels = kind_of(problem).labels(problem, plan)
    defaults = {
        field.name: field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(plan)
        if field.name in labels and not field.required and field.name not in ("name", "target")
    }
    return msgspec.structs.replace(plan, **defaults)


def filled(library: Library, row: Row, time_limit: float, seed: int) -> tuple[Library, Result[Any]]:
    """Solves an instance and adds what is better; the library then has it on disk."""
    problem, plan = library.problem(row), library.plan(row)
    plans = {} if plan is None else {"library": plan}
    result: Result[Any] = stowplan.solve(problem, time_limit=time_limit, seed=seed, plans=plans, certify=True)
    how = f"stowplan solve --time-limit {time_limit:g} --seed {seed} --set certify=yes ({result.seconds:.1f} s)"
    noted = {"who": WHO, "when": datetime.now(UTC).date().isoformat(), "how": how}
    documents = [] if result.plan is None else [without_labels(problem, result.plan)]
    documents += [result.certificate] if result.proof else []
    is_first = row.objective is None and row.bound is None
    for document in documents:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{row.id}.json")
            document.save(path)
            addition: Addition = added(library, library.rows[row.id], path, **noted)
            library = addition.save(library)
    row = with_bound(library.rows[row.id], result, noted)
    if is_first and row.is_proven:
        row = msgspec.structs.replace(row, class_="easy" if result.seconds <= EASY else "hard")
    library = library.changed(row)
    library.save_table()
    return library, result


def with_bound(row: Row, result: Result[Any], noted: dict[str, str]) -> Row:
    """The row with the bound of a result, which may have no certificate, if it is better."""
    bound: Bound = INFEASIBLE if result.status == "infeasible" else result.bound
    if bound is None or is_at_least(row.bound, bound):
        return row
    row = msgspec.structs.replace(row, bound=bound, **noted)
    return msgspec.structs.replace(row, class_="hard") if row.is_proven and row.class_ == "open" else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="ids, or beginnings of ids; by default all")
    parser.add_argument("--library", type=Path, default=FOLDER)
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds for each instance")
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds in all; no instance begins later")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    library, began, cells = Library.open(options.library), time.monotonic(), []
    rows = [row for row in library.rows.values() if not options.names or row.id.startswith(tuple(options.names))]
    chosen = [row for row in rows if not row.is_certified and library.instance(row) is not None]
    # The first call for a kind imports solvers; this must not count as time of an instance.
    for row in {row.kind: row for row in reversed(chosen)}.values():
        stowplan.solve(library.problem(row), time_limit=3.0)
    for row in sorted(chosen, key=lambda row: row.when):
        if time.monotonic() - began > options.budget:
            print("the budget is spent: the same command goes on with the others")
            break
        library, result = filled(library, row, options.time_limit, options.seed)
        new = library.rows[row.id]
        cells.append((row.id, new.class_, new.objective, new.bound, new.certified, result.proof, f"{result.seconds:.1f}"))
        print(*cells[-1], flush=True)
    print(table(cells, ("instance", "class", "objective", "bound", "certified", "proof", "seconds")))


if __name__ == "__main__":
    main()
