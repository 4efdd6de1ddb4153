"""``python -m stowplan.portfolio.warm_up``: compile the heuristics ahead of time, for this machine and user."""

from __future__ import annotations

import importlib
import sys
import time

from stowplan.compiled import cache_folder

#: Modules with a ``warm_up`` that runs everything compiled on the smallest of problems, by kind.
COMPILED = {
    "packing": "stowplan.portfolio.packing.canonical",
    "tier placement": "stowplan.portfolio.tier_placement.heuristics",
    "memory mapping": "stowplan.portfolio.memory_mapping.heuristics",
    "MMapGame": "stowplan.learned_guidance.memory_mapping.game.kernel",
}


def main() -> int:
    """Compile what is not compiled yet; returns the exit code, 0."""
    began = time.monotonic()
    print("the heuristics are compiled once for a machine, which takes about half a minute:", file=sys.stderr, flush=True)
    for kind, module in COMPILED.items():
        before = time.monotonic()
        importlib.import_module(module).warm_up()
        print(f"  {kind}: {time.monotonic() - before:.1f} s", file=sys.stderr, flush=True)
    print(f"ready after {time.monotonic() - began:.1f} s, in {cache_folder()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
