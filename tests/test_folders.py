"""Folders whose docstring lists their files: each one is there, none is missing, and each imports only those listed before it.

A list has lines such as ``- ``store``, ``process``: results on disk; a child``: names before a colon are files or folders.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_imports import ROOT, dependencies, modules

#: Names before a colon: one, or several with commas between them.
HEAD = re.compile(r"((?:``\w+``,? (?:and )?)*``\w+``(?: and its table ``[\w.]+``)?):")


def listed(text: str) -> list[str]:
    """Names of files in the list of a docstring, in its order."""
    lines = [line.strip() for line in text.splitlines()]
    begin = next((at for at, line in enumerate(lines) if re.match(r"[-*] ``\w+``", line)), len(lines))
    names: list[str] = []
    for line in lines[begin:]:
        if not line:
            break
        for head in HEAD.findall(line):
            names += re.findall(r"``(\w+)``", head)
    return names


def docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""


def files(folder: Path) -> set[str]:
    """Modules and packages in a folder."""
    folders = {path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    return folders | {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}


#: All folders of some files; the kernel's list is its README.
FOLDERS = [
    path.parent
    for path in sorted(ROOT.rglob("__init__.py"))
    if path.parent != ROOT and "kernel" not in path.parent.relative_to(ROOT).parts and len(files(path.parent)) > 2
]


def test_lists_are_found() -> None:
    assert len(FOLDERS) > 40
    assert listed("One.\n\n- ``a``, ``b``: two, of ``form``. ``c``: another\n* ``d``: more\n  lines\n\n``e``: no") == list(
        "abcd"
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_every_file_is_listed_and_every_name_is_a_file(folder: Path) -> None:
    names = listed(docstring(folder))
    assert len(names) == len(set(names))
    assert set(names) == files(folder)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_each_file_knows_only_those_listed_before_it(folder: Path) -> None:
    names, inside = listed(docstring(folder)), folder.relative_to(ROOT).parts
    known = frozenset(parts for _, parts in modules())
    for path, parts in modules():
        if parts[: len(inside)] != inside or parts[len(inside) :] in ((), ("__main__",)):
            continue
        own = names.index(parts[len(inside)])
        used = {target[len(inside)] for target in dependencies(path, parts, known) if target[: len(inside)] == inside != target}
        late = [name for name in used if names.index(name) > own]
        assert not late, f"{path.relative_to(ROOT)} imports {', '.join(late)}, listed behind it"


def test_the_kernels_table_names_every_file() -> None:
    folder = ROOT / "kernel"
    table = [line for line in (folder / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {name.removesuffix(".py").rstrip("/") for line in table for name in re.findall(r"`([\w/]+(?:\.py|/))`", line)}
    assert named == files(folder) | files(folder / "workers")
