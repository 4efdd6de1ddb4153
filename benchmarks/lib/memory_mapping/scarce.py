"""Programs with room between what heuristics find and what is possible: the corpus with little fast memory.

Families of networks are split once, before anything is trained: what learns may see :data:`TRAINING`, settings are chosen on
:data:`CHOOSING`, and what a page says is of :data:`TESTING`. A case is a line of text that makes its program again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

import stowplan
from benchmarks.lib.places import SHARED
from stowplan.learned_guidance.memory_mapping.game.programs import excerpt, with_capacity, with_copy_times
from stowplan.models.memory_mapping.problem import Problem

#: Families, by how names of modules begin. Each module is of one.
TRAINING = ("alexnet", "bert", "efficientnet", "gpt", "lstm", "mixer", "transformer", "alphatensor")
CHOOSING = ("wavenet", "parallel_wavenet", "mnasnet", "gnn", "vgg")
TESTING = ("resnet", "nmt", "vit", "unet", "rnn", "dlrm")
PARTS = {"training": TRAINING, "choosing": CHOOSING, "testing": TESTING}

#: Fast memory, over the target's.
CAPACITIES = (0.25, 0.35, 0.5, 0.7)

#: Time of a copy over the target's, at :data:`SCARCE` of the capacity.
COPY_TIMES, SCARCE = (0.5, 2.0), 0.35

#: Windows of each module: how many, and how many uses each has.
WINDOWS, WINDOW_USES = 2, (200, 2000)


def modules(part: str) -> list[str]:
    """Names of the modules of a part, with their folder, the small ones first."""
    folders = ("tpu_v4", "tpu_v4_large")
    files = [path for folder in folders for path in (SHARED / "corpus" / folder).glob("*.hlo.txt.gz")]
    files.sort(key=lambda path: (path.stat().st_size, path.name))
    found = [path for path in files if path.name.startswith(PARTS[part])]
    return [f"{path.parent.name}/{path.name.removesuffix('.hlo.txt.gz')}" for path in found]


def cases(part: str) -> Iterator[str]:
    """All cases of a part: whole modules at each capacity, at other copy bandwidths, then windows."""
    names = modules(part)
    for capacity in CAPACITIES:
        yield from (f"{name} {capacity:g}" for name in names)
    for times in COPY_TIMES:
        yield from (f"{name} {SCARCE:g} copies {times:g}" for name in names)
    for number in range(WINDOWS):
        yield from (f"{name} {SCARCE:g} window {number}" for name in names)


@lru_cache(maxsize=8)
def _module(name: str) -> Problem:
    problem: Problem = stowplan.read(SHARED / "corpus" / f"{name}.hlo.txt.gz", target="tpu-v4")
    return problem


def made(case: str) -> Problem:
    """The program of a case; always the same."""
    name, capacity, *rest = case.split()
    whole = problem = _module(name)
    if rest[:1] == ["window"]:
        rng = np.random.default_rng(zlib.crc32(case.encode()))
        ends = np.cumsum([len(step.uses) for step in whole.steps])
        wanted = min(int(np.exp(rng.uniform(*np.log(WINDOW_USES)))), int(ends[-1]))
        start = int(rng.integers(0, ends[-1] - wanted + 1))
        first, last = (int(np.searchsorted(ends, each)) for each in (start, start + wanted - 1))
        problem = excerpt(whole, first, last + 1)
    elif rest:
        problem = with_copy_times(whole, float(rest[1]))
    size = int(float(capacity) * whole.capacity) // whole.alignment * whole.alignment
    return with_capacity(problem, max(size, whole.alignment))
