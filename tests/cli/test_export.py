"""``stowplan export``: files that other programs solve to the optimum of the built-in model."""

from __future__ import annotations

import gzip
from pathlib import Path

import highspy
import pytest

from stowplan.frontends.read import read
from stowplan.models.memory_mapping.problem import Problem
from tests.cli.conftest import ALEXNET, EXAMPLES, Cli, error_line
from tests.models.memory_mapping.relaxations import relaxation
from tests.models.mip.test_export import by_cbc


def unit_ps(text: str) -> int:
    """The unit of the objective, as the file's head says."""
    return int(text.partition("in units of ")[2].split()[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("ending", ["mps", "lp"])
def test_highs_and_cbc_reach_the_optimum_of_the_built_in_model(cli: Cli, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"model.{ending}"
    done = cli("export", ALEXNET, "--target", "tpu-v4", "-o", path, "--set", "windows=all")
    assert (done.code, done.out) == (0, "")
    assert f"{path}: " in done.err
    problem = read(ALEXNET, "tpu-v4")
    assert isinstance(problem, Problem)
    expected = relaxation(problem, integer=True)
    assert expected.optimal
    highs = highspy.Highs()
    highs.silent()
    highs.readModel(str(path))
    highs.run()
    found = by_cbc(path)
    assert found is not None
    unit = unit_ps(path.read_text())
    assert found == pytest.approx(highs.getObjectiveValue(), rel=1e-7)
    # What the built-in solver takes off for tolerances is a millionth of the objective's range.
    assert found * unit == pytest.approx(expected.bound, abs=2e-6 * problem.all_slow_ps)


def test_relaxed_has_no_integers_and_a_lower_optimum(cli: Cli, tmp_path: Path) -> None:
    optima = []
    for options in (
        (),
        (
            "--set",
            "relaxed=yes",
        ),
        ("--set", "relaxed=yes", "--set", "windows=none"),
    ):
        path = tmp_path / "model.lp"
        assert (
            cli("export", EXAMPLES / "resnet50_inf_b1.hlo.txt.gz", "--target", "tpu-v4", "-o", path, "-q", *options).code == 0
        )
        assert ("Generals" in path.read_text()) == (not options)
        highs = highspy.Highs()
        highs.silent()
        highs.readModel(str(path))
        highs.run()
        optima.append(highs.getObjectiveValue())
    assert optima[0] >= optima[1] - 1e-6 >= optima[2] - 2e-6


def test_packed_and_quiet(cli: Cli, tmp_path: Path) -> None:
    plain, packed = tmp_path / "model.mps", tmp_path / "model.mps.gz"
    for path in (plain, packed):
        done = cli("export", ALEXNET, "--target", "tpu-v4", "-o", path, "-q")
        assert done == (0, "", "")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-o", "model.txt"), "ends in .mps or .lp"),
        (("-o", "model.lp", "--set", "windows=most"), "expected linear or all or none"),
        (("-o", "model.lp", "--time-limit", "0"), "more than 0"),
        (("-o", "nowhere/model.lp"), "no folder"),
    ],
)
def test_bad_usage(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("export", ALEXNET, "--target", "tpu-v4", *arguments)
    error_line(done)
    assert says in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_packing_is_no_program(cli: Cli, tmp_path: Path) -> None:
    done = cli("export", EXAMPLES / "buffers.csv", "-o", tmp_path / "model.lp")
    error_line(done)
    assert "memory mapping" in done.err


def test_it_has_the_options_of_compiled_programs_alone(cli: Cli) -> None:
    told = cli("export", "--help").out
    assert "--capacity" in told
    assert "--set" in told
    assert "found 'precision', expected one of relaxed, windows, cost_model, " in error_line(
        cli("export", ALEXNET, "-o", "x.lp", "--set", "precision=fp16")
    )


def test_only_targets_that_the_command_takes_are_advised(cli: Cli, tmp_path: Path) -> None:
    network = EXAMPLES / "resnet50.layers.json"
    line = error_line(cli("export", ALEXNET, "-o", tmp_path / "x.lp"))
    expected = "is a compiled program and no target is named, expected --target with one of teaching, tpu-7x, tpu-v4, "
    assert line.startswith(f"stowplan: {ALEXNET} {expected}")
    assert line.endswith("or the path of a target file")
    assert "arena" not in line
    line = error_line(cli("export", network, "-o", tmp_path / "x.lp"))
    assert line == f"stowplan: {network} is a network, of which no problem of memory mapping can be made"
    line = error_line(cli("frontier", ALEXNET, "--limits", "1MB"))
    assert line.endswith("is a compiled program and no target is named, expected --target rematerialization")
    pytest.importorskip("torch")
    assert expected in error_line(cli("train", "muzero", ALEXNET, "-o", tmp_path / "x.pt"))
    assert error_line(cli("train", "egrl", network, "-o", tmp_path / "x.pt")).endswith("expected --target nnp-i")
