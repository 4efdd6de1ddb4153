"""``python -m stowplan.certificates.checker PROBLEM PROOF``: exit code 0 if proven, 4 if not, 2 if a file is not valid."""

from __future__ import annotations

import sys
from pathlib import Path

from stowplan.certificates.checker import check
from stowplan.certificates.checker.reading import MalformedError, UnprovenError, expect

#: Exit codes.
PROVEN, UNREADABLE, NOT_PROVEN = 0, 2, 4


def main(names: list[str]) -> int:
    """Checks a certificate; returns the exit code."""
    try:
        expect(len(names) == 2, "arguments", len(names), "the files of a problem and of a certificate")
        problem, certificate = (Path(name).read_bytes() for name in names)
        verdict = check(problem, certificate)
    except UnprovenError as error:
        print(f"not proven: {error}", file=sys.stderr)
        return NOT_PROVEN
    except (MalformedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNREADABLE
    claim = "there is no plan" if verdict.bound is None else f"no plan is below {verdict.bound}"
    print(f"proven by {verdict.form}: {claim}")
    return PROVEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
