"""Pictures and reports on the command line: every kind draws, and what cannot be drawn is said before solving."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.models.packing.plan import Plan
from tests.cli.conftest import ALEXNET, Cli, error_line
from tests.cli.test_networks import small
from tests.portfolio.bank_mapping.test_kind import GRAPH

#: For each kind what to solve, and how.
KINDS = ("memory_mapping", "packing", "tier_placement", "bank_mapping", "modulo_scheduling")

FIVE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


@pytest.fixture
def words(request: pytest.FixtureRequest, tmp_path: Path) -> list[object]:
    """Input and options of a kind."""
    if request.param == "packing":
        path = tmp_path / "five.csv"
        path.write_text(FIVE)
        return [path]
    if request.param == "tier_placement":
        return [small(tmp_path / "small.json"), "--target", "nnp-i"]
    if request.param == "bank_mapping":
        path = tmp_path / "little.hlo.txt"
        path.write_text(GRAPH)
        return [path, "--target", "inferentia"]
    if request.param == "modulo_scheduling":
        path = tmp_path / "chain.json"
        nodes = [{"id": f"n{number}", "op": "add"} for number in range(4)]
        path.write_text(json.dumps({"nodes": nodes, "edges": [{"src": f"n{at}", "dst": f"n{at + 1}"} for at in range(3)]}))
        return [path, "--target", "se"]
    return [ALEXNET, "--target", "teaching", "--candidates", "relaxation", "--time-limit", 0.3]


@pytest.mark.parametrize("words", ["packing", "bank_mapping", "modulo_scheduling"], indirect=True)
def test_kinds_are_drawn_and_reported(cli: Cli, words: list[object], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[viz]'")
    """The two others are below and in test_solve."""
    plan, png, report = tmp_path / "some-file.json", tmp_path / "plan.png", tmp_path / "report.html"
    solved = cli("solve", *words, "--time-limit", 20, "-q", "-o", plan, "--png", png, "--report", report)
    assert (solved.code, solved.err) == (0, "")
    assert png.read_bytes().startswith(b"\x89PNG")
    page = report.read_text()
    assert page.index("<h2>") < page.index("<h2>Convergence</h2>"), "nothing is drawn of the plan"
    again = cli("show", plan, words[0], "--png", tmp_path / "again.svg", *(("--target", words[2]) if len(words) > 1 else ()))
    assert (again.code, again.err) == (0, f"{tmp_path / 'again.svg'}\n")
    shown = cli("show", plan, words[0])
    assert shown.code == 0
    assert shown.out.count("\n") > 3
    text = (tmp_path / "again.svg").read_text()
    assert "some-file" not in text
    if "se" in words:
        # The machine is named as it is typed.
        assert ">chain on se: II 1, latency " in text
    if "inferentia" in words:
        assert ">little on inferentia, 16 banks</text>" in text
        # 136 KiB of 24 MiB: the axis ends at the peak.
        assert "of 24 MiB (0.55%), the capacity is far above this axis</text>" in text


def refuse_to_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that comes to solving is an error."""

    def solve(*arguments: Any, **options: Any) -> None:
        raise AssertionError("time was spent on a plan")

    monkeypatch.setattr(importlib.import_module("stowplan.kernel.solve"), "solve", solve)


