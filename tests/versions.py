"""Whether the tests pass with the lowest and the highest version of each dependency: one environment for each row.

    python -m tests.versions [--rows lowest highest ...] [--python PROGRAM ...] [--torch torch==VERSION ...]

Installs the package from this checkout with the versions of a row, without ``constraints.txt``, and runs a part of the tests:
of every kind its models, its candidates and its readers. Prints a table of what was installed and whether they passed; ends
with 1 where some did not. It needs a network; rows with torch are left out where torch is not named by ``--torch``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from benchmarks.lib.tables import table
from tests.paths import ROOT

#: Tests that touch every kind and every core dependency in a few minutes.
TESTS = (
    "tests/test_result.py", "tests/test_files.py", "tests/test_compiled.py", "tests/models", "tests/portfolio/packing",
    "tests/portfolio/tier_placement", "tests/frontends/network", "tests/cli/test_solve.py", "tests/cli/test_verify.py",
)  # fmt: skip

#: And of those that need torch.
LEARNED = ("tests/learned_guidance/nn", "tests/learned_guidance/tier_placement", "tests/learned_guidance/modulo_scheduling/ppo")

#: Extras that the tests above use.
EXTRAS = ("viz", "frontends", "poly")


def project() -> dict[str, list[str]]:
    """Requirements of the package by extra; ``""``: of the package itself."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"": found["dependencies"], **found["optional-dependencies"]}


def lowest(requirements: Iterable[str]) -> list[str]:
    """Each at the least version that it allows."""
    return [re.sub(r"[>=]=([\d.]+).*", r"==\1", each.replace(" ", "")) for each in requirements]


def environment(folder: Path, python: str, requirements: list[str], torch: str | None) -> Path:
    """The interpreter of a new environment."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = folder / "bin" / "python"
    pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if torch is not None:
        subprocess.run([*pip, torch], check=True)
    subprocess.run([*pip, *requirements, "pytest>=9", "hypothesis>=6.140"], check=True)
    subprocess.run([*pip, "--no-deps", str(ROOT)], check=True)
    return own


def versions_of(python: Path, names: Iterable[str]) -> str:
    """What is installed."""
    code = f"from importlib.metadata import version; print(', '.join(f'{{n}} {{version(n)}}' for n in {sorted(names)!r}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=["lowest", "highest"], choices=["lowest", "highest"])
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="PROGRAM", help="interpreters, each a row")
    parser.add_argument("--torch", nargs="+", default=[], metavar="REQUIREMENT", help="torch==VERSION, each a row of highest")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="in place of the usual part")
    options = parser.parse_args(None if arguments is None else list(arguments))
    requirements = project()
    core = [*requirements[""], *(each for extra in EXTRAS for each in requirements[extra])]
    wanted = [(row, python, None) for row in options.rows for python in options.python]
    wanted += [("highest", options.python[0], torch) for torch in options.torch]
    rows, failed = [], False
    for row, python, torch in wanted:
        chosen = [*core, *(each for each in requirements["learned"] if torch and not each.startswith("torch>"))]
        if row == "lowest":
            chosen = lowest(chosen)
        with tempfile.TemporaryDirectory() as folder:
            own = environment(Path(folder), python, chosen, torch)
            tests = [*options.tests, *(LEARNED if torch else ())]
            command = [str(own), "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, check=False
            )
            print(done.stdout[-2000:], file=sys.stderr)
            names = [re.split(r"[<>=]", each)[0] for each in [*requirements[""], *(["torch"] if torch else [])]]
            version = subprocess.run([str(own), "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
            rows.append([row, version, versions_of(own, names), (done.stdout.strip().splitlines() or ["nothing ran"])[-1]])
            failed |= done.returncode != 0
    print(table(rows, ["row", "Python", "versions", "tests"]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
