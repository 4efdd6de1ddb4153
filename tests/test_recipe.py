"""The recipe for conda-forge: it is rendered as conda's tools do, and says what pyproject.toml says."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stowplan.version import VERSION
from tests.paths import ROOT
from tests.patience import HANG

jinja2 = pytest.importorskip("jinja2", reason="needs Jinja, which mkdocs brings: pip install '.[docs]'")
yaml = pytest.importorskip("yaml", reason="needs PyYAML, which mkdocs brings: pip install '.[docs]'")

RECIPE = ROOT / "recipe" / "recipe.yaml"

#: Names in conda-forge that differ from those in PyPI.
CONDA_NAMES = {"ortools": "ortools-python"}


def rendered(path: Path) -> dict[str, Any]:
    """The recipe with its expressions replaced; a variable that is not defined is an error."""
    environment = jinja2.Environment(variable_start_string="${{", variable_end_string="}}", undefined=jinja2.StrictUndefined)
    given = {"PYTHON": "python", "compiler": lambda name: f"{name}_linux-64", "stdlib": lambda name: f"sysroot_{name}"}
    context = yaml.safe_load(path.read_text(encoding="utf-8"))["context"]

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [filled(part) for part in value]
        return environment.from_string(value).render(given | context) if isinstance(value, str) else value

    found: dict[str, Any] = filled(yaml.safe_load(path.read_text(encoding="utf-8")))
    return found


def requirement(text: str) -> tuple[str, frozenset[str]]:
    """Name and the set of its ranges, whatever spaces are between them."""
    name, ranges = re.fullmatch(r"([\w.-]+)(.*)", re.sub(r"\s", "", text)).groups()  # type: ignore[union-attr]
    return name, frozenset(filter(None, ranges.split(",")))


def in_conda(texts: list[str]) -> set[tuple[str, frozenset[str]]]:
    return {(CONDA_NAMES.get(name, name), ranges) for name, ranges in map(requirement, texts)}


def test_it_says_what_the_project_says() -> None:
    recipe, project = rendered(RECIPE), tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert recipe["package"] == {"name": project["project"]["name"], "version": VERSION}
    python = ("python", frozenset({project["project"]["requires-python"]}))
    run = {requirement(text) for text in recipe["requirements"]["run"]}
    assert run == {python} | in_conda(project["project"]["dependencies"])
    host = {requirement(text) for text in recipe["requirements"]["host"]}
    assert host == {("python", frozenset()), ("pip", frozenset())} | in_conda(project["build-system"]["requires"])
    assert recipe["requirements"]["build"] == ["c_linux-64", "sysroot_c"]
    scripts = [f"{name} = {place}" for name, place in project["project"]["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    about, urls = recipe["about"], project["project"]["urls"]
    assert (about["summary"], about["license"]) == (project["project"]["description"], project["project"]["license"])
    assert (about["repository"], about["documentation"]) == (urls["Source"], urls["Documentation"])
    assert about["license_file"] == project["project"]["license-files"]
    assert all((ROOT / name).is_file() for name in about["license_file"])


def test_what_it_builds_and_tests_is_there() -> None:
    recipe = rendered(RECIPE)
    assert (RECIPE.parent / recipe["source"]["path"] / "pyproject.toml").resolve() == ROOT / "pyproject.toml"
    tests = {key: test[key] for test in recipe["tests"] for key in test}
    assert all(importlib.util.find_spec(name) for name in tests["python"]["imports"])
    assert all(line.startswith(("stowplan ", "python -c ")) for line in tests["script"])


@pytest.mark.skipif(shutil.which("rattler-build") is None, reason="needs rattler-build")
def test_the_tool_of_conda_forge_renders_it(tmp_path: Path) -> None:
    command = ["rattler-build", "build", "--render-only", "--recipe", str(RECIPE), "--output-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
