"""Certified bounds against brute force on many random problems of every kind: none may claim more than the best plan costs.

python -m benchmarks.certificates.random_problems --count 1000
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from stowplan.certificates.maker import certify
from tests.certificates.cases import CASES


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="problems of each kind")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--kinds", nargs="*", choices=[*CASES], default=[*CASES])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each kind, at most")
    parser.add_argument("--proof-seconds", type=float, default=1.0, help="for each proof")
    options = parser.parse_args()
    wrong = 0
    for kind in options.kinds:
        began, tried, tight, forms = time.monotonic(), 0, 0, Counter[str]()
        for seed in range(options.first, options.first + options.count):
            if time.monotonic() - began > options.seconds:
                break
            problem, best = CASES[kind](seed)
            tried += 1
            # What is claimed is the optimum, or more than it: no proof may show more.
            for claimed in (best,) if best is None else (best, best + 1, best + 1_000_000):
                found = certify(problem, bound=claimed, infeasible=best is None, seconds=options.proof_seconds)
                if found.is_proof:
                    found.check(problem)
                    forms[found.form] += claimed == best
                    tight += claimed == best and found.bound == best
                    if best is not None and (found.bound is None or found.bound > best):
                        wrong += 1
                        print(f"{kind} {seed}: claims {found.bound}, the optimum is {best}")
        said = ", ".join(f"{form} {number}" for form, number in forms.most_common())
        print(f"{kind}: {tried} problems, {tight} certified to the optimum or as infeasible ({said})", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
