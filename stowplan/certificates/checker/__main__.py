"""``python -m stowplan.certificates.checker PROBLEM PROOF``: exit code 0 proven, 4 not, 2 no such files."""

from __future__ import annotations

import sys
from pathlib import Path

from stowplan.certificates.checker import MalformedError, UnprovenError, check


def main(names: list[str]) -> int:
    """Check a certificate; the exit code."""
    try:
        if len(names) != 2:
            raise MalformedError("expected the files of a problem and of a certificate")
        problem, proof = (Path(name).read_bytes() for name in names)
        found = check(problem, proof)
    except UnprovenError as error:
        print(f"not proven: {error}", file=sys.stderr)
        return 4
    except (MalformedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"proven by {found.form}: " + ("there is no plan" if found.bound is None else f"no plan is below {found.bound}"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
