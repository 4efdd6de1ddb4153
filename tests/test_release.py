"""Files of a release: they say one version, workflows can be read, and name what there is."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from stowplan.version import VERSION
from tests.paths import ROOT

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which mkdocs brings: pip install '.[docs]'")


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_workflows_have_jobs_with_steps(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["name"] == path.stem
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert all({"uses", "run"} & {*step} for step in job["steps"])
        assert {*([job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", []))} <= {*workflow["jobs"]}


def test_all_say_one_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == VERSION
    newest, *_ = re.findall(r"^## ([\d.]+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest == VERSION
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert zenodo["version"] == VERSION
    assert (zenodo["title"], zenodo["description"], zenodo["keywords"], zenodo["license"]) == tuple(
        citation[name] for name in ("title", "abstract", "keywords", "license")
    )
    assert zenodo["creators"] == citation["authors"]
    minor = VERSION.rpartition(".")[0]
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_what_workflows_run_is_there() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in re.findall(r"run: make (\w+)", text))
    assert all((ROOT / name).exists() for name in re.findall(r"(?:\{project\}/|bash )([\w./]+)", text))
    commands = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert all(f"\n## {name}\n" in commands for name in re.findall(r"stowplan (solve|[a-z]+-[a-z]+)", text))


def test_the_container_runs_the_command() -> None:
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    stages = [line.split()[1:] for line in lines if line.startswith("FROM ")]
    assert all(re.fullmatch(r"python:3\.1[1-3]-slim", image) for image, *_ in stages)
    assert {*re.findall(r"from=(\w+)", "\n".join(lines))} == {name for _, *names in stages for name in names[1:]}
    assert all((ROOT / name).exists() for name in re.findall(r"/source/([\w.]+)", "\n".join(lines)))
    (command,) = re.findall(r'^ENTRYPOINT \["([\w-]+)"\]$', "\n".join(lines), re.MULTILINE)
    assert command in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
