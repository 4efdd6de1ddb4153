"""``python -m stowplan.portfolio.warm_up``: compile the heuristics ahead of time, for this machine and user."""

from __future__ import annotations

import sys
import time

from stowplan.portfolio.compiled import cache_folder, is_warm


def main() -> int:
    """Compile what is not compiled yet; returns the exit code, 0."""
    if is_warm():
        print(f"the heuristics are compiled, in {cache_folder()}", file=sys.stderr)
        return 0
    print("compiling the heuristics, once for this machine; this takes some twenty seconds", file=sys.stderr, flush=True)
    from stowplan.portfolio.memory_mapping.heuristics import warm_up
    from stowplan.portfolio.tier_placement.heuristics import warm_up as warm_up_tiers

    began = time.monotonic()
    warm_up_tiers()
    warm_up()
    print(f"compiled in {time.monotonic() - began:.1f} s, in {cache_folder()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
