"""The list of components that ``make sbom`` writes: the dependencies of the project are in it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.patience import HANG

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def command_of_make() -> list[str]:
    """The arguments that ``make sbom`` gives to the tool, without the place of its output and of the environment."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(r"cyclonedx-py (environment .*?) \\\n\t    -o \$\(OUT\)/sbom\.cdx\.json \$\(BIN\)/python\n", makefile)
    return str(line).split()


def test_make_calls_the_tool() -> None:
    assert command_of_make() == ["environment", "--pyproject", "pyproject.toml", "--output-reproducible", "--of", "JSON"]
    (pinned,) = [each for each in PROJECT["optional-dependencies"]["release"] if each.startswith("cyclonedx-bom")]
    assert pinned == "cyclonedx-bom>=7,<8"


@pytest.mark.skipif(importlib.util.find_spec("cyclonedx_py") is None, reason="needs cyclonedx-bom: pip install '.[release]'")
def test_it_lists_the_dependencies(tmp_path: Path) -> None:
    path = tmp_path / "sbom.json"
    command = [sys.executable, "-m", "cyclonedx_py", *command_of_make(), "-o", str(path), sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["metadata"]["component"]["name"] == PROJECT["name"]
    components = {component["bom-ref"]: component["name"].lower() for component in found["components"]}
    root = found["metadata"]["component"]["bom-ref"]
    (direct,) = [each.get("dependsOn", []) for each in found["dependencies"] if each["ref"] == root]
    wanted = {re.match(r"[\w.-]+", text)[0].lower() for text in PROJECT["dependencies"]}  # type: ignore[index]
    assert wanted <= {components[name] for name in direct}
    assert all(component["version"] for component in found["components"])
