"""Certified bounds against brute force on many random problems of every kind: none may claim more than the best plan costs.

python -m benchmarks.certificates.random_problems --count 1000
"""

from __future__ import annotations

import argparse
import sys
import time

from stowplan.certificates.maker import certify
from tests.certificates.cases import CASES


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="problems of each kind")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--kinds", nargs="*", choices=[*CASES], default=[*CASES])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each kind, at most")
    options = parser.parse_args()
    wrong = 0
    for kind in options.kinds:
        began, tried, tight = time.monotonic(), 0, 0
        for seed in range(options.first, options.first + options.count):
            if time.monotonic() - began > options.seconds:
                break
            problem, best = CASES[kind](seed)
            found = certify(problem, infeasible=best is None)
            tried += 1
            if found.is_proof:
                found.check(problem)
                tight += found.bound == best
                if best is not None and (found.bound is None or found.bound > best):
                    wrong += 1
                    print(f"{kind} {seed}: claims {found.bound}, the optimum is {best}")
        print(f"{kind}: {tried} problems, {tight} certified to the optimum or as infeasible", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
