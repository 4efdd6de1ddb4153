"""How far scores of XLA's compiles agree, and how whole its plans are imported.

    python -m benchmarks.xla.ranks FOLDER --target tpu-v5e

FOLDER is one that ``stowplan tune-xla --folder`` wrote. A row of the first table for each program text with five plans or more.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.lib.compiles import read_texts
from benchmarks.lib.tables import table
from benchmarks.lib.xla_ranks import IMPORTS, RANKS, drop_reasons, import_row, ranks_row, scored
from stowplan.hardware.targets import load_target

LEAST_PLANS = 5


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="tpu-v5e", help="chip whose compiles are read (default: %(default)s)")
    options = parser.parse_args()
    target = load_target(options.target)
    ranks, imports, reasons = [], dict[str, list[int]](), Counter[str]()
    for text in read_texts(options.folder, target):
        plans = scored(text, target)
        if len(plans) >= LEAST_PLANS:
            ranks.append([text.name, str(len(plans)), *ranks_row(plans)])
        reasons += drop_reasons(plans)
        whole = imports.setdefault(text.workload, [0] * len(IMPORTS))
        imports[text.workload] = [one + other for one, other in zip(whole, import_row(plans), strict=True)]
    if ranks:
        middle = np.nanmedian(np.array([row[2:] for row in ranks], float), axis=0)
        ranks.append(["median", "", *(f"{value:.2f}" for value in middle)])
    print(table(ranks, ("program", "plans", *RANKS)) + "\n")
    total = [sum(column) for column in zip(*imports.values(), strict=True)]
    print(table([*([name, *row] for name, row in imports.items()), ["all", *total]], ("program", *IMPORTS)))
    print("".join(f"\n* {count} stays dropped: {reason}" for reason, count in reasons.most_common()))


if __name__ == "__main__":
    main()
