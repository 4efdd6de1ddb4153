"""What contributors are told holds: names that pages give are there, and each task changes as many files as they say."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import stowplan
from stowplan import kinds
from stowplan.hardware.targets.toml_files import template
from tests.paths import EXAMPLES, ROOT
from tests.patience import HANG

PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]

#: Folders that names of files may be given from.
ROOTS = [ROOT, ROOT / "stowplan"]

SUFFIXES = (".py", ".md", ".toml", ".txt", ".yml", ".json")

#: Not of this repository, or of what it makes: the environment, programs, and what stands for any name.
ELSEWHERE = {"pre-commit", "bin", "venv", "BEFORE", "AFTER", "v", "hypothesis", "profile", "explore"}


@cache
def sources() -> dict[Path, str]:
    """All text that names may come from, but pages."""
    paths = [*ROOT.glob("*.toml"), ROOT / "Makefile", *ROOT.glob(".ci/*"), *ROOT.glob(".github/**/*.yml")]
    for folder in ("stowplan", "tests", "benchmarks", "docs", "examples"):
        paths += [path for suffix in ("py", "toml") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    return {path: path.read_text(encoding="utf-8") for path in paths if path != Path(__file__)}


@cache
def words() -> set[str]:
    return set().union(*(re.findall(r"\w+", text) for text in sources().values()))


def is_file(name: str) -> bool:
    """A file or folder, from one of the roots or anywhere below the package, the tests and the benchmarks."""
    pattern = re.sub(r"<\w+>|\bKIND\b|\bNAME\b", "*", name).strip("/")
    patterns = [pattern] if pattern.endswith(SUFFIXES) else [pattern, f"{pattern}.py"]
    folders = [ROOT / name for name in ("stowplan", "tests", "benchmarks", "docs", ".github")]
    from_roots = (path for root in ROOTS for each in patterns for path in root.glob(each))
    below = (path for folder in folders for each in patterns for path in folder.rglob(each))
    return any(True for _ in from_roots) or any(True for _ in below)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def stale(span: str) -> list[str]:
    """What is not there of what a page has between backticks."""
    missing = []
    for word in re.sub(r"\[[A-Z \w]*\]", "", span).split():
        file, _, name = word.partition("::")
        if file.startswith("--"):
            flag = file.partition("=")[0]
            missing += (
                [] if flag[2:].replace("-", "_") in words() or any(flag in text for text in sources().values()) else [flag]
            )
        elif "/" in file or file.endswith(SUFFIXES):
            missing += [] if is_file(file) or file.startswith((".venv/", "../shared")) else [file]
            missing += [name] if name and name not in words() else []
        elif re.fullmatch(r"(stowplan|benchmarks|tests)(\.\w+)+", file) and not is_module(file):
            # An attribute of a module, a format of files, or a group of entry points.
            missing += [] if any(f'"{file}' in text for text in sources().values()) or has_attribute(file) else [file]
        else:
            missing += [part for part in re.findall(r"[A-Za-z_]\w+", word) if part not in words() | ELSEWHERE]
    return missing


def has_attribute(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    return is_module(module) and attribute in words() if module else False


def spans(text: str) -> list[str]:
    """What stands between backticks, and the lines of blocks of code."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    return [*re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)), *lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_name_is_stale(page: Path) -> None:
    given = spans(page.read_text(encoding="utf-8"))
    assert len(given) > 30
    assert not {span: missing for span in given if (missing := stale(span))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_make_and_modules_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {name for span in spans(text) for name in re.findall(r"\bmake ([a-z-]+)", span)} <= {*targets}
    assert not [name for name in re.findall(r"python -m ([\w.]+)", text) if name != "pytest" and not is_module(name)]


def test_the_check_sees_stale_names() -> None:
    assert not stale("stowplan/kinds.py")
    assert not stale("models/<kind>/problem.py")
    assert not stale("result.py::Result")
    for name in (
        "stowplan/kindes.py",
        "models/<kind>/problems.py",
        "result.py::Resultat",
        "stowplan.kindes.of_problem",
        "context.remains_to_be_seen()",
        "NoSuchFormat",
        "--no-such-flag",
    ):
        assert stale(name), name


def changed_copy(folder: Path, changes: dict[str, list[tuple[str, str]]]) -> Path:
    """A copy of the package in which some files have pieces of text in the place of others."""
    copy = folder / "copy"
    shutil.copytree(ROOT / "stowplan", copy / "stowplan", ignore=shutil.ignore_patterns("__pycache__", "*.pt", "objects"))
    for name, pairs in changes.items():
        path = copy / "stowplan" / name
        text = path.read_text(encoding="utf-8")
        for before, after in pairs:
            assert text.count(before) == 1, name
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    return copy


def run(copy: Path, *arguments: object) -> str:
    """Output of a Python process that finds a copy of the package."""
    command = [sys.executable, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def solve(copy: Path, *arguments: object) -> dict[str, object]:
    """The result of a solve by a copy of the package."""
    told = run(copy, "-m", "stowplan", "solve", EXAMPLES / "banks.json", *arguments, "--time-limit", 60, "-q", "--json")
    result: dict[str, object] = json.loads(told)
    return result


def heuristic(*statements: str) -> dict[str, list[tuple[str, str]]]:
    """Changes that add a heuristic ``mine`` to a kind: a function that runs the statements, and lines in ``kind.py``."""
    lines = ["def mine(problem: Problem, context: Context) -> None:", *(f"    {each}" for each in statements)]
    return {
        "portfolio/banked_packing/candidates.py": [("def by_size(", "\n".join([*lines, "", "", "def by_size("]))],
        "portfolio/banked_packing/kind.py": [
            ('        Candidate("choice", ', '        Candidate("mine", "heuristic"),\n        Candidate("choice", '),
            ('        "by_size": ', '        "mine": candidates.mine,\n        "by_size": '),
        ],
    }


def test_a_heuristic_changes_two_files(tmp_path: Path) -> None:
    changes = heuristic("by_size(problem, context)")
    assert len(changes) == 2
    result = solve(changed_copy(tmp_path, changes), "--candidates", "mine")
    assert "mine" in json.dumps(result["candidates"])
    assert result["verified"]


def test_a_flag_of_searches_changes_three_files(tmp_path: Path) -> None:
    seed = '    seed: Annotated[int, _flag("N", '
    changes = {
        "kernel/context.py": [(seed, f'    patience: Annotated[int, _flag("N", "How long to wait.")] = 7\n{seed}')],
        "kernel/solve.py": [
            ("    seed: int = 0,\n", "    seed: int = 0,\n    patience: int = 7,\n"),
            ("        seed=seed,\n", "        seed=seed,\n        patience=patience,\n"),
        ],
        "portfolio/batch/records.py": [("    seed: int = 0\n", "    seed: int = 0\n    patience: int = 7\n")],
    }
    assert len(changes) == 3
    # A heuristic of the copy says which value it is given.
    probe = heuristic("by_size(problem, context)", 'context.note(f"waits for {context.options.patience}")')
    copy = changed_copy(tmp_path, changes | probe)
    assert "waits for 3" in json.dumps(solve(copy, "--candidates", "mine", "--patience", 3)["candidates"])
    assert "waits for 7" in json.dumps(solve(copy, "--candidates", "mine")["candidates"])
    code = (
        "import inspect, stowplan; from stowplan.portfolio.batch.records import Settings;"
        "print(Settings(patience=3).search.patience, inspect.signature(stowplan.solve).parameters['patience'].default)"
    )
    assert run(copy, "-c", code) == "3 7\n"


def test_a_flag_of_one_command_changes_one_file(tmp_path: Path) -> None:
    quiet = "    ] = Options().time_limit,\n    quiet: Quiet = False,\n"
    flag = '    depth: Annotated[int, option("--depth", "N", "How deep.")] = 7,\n'
    copy = changed_copy(tmp_path, {"cli/convert.py": [(quiet, quiet + flag)]})
    assert re.search(r"--depth +N +How deep\. +\[default: 7\]", run(copy, "-m", "stowplan", "export", "--help"))


FORMAT = """
from stowplan.frontends.formats import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions
from stowplan.models.packing.problem import Buffer, Problem


def _open(source: Source, options: ReadOptions) -> Opened:
    sizes = source.path.read_text().split()
    return Opened(Problem(buffers=tuple(Buffer(id=str(at), lower=0, upper=1, size=int(size)) for at, size in enumerate(sizes))))


FORMAT = InputFormat(
    what="a list of sizes",
    suffixes=(".sizes",),
    accepts=lambda source: frozenset(),
    matches=lambda source: source.path.suffix == ".sizes",
    open=_open,
)
"""


def test_a_format_is_a_file_and_a_line(tmp_path: Path) -> None:
    line = '    "stowplan.frontends.dfg",\n'
    copy = changed_copy(tmp_path, {"frontends/formats.py": [(line, f'    "stowplan.frontends.sizes",\n{line}')]})
    (copy / "stowplan" / "frontends" / "sizes.py").write_text(FORMAT)
    (copy / "three.sizes").write_text("1 2 4")
    run(copy, "-m", "stowplan", "convert", "three.sizes", "-o", "problem.json")
    assert len(json.loads((copy / "problem.json").read_text())["buffers"]) == 3


def test_a_chip_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(template("memory-mapping"))
    assert stowplan.read(EXAMPLES / "alexnet_inf_b1.hlo.txt.gz", target=path).digest


LOWERING = """
from stowplan.models.packing.problem import Buffer, Problem


def stacked(graph):
    sizes = enumerate(tensor.size for tensor in graph.tensors)
    return Problem(buffers=tuple(Buffer(id=str(at), lower=0, upper=1, size=size) for at, size in sizes))
"""

STACK = """def _open_stack(source: Source, options: ReadOptions) -> Opened:
    from stowplan.frontends.graph.stacked import stacked

    return Opened(stacked(read_graph(source, options)))


STACK = InputFormat(
    what=_words,
    suffixes=(".json",),
    accepts=_options,
    matches=lambda source: source.target == "stack",
    open=_open_stack,
    targets=TargetFamily.of_one("graphs to stack", "packing", "stack", "offsets that overlap nowhere", "no overlaps"),
)

FORMATS = (STACK, """


def test_a_kind_that_graphs_are_planned_for_is_a_lowering_and_a_format(tmp_path: Path) -> None:
    copy = changed_copy(tmp_path, {"frontends/graph/__init__.py": [("FORMATS = (", STACK)]})
    (copy / "stowplan" / "frontends" / "graph" / "stacked.py").write_text(LOWERING)
    graph = EXAMPLES / "cells.graph.json"
    run(copy, "-m", "stowplan", "convert", graph, "--target", "stack", "-o", "problem.json")
    count = len(json.loads(graph.read_text())["tensors"])
    assert len(json.loads((copy / "problem.json").read_text())["buffers"]) == count
    assert re.search(r"\n *stack +no chip +no overlaps", run(copy, "-m", "stowplan", "targets"))


def test_a_kind_inside_the_package_is_seven_files_at_least() -> None:
    package = ROOT / "stowplan"
    for kind in kinds.registered():
        folders = {"models": ("problem", "plan", "verify"), "portfolio": ("candidates", "kind")}
        files = [package / folder / kind.name / f"{name}.py" for folder, names in folders.items() for name in names]
        files += [package / "report" / f"{kind.name}.py", package / "kinds.py"]
        assert len(files) == 7
        assert all(file.exists() for file in files), kind.name
        assert f'"{kind.name}"' in files[-1].read_text(encoding="utf-8")


def test_a_kind_is_six_files_of_a_package() -> None:
    outside = ROOT / "tests" / "outside"
    files = [*outside.glob("makespan/*.py"), *outside.glob("*/entry_points.txt")]
    assert len(files) == 6


class WithoutTexts(ast.NodeTransformer):
    """Removes docstrings, and the texts that describe attributes."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def code_of(path: Path) -> str:
    """The text of a file without comments and docstrings."""
    text = sources()[path]
    return ast.unparse(WithoutTexts().visit(ast.parse(text))) if path.suffix == ".py" else re.sub("#.*", "", text)


def test_a_rule_of_memory_mapping_is_known_to_about_twenty_files() -> None:
    """Files that name the rule that members of an alias group are fast together, and files that act on it as ``uniform``."""
    package = ROOT / "stowplan"
    paths = {path.relative_to(package).as_posix(): path for path in sources() if path.is_relative_to(package)}
    code = {
        name: code_of(path) for name, path in paths.items() if re.search("alias_rule|uniform", sources()[path], re.IGNORECASE)
    }
    naming = {name for name, text in code.items() if re.search(r"\balias_rule\b", text)}
    # A call of ``uniform`` draws a random number.
    acting = {name for name in code if "/memory_mapping/" in name and re.search(r"(?i)uniform\b(?!\()", code[name])} - naming
    assert {"models/memory_mapping/problem.py", "models/memory_mapping/verify.py"} < naming
    assert "portfolio/memory_mapping/machine.py" in acting
    assert len(naming) <= 10
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    example = " ".join(page.partition("The rule `alias_rule` is an example of that.")[2].partition("\n## ")[0].split())
    assert f"In all, {len(naming | acting)} files of the package know the rule." in example
    assert f"Of these, {len(naming)} files name it:" in example
    assert f"Another {len(acting)} files act on it as `uniform`:" in example
    naming_part, _, acting_part = example.partition("Another")
    for part, names in ((naming_part, naming), (acting_part, acting)):
        listed = {Path(name).name for name in re.findall(r"`([\w/]+\.(?:py|toml))`", part)}
        assert listed == {Path(name).name for name in names}
