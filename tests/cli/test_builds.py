"""What build systems need: offsets, dependencies, and the examples, each built by its tool where it is at hand."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from stowplan import files
from stowplan.cli.outputs import write_depfile
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
    assert '"plan_file": null' in outcome.out
    assert "#define X_ARENA_BYTES UINT64_C(8)" in header.read_text()
    assert "a,arena,0,8,1,0,1" in table.read_text()
    plan = tmp_path / "plan.json"
    assert cli("solve", alone, *STACK, "-o", plan).code == 0
    assert cli("verify", alone, plan, "--emit", f"csv={tmp_path / 'again.csv'}").code == 0
    assert cli("verify", alone, tmp_path / "again.csv").out == cli("verify", alone, plan).out
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


@pytest.mark.slow
@needs_make
def test_make(project: Project) -> None:
    check_builds(project, [["make", f"STOWPLAN={project.command}"]], "build/app")
    assert files.read_text(project.folder / "build" / "model.d").endswith("model.csv\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("ninja") is None, reason="needs cmake and ninja")
def test_cmake_and_ninja(project: Project) -> None:
    configure = ["cmake", "-G", "Ninja", "-B", "build", f"-DSTOWPLAN={project.command}"]
    check_builds(project, [configure, ["cmake", "--build", "build"]], "build/app")


@pytest.mark.skipif(shutil.which("bazel") is None, reason="needs bazel")
def test_bazel(project: Project) -> None:
    path = f"PATH={project.command.parent}:{os.environ['PATH']}"
    build: list[list[object]] = [["env", path, "bazel", "build", "//:app"]]
    check_builds(project, build, "bazel-bin/app")


class Starlark:
    """The Bazel files of a folder, which are a part of Python, run with rules that only note what they are given."""

    def __init__(self, folder: Path):
        self.rules: dict[str, dict[str, Any]] = {}
        self.modules: dict[str, str] = {}
        for name in ("MODULE.bazel", "stowplan.bzl", "BUILD.bazel"):
            tree = ast.parse((folder / name).read_text(), name)
            # No classes, imports, loops by condition, exceptions, generators: none of it is Starlark.
            allowed = (
                ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Expr, ast.Call, ast.Name, ast.Attribute, ast.keyword,
                ast.Constant, ast.List, ast.BinOp, ast.Add, ast.Load,
            )  # fmt: skip
            assert {type(each) for each in ast.walk(tree)} <= {*allowed}, name
        self._note: dict[str, Any] = {name: functools.partial(self._rule, name) for name in ("genrule", "cc_binary")}
        self._bzl: dict[str, Any] = {"native": types.SimpleNamespace(genrule=self._note["genrule"])}
        exec((folder / "stowplan.bzl").read_text(), self._bzl)
        exec((folder / "MODULE.bazel").read_text(), {"module": lambda name: None, "bazel_dep": self._depend})
        self._build: dict[str, Any] = {"load": self._load}
        exec((folder / "BUILD.bazel").read_text(), self._build)

    def _rule(self, kind: str, name: str, **values: Any) -> None:
        assert name not in self.rules
        self.rules[name] = {"kind": kind, **values}

    def _depend(self, name: str, version: str) -> None:
        self.modules[name] = version

    def _load(self, label: str, *names: str) -> None:
        if label.startswith("@"):
            assert label[1:].split("//")[0] in self.modules, f"{label}: not in MODULE.bazel"
        self._build |= {name: self._note[name] if label.startswith("@") else self._bzl[name] for name in names}


@pytest.mark.slow
def test_bazel_files_mean_what_the_others_do(project: Project) -> None:
    """Without bazel at hand: its command, in a folder with nothing but what the rule names, and what is compiled with that."""
    files_of = Starlark(project.folder)
    header, app = files_of.rules["model"], files_of.rules["app"]
    assert (header["kind"], app["kind"]) == ("genrule", "cc_binary")
    assert (header["srcs"], header["outs"], app["srcs"]) == (["model.csv"], ["model.h"], ["app.c", ":model"])
    assert all((project.folder / name).is_file() for name in (*header["srcs"], app["srcs"][0]))
    # As a genrule expands it: the one output, and where a source is.
    made = "bazel-out/k8-fastbuild/bin/model.h"
    command = header["cmd"].replace("$@", made).replace("$(location model.csv)", "model.csv")
    assert "$" not in command
    sandbox = project.folder.parent / "sandbox"
    (sandbox / made).parent.mkdir(parents=True)
    for name in header["srcs"]:
        shutil.copy(project.folder / name, sandbox / name)
    # What .bazelrc takes over from the user's environment, and nothing else.
    assert (project.folder / ".bazelrc").read_text().splitlines()[-1] == "build --action_env=PATH"
    environment = {"PATH": f"{project.command.parent}:{os.environ['PATH']}"}
    shell = ["bash", "-c", f"set -euo pipefail; {command}"]
    done = subprocess.run(shell, cwd=sandbox, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    shutil.copy(project.folder / "app.c", sandbox)
    options = [option.replace("$(GENDIR)", "bazel-out/k8-fastbuild/bin") for option in app["copts"]]
    subprocess.run(["cc", *options, "-o", "app", "app.c"], cwd=sandbox, check=True)
    found = subprocess.run(["./app"], cwd=sandbox, capture_output=True, text=True, check=True).stdout
    assert found == "2609152 bytes for 5 buffers\n"
    # The other two plan with the same options, but for what bazel does not take.
    words = command.removesuffix(" >&2").split()
    for name in ("Makefile", "CMakeLists.txt"):
        text = re.sub(r"\s+", " ", (project.folder / name).read_text())
        between = text.partition("--deterministic")[2].partition("-o")[0].split()
        assert between == words[words.index("--deterministic") + 1 : words.index("-o")], name
