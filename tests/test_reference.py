"""The example of each kind's reference page: its file, its commands, what they print, and the excerpt of its plan.

A page shows a file and the command that reads it. Each command is run in a folder of its own, as tests/test_snippets.py runs
those of the guide, and what it prints is compared with the block below it. Seconds are left out, and so is the step that found
the plan: which of several steps that find an optimum comes first depends on the machine.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.paths import EXAMPLES, ROOT
from tests.patience import HANG
from tests.test_snippets import SHELL

KINDS = (
    *("packing", "banked-packing", "operator-order", "rematerialization", "tier-placement", "modulo-scheduling"),
    *("bank-mapping", "memory-mapping", "llm-placement"),
)

#: A fenced block: its language, which commands have and files, outputs and excerpts have not, and its text.
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: A command, and what it prints right below it.
OUTPUT = re.compile(r"^```sh\n([^`]*?)^```\n\n```\n([^`]*?)^```$", re.MULTILINE)

#: The command of the example with a further option, and what it prints then.
VARIANT = re.compile(r"With\s+`(--[^`]+)`,\s+the\s+example\s+gives:\s+```\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: What a run prints and a page cannot foretell, and what stands in its place.
UNSTABLE = (
    (re.compile(r"ended after \d+\.\d s"), "ended after some time"),
    (re.compile(r"\(verified, by [\w ]+\)"), "(verified)"),
    # Where the package was not built, heuristics of a kind may run without machine code.
    (re.compile(r"^  warning    there is no machine code.*\n", re.MULTILINE), ""),
)


class Page(NamedTuple):
    """The example of a page."""

    file: str
    """Name of the problem's file, as the command has it."""
    problem: str
    command: str
    output: str
    excerpt: str
    """Lines of the plan's file."""
    outputs: list[tuple[str, str]]
    """Further commands, in the order of the page, and what each prints: all of it or some of its lines."""
    variants: list[tuple[str, str]]
    """Options of the command, and what it prints with each."""


@functools.cache
def page(kind: str) -> Page:
    """The example of a kind's page."""
    text = (ROOT / "docs" / "reference" / f"{kind}.md").read_text(encoding="utf-8")
    problem = BLOCK.search(text)
    excerpt = BLOCK.search(text, text.index("\n## Plan\n"))
    assert problem is not None
    assert excerpt is not None
    (command, output), *outputs = OUTPUT.findall(text)
    return Page(command.split()[2], problem[2], command, output, excerpt[2], outputs, VARIANT.findall(text))


def stable(text: str) -> str:
    """What a command prints, without what differs between runs."""
    for pattern, instead in UNSTABLE:
        text = pattern.sub(instead, text)
    return text


def run(command: str, folder: Path) -> str:
    """What a command prints; that is no error where a plan is not valid, or there is none."""
    done = subprocess.run(
        ["bash", "-c", SHELL + command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def solve(command: str, folder: Path, shown: str) -> str:
    """What a run prints. One that does not give what the page shows is tried again, with a longer limit.

    Machine code that did not come with the package is made in the first run's time, and a busy machine may be too slow for it.
    """
    output = run(command, folder)
    return output if stable(output) == stable(shown) else run(f"{command.rstrip()} --time-limit {HANG / 2:.0f}", folder)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    """A folder with the problem's file of a page."""
    path = tmp_path / page(kind).file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(kind).problem, encoding="utf-8")
    return tmp_path


def excerpt_of(text: str) -> dict[str, Any]:
    """Fields of a plan, from some lines of its JSON."""
    return json.loads(f"{{{text.strip().rstrip(',')}}}")  # type: ignore[no-any-return]


def finder(output: str) -> str:
    """The step that found the plan of a result."""
    found = re.search(r"verified, by ([\w ]+)\)", output)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_gives_what_the_page_shows(kind: str, folder: Path) -> None:
    shown = page(kind)
    output = solve(shown.command, folder, shown.output)
    assert stable(output) == stable(shown.output)
    plan = folder / shown.command.split()[-1]
    is_same_plan = finder(output) == finder(shown.output)
    if plan.suffix == ".csv":
        assert plan.read_text(encoding="utf-8") == shown.excerpt or not is_same_plan
        plan.write_text(shown.excerpt, encoding="utf-8")
    else:
        made, excerpt = json.loads(plan.read_text(encoding="utf-8")), excerpt_of(shown.excerpt)
        assert {name: made[name] for name in excerpt} == excerpt or not is_same_plan
        plan.write_text(json.dumps(made | excerpt), encoding="utf-8")
    # The plan of the page is as good as what was found, whoever found it.
    options = " ".join(re.findall(r"--target \S+", shown.command))
    verdict = run(f"stowplan verify {shown.file} {plan.name} {options}", folder)
    assert verdict.startswith("valid"), verdict
    for command, lines in shown.outputs:
        assert lines in stable(run(command, folder)), command


@pytest.mark.parametrize("kind", [kind for kind in KINDS if page(kind).variants])
def test_without_a_plan_the_example_gives_what_the_page_shows(kind: str, folder: Path) -> None:
    shown = page(kind)
    for option, output in shown.variants:
        assert stable(solve(f"{shown.command.rstrip()} {option}", folder, output)) == stable(output)


def test_a_file_of_the_examples_is_as_the_page_shows_it() -> None:
    assert (EXAMPLES / Path(page("packing").file).name).read_text(encoding="utf-8") == page("packing").problem


def test_the_check_reads_pages_as_they_are() -> None:
    assert {kind: bool(page(kind).variants) for kind in KINDS if page(kind).variants} == {
        "packing": True,
        "rematerialization": True,
    }
    shown = [command for command, _ in page("modulo-scheduling").outputs]
    assert len(shown) == 2
    assert shown[0].startswith("cat > late.dfg.json <<'END'\n")
    assert shown[1] == "stowplan show dot.dfg.json plan.json\n"
    assert excerpt_of(' "objective": 2,\n "sequence": [0, 1],\n') == {"objective": 2, "sequence": [0, 1]}
    assert stable("ended after 0.3 s: (verified, by two cuts)") == "ended after some time: (verified)"
