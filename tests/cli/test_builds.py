"""What build systems need: offsets, dependencies, and the examples, each built by its tool where it is at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stowplan import files
from stowplan.cli.builds import write_depfile
from tests.cli.conftest import Cli, Solved, error_line
from tests.paths import EXAMPLES, ROOT

BUFFERS = EXAMPLES / "buffers.csv"
#: Proven by the plan that comes with the problem; starts nothing.
STACK = ("--candidates", "canonical", "--time-limit", "60", "-q")
HERE = ROOT / "examples" / "builds"


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A packing of one buffer, which needs no search."""
    path = tmp_path / "alone.csv"
    path.write_text("id,lower,upper,size\na,0,1,8\n")
    return path


def test_offsets_in_place_of_the_plan_and_beside_it(cli: Cli, alone: Path, tmp_path: Path) -> None:
    header, table = tmp_path / "x.h", tmp_path / "x.csv"
    outcome = cli("solve", alone, *STACK, "--emit", "c-header", "-o", header, "--emit", f"csv={table}", "--json")
    assert outcome.code == 0
    # There is no plan file.
    assert '"plan": null' in outcome.out
    assert "#define X_ARENA_BYTES UINT64_C(8)" in header.read_text()
    assert "a,arena,0,8,1,0,1" in table.read_text()
    plan = tmp_path / "plan.json"
    assert cli("solve", alone, *STACK, "-o", plan).code == 0
    assert cli("verify", alone, plan, "--emit", f"csv={tmp_path / 'again.csv'}").code == 0
    assert (tmp_path / "again.csv").read_bytes() == table.read_bytes()


