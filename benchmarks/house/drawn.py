"""Modules of the package drawn by a seed, for a first reading (``benchmarks/house/reading.md``).

    python -m benchmarks.house.drawn 12 --seed 7

Prints the path and the length in lines of each module that is drawn, one per line. Modules of fewer than 60 lines are never
drawn. The same seed draws the same modules from the same tree.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from pathlib import Path, PurePath

from benchmarks.lib.places import ROOT

PACKAGE = ROOT / "stowplan"

#: Shorter modules are left out: there is too little in them to misunderstand.
LEAST_LINES = 60


def modules(folder: Path = PACKAGE, least_lines: int = LEAST_LINES) -> dict[PurePath, int]:
    """Lengths of the modules below a folder that have enough lines, blank ones included, by their path in its parent."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(folder.rglob("*.py"))}
    return {path.relative_to(folder.parent): lines for path, lines in lengths.items() if lines >= least_lines}


def draw(paths: Iterable[PurePath], count: int, seed: int) -> list[PurePath]:
    """As many different paths drawn by chance; raises ValueError if there are not as many."""
    return random.Random(seed).sample(sorted(paths), count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=12, help="number of modules to draw (default: 12)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0)")
    options = parser.parse_args()
    lengths = modules()
    if not 0 < options.count <= len(lengths):
        parser.error(f"count must be from 1 to {len(lengths)}")
    for path in draw(lengths, options.count, options.seed):
        print(f"{path.as_posix()} {lengths[path]}")


if __name__ == "__main__":
    main()
