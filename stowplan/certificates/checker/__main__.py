"""``python -m stowplan.certificates.checker PROBLEM PROOF``: exit code 0 proven, 4 not, 2 no such files."""

from __future__ import annotations

import sys
from pathlib import Path

from stowplan.certificates.checker import check
from stowplan.certificates.checker.reading import MalformedError, UnprovenError, expect


def main(names: list[str]) -> int:
    """Check a certificate; the exit code."""
    try:
        expect(len(names) == 2, "arguments", len(names), "the files of a problem and of a certificate")
        found = check(*(Path(name).read_bytes() for name in names))
    except (UnprovenError, MalformedError, OSError) as error:
        is_read = isinstance(error, UnprovenError)
        print(f"not proven: {error}" if is_read else f"error: {error}", file=sys.stderr)
        return 4 if is_read else 2
    print(f"proven by {found.form}: " + ("there is no plan" if found.bound is None else f"no plan is below {found.bound}"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