def test_offsets_of_a_mapping(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    outcome = cli("verify", solved.problem_file, solved.plan_file, "--emit", f"csv={tmp_path / 'x.csv'}")
    assert outcome.code == 0
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 4 + len(solved.plan.residencies)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--emit", "xml=x"), "found 'xml', expected one of c-header, json, csv"),
        (("--emit", "csv"), "expected --emit csv=FILE"),
        (("--emit", "csv="), "expected the name of a file after the ="),
        (("--emit", "csv", "--emit", "json", "-o", "x"), "x is written in another format already"),
        (("--emit", "csv=no/folder/x"), "there is no folder"),
        (("--emit", "csv=x", "--emit", "json=x"), "to be written twice"),
        (("--depfile", "x"), "none is asked for"),
    ],
)
def test_bad_options(
    cli: Cli, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in error_line(cli("solve", alone, *STACK, *options))
    assert [path.name for path in tmp_path.iterdir()] == ["alone.csv"]


def test_no_offsets_is_known_before_the_search(cli: Cli, tmp_path: Path) -> None:
    body = EXAMPLES / "saxpy.dfg.json"
    said = error_line(cli("solve", body, "--target", "se", "--emit", f"json={tmp_path / 'x'}"))
    assert "plans of modulo scheduling have no offsets to emit" in said


def test_an_invalid_plan_is_not_emitted(cli: Cli, alone: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.csv").write_text("id,lower,upper,size,offset\na,0,1,8,-8\n")
    assert cli("verify", alone, tmp_path / "plan.csv", "--emit", f"json={tmp_path / 'x'}").code != 0
    assert not (tmp_path / "x").exists()


def test_depfile_names_what_was_read(cli: Cli, solved: Solved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what no option names, and outputs as they were given."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "stowplan" / "hardware" / "targets" / "teaching.toml", "own.toml")
    shutil.copy(EXAMPLES / "alexnet_inf_b1.hlo.txt.gz", "net.hlo.txt.gz")
    brief = ("--candidates", "relaxation", "--time-limit", "0.3", "-q", "--emit", "csv=x.csv", "-o", "plan.json")
    outcome = cli("solve", "net.hlo.txt.gz", "--target", "own.toml", *brief, "--depfile", "x.d")
    assert outcome.code == 0, outcome.err
    targets, sources = Path("x.d").read_text().replace("\\\n", "").strip().split(":")
    assert targets.split() == ["plan.json", "x.csv"]
    assert {"net.hlo.txt.gz", "own.toml"} <= {*sources.split()}


def test_no_plan_no_depfile(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "big.csv").write_text("id,lower,upper,size\na,0,1,8\nb,0,1,8\n")
    outcome = cli(
        "solve", tmp_path / "big.csv", "--capacity", 8, *STACK, "--emit", f"csv={tmp_path / 'x'}", "--depfile", tmp_path / "d"
    )
    assert outcome.code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["big.csv"]


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@needs_make
def test_make_reads_names_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["a b.csv", "a#b.csv", "a$b.csv", "a\\ b.csv", "é.csv"]
    for name in names:
        (tmp_path / name).write_text("")
    write_depfile(tmp_path / "x.d", [Path("x y")], names)
    (tmp_path / "Makefile").write_text("x\\ y:\n\t@echo made >> log; touch 'x y'\ninclude x.d\n")
    for made, name in enumerate(names, 1):
        os.utime(tmp_path / name)
        subprocess.run(["make", "-s"], cwd=tmp_path, check=True)
        subprocess.run(["make", "-s"], cwd=tmp_path, check=True)
        assert len((tmp_path / "log").read_text().split()) == made, name
        # Older than what was made from it.
        os.utime(tmp_path / "x y", (10**9, 10**9))
        for other in names:
            os.utime(tmp_path / other, (10**9, 10**9))


class Project:
    """A copy of the examples for builds, and a ``stowplan`` that counts its calls."""

    def __init__(self, folder: Path):
        self.folder = folder / "project"
        shutil.copytree(HERE, self.folder)
        self._log = folder / "log"
        self.command = folder / "stowplan"
        self.command.write_text(
            f"#!/bin/sh\necho call >> '{self._log}'\nPYTHONPATH='{ROOT}' exec '{sys.executable}' -c "
            "'from stowplan.cli import main; main()' \"$@\"\n"
        )
        self.command.chmod(0o755)

    @property
    def calls(self) -> int:
        return len(self._log.read_text().split()) if self._log.exists() else 0

    def run(self, *command: object) -> str:
        done = subprocess.run([str(each) for each in command], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def change(self) -> None:
        """Double a buffer, and let the file be newer than anything that was built."""
        model = self.folder / "model.csv"
        text = model.read_text()
        model.write_text(text.replace("conv1,1,4,1605632", "conv1,1,4,3211264"))
        assert model.read_text() != text


@pytest.fixture
def project(tmp_path: Path) -> Project:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return Project(tmp_path)


def check_builds(project: Project, build: list[list[object]], app: str) -> None:
    """A changed model is planned again, and an unchanged one is not."""
    for changed in (False, True):
        if changed:
            project.change()
        for _ in range(2):
            for command in build:
                project.run(*command)
        assert project.calls == 1 + changed
        assert project.run(project.folder / app) == f"{4214784 if changed else 2609152} bytes for 5 buffers\n"


@needs_make
def test_make(project: Project) -> None:
    check_builds(project, [["make", f"STOWPLAN={project.command}"]], "build/app")
    assert files.read_text(project.folder / "build" / "model.d").endswith("model.csv\n")


@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("ninja") is None, reason="needs cmake and ninja")
def test_cmake_and_ninja(project: Project) -> None:
    configure = ["cmake", "-G", "Ninja", "-B", "build", f"-DSTOWPLAN={project.command}"]
    check_builds(project, [configure, ["cmake", "--build", "build"]], "build/app")


@pytest.mark.skipif(shutil.which("bazel") is None, reason="needs bazel")
def test_bazel(project: Project) -> None:
    path = f"PATH={project.command.parent}:{os.environ['PATH']}"
    build: list[list[object]] = [["env", path, "bazel", "build", "--action_env=PATH", "//:app"]]
    check_builds(project, build, "bazel-bin/app")
