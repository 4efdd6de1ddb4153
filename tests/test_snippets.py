"""Every command and script of README.md and the guide: each page is run from top to bottom in a folder that has ``examples``.

What needs more than this repository (a framework, a cluster, a compiler of JAX) is run where that is installed. A block with
``...`` in it is a fragment: it must be of the language that it says, no more.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.paths import ROOT
from tests.patience import HANG

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: What a block with such a text in it needs beside the package.
NEEDS = {
    r"executorch": ("executorch", "executorch"),
    r"tune-xla|fit-jax|import jax|from jax|fit_jax": ("jax", "libtpu"),
    r"\bmodel\.onnx": ("onnx",),
    r"stowplan (train|validate)|\btorch\b": ("torch",),
    r"lightning": ("torch", "lightning"),
    r"train_with_transformers": ("torch", "transformers"),
    r"\baccelerate\b": ("torch", "accelerate"),
    r"--png \S+\.(png|pdf)": ("matplotlib",),
    r"tcp://|dask": ("a cluster",),
    r"before/": ("modules from before and after XLA's assignment",),
}

#: Pages of more than some seconds.
SLOW = {
    *("README.md", "batches.md", "compiled-programs.md", "gallery.md", "hints.md", "map-loop.md", "place-network.md"),
    *(
        "fit-jax.md",
        "fragmentation.md",
        "train-a-policy.md",
        "train-with-a-trainer.md",
        "train-within-memory.md",
        "validate.md",
    ),
}

#: Commands as the pages have them: this package's, whatever is installed; nothing is installed, and builds are only looked at.
SHELL = f"""set -e
stowplan() {{ '{sys.executable}' -m stowplan "$@"; }}
python() {{ '{sys.executable}' "$@"; }}
pip() {{ [ "$1" = install ]; }}
make() {{ command make -C '{ROOT}' --dry-run "$@" > dry-run; }}
"""


class Block(NamedTuple):
    """A block of a page."""

    line: int
    language: str
    text: str

    @property
    def is_fragment(self) -> bool:
        """Whether it says that something is left out."""
        return "..." in self.text

    @property
    def missing(self) -> list[str]:
        """What it needs and is not there."""
        needed = [name for pattern, names in NEEDS.items() if re.search(pattern, self.text) for name in names]
        return [name for name in needed if not name.isidentifier() or importlib.util.find_spec(name) is None]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(text.count("\n", 0, found.start()) + 1, found[1], found[2]) for found in BLOCK.finditer(text)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A clone as readers have it, and a model of their own."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "docs" / "gallery").mkdir(parents=True)
    (tmp_path / "out" / "gallery").mkdir(parents=True)
    (tmp_path / "your_program.py").write_text("")
    if importlib.util.find_spec("onnx") is not None:
        from tests.cli.test_front_door import model

        model(tmp_path / "model.onnx")
    return tmp_path


def check_language(block: Block) -> None:
    """Raises where a block is none of its language."""
    if block.language == "python":
        ast.parse(block.text)
    else:
        subprocess.run(["bash", "-n", "-c", block.text], check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_of_its_language(page: Path) -> None:
    fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(fences) % 2 == 0
    assert {*fences[::2]} <= {"sh", "python", ""}
    for block in blocks(page):
        check_language(block)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else ()) for page in PAGES],
    ids=lambda page: page.name,
)
def test_the_commands_of_a_page_run(page: Path, folder: Path) -> None:
    left_out = []
    for block in blocks(page):
        if block.is_fragment:
            continue
        if block.missing:
            left_out.append(f"line {block.line} needs {' and '.join(block.missing)}")
            continue
        command = [sys.executable, "-c", block.text] if block.language == "python" else ["bash", "-c", SHELL + block.text]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder)))}
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=-3, capture_output=True, text=True, timeout=HANG, check=False
        )
        assert done.returncode == 0, f"{page.name}, line {block.line}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    if left_out and len(left_out) == len([block for block in blocks(page) if not block.is_fragment]):
        pytest.skip("; ".join(left_out))


def test_the_kernel_from_nothing_is_one_program(tmp_path: Path) -> None:
    """Its blocks, one after the other, find the optimum and report what became of each candidate."""
    page = ROOT / "docs" / "kernel-from-nothing.md"
    program = "\n\n".join(block.text for block in blocks(page))
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "failed: RuntimeError" in done.stdout
    # As long as the page says that it is.
    assert program.count("\n") < 200


def test_what_a_block_needs_is_seen() -> None:
    assert Block(1, "sh", "stowplan solve a.csv -o plan.json").missing == []
    assert Block(1, "sh", "stowplan batch a --scheduler tcp://head:8786").missing == ["a cluster"]
    assert Block(1, "python", "program = ...").is_fragment
    with pytest.raises(SyntaxError):
        check_language(Block(1, "python", "program = (..."))
    with pytest.raises(subprocess.CalledProcessError):
        check_language(Block(1, "sh", "for a in b; do"))
