"""The distributions: a wheel made from the sdist does its work where only the core dependencies can be imported."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stowplan.compiled.library import SHIPPED, compiling_packages
from tests.paths import EXAMPLES, ROOT
from tests.patience import HANG

pytest.importorskip("setuptools")

#: Machine code, in a tree.
OBJECTS = SHIPPED.relative_to(ROOT)

#: Modules that only extras bring.
EXTRAS = (
    "accelerate", "dask", "distributed", "executorch", "gymnasium", "islpy", "jax", "jaxlib", "libtpu", "lightning",
    "matplotlib", "onnx", "pytorch_lightning", "sb3_contrib", "sklearn", "stable_baselines3", "tflite_micro", "torch",
    "torch_geometric", "transformers", "umap",
)  # fmt: skip

BLOCK = f"""
import importlib.machinery
import sys

class WithoutExtras(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS!r} else super().find_spec(name, path, target)

sys.meta_path[:] = [WithoutExtras if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
"""

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def built(what: str, source: Path, target: Path, **variables: str) -> tuple[Path, str]:
    """A distribution, made without a network; and what was said on the way."""
    command = [sys.executable, "-P", "-c", BUILD, f"build_{what}", str(target)]
    environment = {**os.environ, **variables}
    # Compiling everything may take longer than what else is waited for.
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1], done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns("__pycache__", OBJECTS.name)
    shutil.copytree(ROOT / "stowplan", folder / "source" / "stowplan", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder / "source")
    with tarfile.open(built("sdist", folder / "source", folder)[0]) as archive:
        # The first Pythons 3.11 know no filter.
        archive.extractall(folder / "sdist", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (folder / "sdist").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def site(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as it is made where there is no C compiler, unpacked, with what hides the extras; and the code of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, said = built("wheel", source, folder, PATH=str(folder), CC="")
    assert "heuristics were not compiled: there is no C compiler: name one in CC" in said
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    (folder / "site" / "sitecustomize.py").write_text(BLOCK)
    if (ROOT / OBJECTS).is_dir():
        shutil.copytree(ROOT / OBJECTS, folder / "site" / OBJECTS)
    return folder / "site"


def run(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-P", "-c", "from stowplan.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=HANG, check=False)


def test_it_holds_all_that_the_package_has(site: Path) -> None:
    files, expected = (
        {
            path.relative_to(folder)
            for path in (folder / "stowplan").rglob("*")
            if path.is_file() and not {"__pycache__", OBJECTS.name, "README.md"} & {*path.parts}
        }
        for folder in (site, ROOT)
    )
    assert files == expected
    (metadata,) = site.glob("*.dist-info/METADATA")
    assert re.search(r"^License-Expression: Apache-2.0$", metadata.read_text(), flags=re.MULTILINE)
    assert {path.name for path in metadata.parent.rglob("*") if path.name in ("LICENSE", "NOTICE")} == {"LICENSE", "NOTICE"}


@pytest.mark.slow
def test_it_solves_verifies_and_reports_without_extras(site: Path, tmp_path: Path) -> None:
    written = ("-o", "plan.json", "--report", "report.html", "--json")
    done = run(site, "solve", str(EXAMPLES / "buffers.csv"), "--time-limit", "10", *written, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["status"], result["verified"]) == ("optimal", True)
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert run(site, "verify", str(EXAMPLES / "buffers.csv"), "plan.json", cwd=tmp_path).returncode == 0
    done = run(site, "solve", str(EXAMPLES / "resnet50.layers.json"), "--target", "nnp-i", "--time-limit", "10", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # What an extra is missing for is said in one line, with what to install.
    done = run(site, "solve", str(EXAMPLES / "buffers.csv"), "--time-limit", "5", "--png", "plan.png", cwd=tmp_path)
    assert done.returncode == 2
    assert ".[viz]" in done.stderr


@pytest.mark.slow
def test_an_empty_environment_has_heuristics_and_solvers(source: Path, tmp_path: Path) -> None:
    """And neither numba nor torch nor matplotlib; nothing is compiled at the user's. Dependencies come from an index."""
    pytest.importorskip("numba")
    wheel, said = built("wheel", source, tmp_path)
    assert re.search(r"-py3-none-(?!any)\w+\.whl$", wheel.name)
    assert said.count(": compiled") == len(compiling_packages(source / "stowplan"))
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    python = tmp_path / "empty" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip installs nothing here: {done.stderr[-300:]}")
    code = "import importlib.util as u; print([name for name in ('numba', 'torch', 'matplotlib') if u.find_spec(name)])"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    (tmp_path / "home").mkdir(mode=0o500)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    stowplan = tmp_path / "empty" / "bin" / "stowplan"

    def result_of(*arguments: str) -> Any:
        command = [stowplan, "solve", *arguments, "--time-limit", "20", "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "compiling" not in done.stderr
        return json.loads(done.stdout)

    for seed in range(3):
        rng = random.Random(seed)
        rows = [
            f"b{number},{(begin := rng.randrange(90))},{begin + rng.randint(1, 9)},{rng.randint(1, 50)}" for number in range(60)
        ]
        (tmp_path / f"{seed}.csv").write_text("\n".join(["id,lower,upper,size", *rows]))
        result = result_of(f"{seed}.csv")
        assert (result["status"], result["warnings"]) == ("optimal", [])
    for solver in ("cpsat", "milp"):
        result = result_of(str(EXAMPLES / "resnet50.layers.json"), "--target", "nnp-i", "--candidates", solver)
        (outcome,) = (report["outcome"] for report in result["candidates"] if report["name"] == solver)
        assert (outcome in ("finished", "stopped"), result["verified"]) == (True, True)
    assert not list((tmp_path / "home").iterdir())


def test_pins_and_constraints_agree() -> None:
    """Every direct dependency is pinned in constraints.txt, within the range that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE))
    requirements = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    for requirement in requirements:
        name, ranges = re.fullmatch(r"([\w.-]+)(.*)", requirement.replace(" ", "")).groups()  # type: ignore[union-attr]
        if name not in pinned:
            continue  # of extras that are installed by themselves
        version = tuple(int(part) for part in re.findall(r"\d+", pinned[name])[:3])
        for operator, text in re.findall(r"(>=|<|==)(\d+(?:\.\d+)*)", ranges):
            bound = tuple(int(part) for part in text.split("."))
            padded = version[: len(bound)] if operator == "==" else version
            fits = {">=": padded >= bound, "<": padded < bound, "==": padded == bound}[operator]
            assert fits, (requirement, pinned[name])
