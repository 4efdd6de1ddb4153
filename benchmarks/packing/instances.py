"""Made-up packing problems: ``python -m benchmarks.packing.instances KIND BUFFERS [--seed N] -o FILE``.

- ``mixed``: lives from one moment to a third of all time, any order of magnitude as likely; log-normal sizes.
- ``training``: half of the buffers live from a forward pass to the same place of a backward pass, the others shortly.
- ``short``: lives of up to a hundredth of all time, sizes of 64 to 64,000 bytes.
- ``level``: lives of up to a tenth of all time and sizes of up to 100,000 bytes, so that nearly every moment is crowded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def make(kind: str, count: int, seed: int) -> tuple[Ints, Ints, Ints]:
    """First moments, moments after the last, and sizes in bytes, each [count]."""
    chance = np.random.default_rng(seed)
    time = 2 * count
    lower = chance.integers(0, time, count)
    if kind == "mixed":
        life = np.maximum(1, time * 10 ** chance.uniform(-5, -0.5, count)).astype(np.int64)
        return lower, np.minimum(time + 1, lower + life), np.maximum(1, np.exp(chance.normal(10, 2.5, count))).astype(np.int64)
    if kind == "training":
        half = count // 2
        lower[:half] = np.sort(lower[:half] // 2)
        upper = lower + 1 + chance.geometric(0.02, count)
        mirrored = time - lower[:half] + chance.integers(-time // 50, time // 50, half)
        upper[:half] = np.minimum(time, np.maximum(lower[:half] + 1, mirrored))
        return lower, upper, 512 * np.maximum(1, np.exp(chance.normal(5, 2, count))).astype(np.int64)
    if kind == "short":
        return lower, lower + chance.integers(1, max(2, time // 100), count), 64 * chance.integers(1, 1000, count)
    return lower, np.minimum(time + 1, lower + chance.integers(1, time // 10, count)), chance.integers(1, 100_000, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("mixed", "training", "short", "level"))
    parser.add_argument("buffers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows = zip(*(each.tolist() for each in make(arguments.kind, arguments.buffers, arguments.seed)), strict=True)
    with open(arguments.output, "w", encoding="utf-8") as stream:
        stream.write("id,lower,upper,size\n")
        stream.writelines(f"b{number},{lower},{upper},{size}\n" for number, (lower, upper, size) in enumerate(rows))


if __name__ == "__main__":
    main()