@pytest.mark.parametrize("words", KINDS, indirect=True)
@pytest.mark.parametrize("obstacle", ["suffix", "matplotlib"])
def test_what_cannot_be_drawn_is_said_before_solving(
    cli: Cli, words: list[object], obstacle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_solve(monkeypatch)
    if obstacle == "matplotlib":
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    png = tmp_path / ("plan.png" if obstacle == "matplotlib" else "plan.xyz")
    line = error_line(cli("solve", *words, "-q", "-o", tmp_path / "plan.json", "--png", png))
    expected = {"suffix": "found picture format '.xyz', expected .png, .svg or .pdf", "matplotlib": ".[viz]"}[obstacle]
    assert expected in line
    assert not (tmp_path / "plan.json").exists()


def test_no_plan_no_picture(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[viz]'")
    (tmp_path / "five.csv").write_text(FIVE)
    png, report = tmp_path / "plan.png", tmp_path / "report.html"
    outcome = cli("solve", tmp_path / "five.csv", "--capacity", 11, "-q", "--png", png, "--report", report)
    assert (outcome.code, outcome.err) == (1, f"{png}: not drawn: there is no plan\n")
    assert not png.exists()
    assert "<strong>No plan:</strong> 3 buffers (b1, b3, b5) live at once" in report.read_text()


def test_offsets_of_address_spaces_are_shown(cli: Cli, tmp_path: Path) -> None:
    network, plan = small(tmp_path / "small.json"), tmp_path / "plan.json"
    options = ("--target", "nnp-i", "--set", "address_spaces=yes")
    assert cli("solve", network, *options, "-o", plan, "-q", "--time-limit", 20).code == 0
    shown = cli("show", plan, network, *options)
    assert shown.code == 0
    (head,) = (line.split() for line in shown.out.splitlines() if line.split()[:1] == ["layer"])
    assert head == ["layer", "weights", "at", "output", "at", "latency"]
    saved = json.loads(plan.read_text())
    for number, name in enumerate("ab"):
        (cells,) = (line.split() for line in shown.out.splitlines() if line.split()[:1] == [name])
        assert (int(cells[2], 16), int(cells[4], 16)) == (saved["weight_offsets"][number], saved["output_offsets"][number])


def test_the_compilers_own_map_is_drawn_once(cli: Cli, tmp_path: Path) -> None:
    network, plan = small(tmp_path / "small.json"), tmp_path / "plan.json"
    picture, report = tmp_path / "plan.svg", tmp_path / "report.html"
    outputs = ("-o", plan, "--png", picture, "--report", report)
    # Everything fits into the fastest tier: no plan is better than the compiler's.
    solved = cli("solve", network, "--target", "nnp-i", "-q", "--time-limit", 20, *outputs)
    assert "by compiler)" in solved.out
    assert picture.read_text().count(">compiler: weights</text>") == 1
    assert "in compiler" not in picture.read_text()
    assert report.read_text().count(">compiler: weights</span>") == 1
    assert "<h2>Transitions</h2>" not in report.read_text()
    assert "the map is that of compiler" in cli("show", plan, network).out


def test_seconds_are_for_compiled_programs(cli: Cli, packing: tuple[Path, Path], tmp_path: Path) -> None:
    buffers, plan = packing
    line = error_line(cli("show", plan, buffers, "--set", "seconds=yes"))
    assert "--set seconds: plans of the kind packing have no picture over time" in line


def test_a_plan_of_another_kind_is_not_shown(cli: Cli, packing: tuple[Path, Path], tmp_path: Path) -> None:
    _, plan = packing
    network = small(tmp_path / "small.json")
    assert "found a plan of packing, expected a plan of tier_placement" in error_line(
        cli("show", plan, network, "--target", "nnp-i")
    )


@pytest.fixture
def packing(tmp_path: Path) -> tuple[Path, Path]:
    """Buffers, and a plan for them."""
    path, plan = tmp_path / "five.csv", tmp_path / "five.json"
    path.write_text(FIVE)
    Plan(problem=stowplan.read(path).digest, objective=12, offsets=(8, 8, 0, 0, 4)).save(plan)
    return path, plan


def test_two_packings_are_compared(cli: Cli, packing: tuple[Path, Path], tmp_path: Path) -> None:
    buffers, plan = packing
    other = tmp_path / "other.csv"
    other.write_text("id,lower,upper,size,offset\nb1,0,3,4,8\nb2,3,9,4,8\nb3,0,9,4,4\nb4,9,21,4,8\nb5,0,21,4,0\n")
    picture = tmp_path / "both.svg"
    assert cli("show", plan, buffers, "--compare", other, "--png", picture).code == 0
    assert ">five: 12 B high</text>" in picture.read_text()
    assert ">other: 12 B high</text>" in picture.read_text()
    assert "  other         12 bytes high\n" in cli("show", plan, buffers, "--compare", other).out
