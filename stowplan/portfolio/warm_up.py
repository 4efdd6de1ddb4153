"""``python -m stowplan.portfolio.warm_up``: compile the heuristics ahead of time, for this machine and user."""

from __future__ import annotations

import sys
import time

from stowplan import kinds
from stowplan.compiled import cache_folder
from stowplan.portfolio.kind import kind

#: What is compiled besides the kinds' own.
_OTHERS = {
    "MMapGame": "stowplan.learned_guidance.memory_mapping.game.kernel.state:warm_up",
    "simulated chip": "stowplan.hardware.nnp_i.kernel:warm_up",
    "mappings of loop bodies": "stowplan.learned_guidance.modulo_scheduling.rollouts:warm_up",
    "decoding of policies": "stowplan.learned_guidance.tier_placement.decode:warm_up",
}


def main() -> int:
    """Compile what is not compiled yet; returns the exit code, 0."""
    began = time.monotonic()
    print("the heuristics are compiled once for a machine, which takes about half a minute:", file=sys.stderr, flush=True)
    parts = {each.title: kind(each.name).warm_up for each in kinds.registered() if kind(each.name).warm_up} | _OTHERS
    for part, function in parts.items():
        before = time.monotonic()
        kinds.load(function)()
        print(f"  {part}: {time.monotonic() - before:.1f} s", file=sys.stderr, flush=True)
    print(f"ready after {time.monotonic() - began:.1f} s, in {cache_folder()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
