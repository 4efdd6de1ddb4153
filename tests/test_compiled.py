"""Compiled functions: their signatures, what passes to machine code, where it is found, and what happens without."""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import numpy as np
import pytest

import stowplan
from stowplan import compiled
from stowplan.compiled import functions, library, signature
from stowplan.compiled.functions import Compiled
from stowplan.compiled.library import missing_code
from stowplan.compiled.signature import signature_of
from stowplan.portfolio.packing.search import greedy
from tests.models.packing.cases import random_problem
from tests.paths import ROOT

T = TypeVar("T")

PACKAGE = ROOT / "stowplan"
PACKAGES = library.compiling_packages(PACKAGE)

is_native = isinstance(greedy, Compiled) and greedy._entry is not None
native = pytest.mark.skipif(not is_native, reason="functions are interpreted")


def modules_of(package: str) -> Iterator[tuple[ModuleType, int]]:
    """Modules with compiled functions, and how many."""
    root = importlib.import_module(package)
    for found in pkgutil.iter_modules(root.__path__):
        count = (Path(root.__path__[0]) / f"{found.name}.py").read_text().count("\n@njit\n") if not found.ispkg else 0
        if count:
            yield importlib.import_module(f"{package}.{found.name}"), count


@pytest.mark.parametrize("package", PACKAGES)
def test_every_signature_passes_to_c(package: str) -> None:
    for module, count in modules_of(package):
        own = [
            value
            for value in vars(module).values()
            if isinstance(value, Compiled) and value.function.__module__ == module.__name__
        ]
        assert len(own) == count or not is_native
        for function in own:
            assert signature_of(function.function).parameters


@native
@pytest.mark.parametrize("package", PACKAGES)
def test_every_function_has_machine_code(package: str) -> None:
    for module, _ in modules_of(package):
        for value in vars(module).values():
            if isinstance(value, Compiled):
                assert value._entry is not None


@native
@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
@pytest.mark.parametrize("package", PACKAGES)
def test_machine_code_needs_the_c_and_mathematics_libraries_alone(package: str) -> None:
    found = library._library(package)
    assert found is not None
    listed = subprocess.run(["nm", "-D", found._name], capture_output=True, text=True, check=True).stdout
    wanted = {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line.split()[-2] == "U"}
    libraries = [ctypes.CDLL(name) for name in ("libc.so.6", "libm.so.6")]
    assert [name for name in sorted(wanted) if not any(hasattr(known, name) for known in libraries)] == []


def arguments(seed: int) -> list[Any]:
    """Of the placement of random buffers."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    first = rng.integers(0, 40, n)
    piece, last = np.arange(n + 1), first + rng.integers(1, 10, n)
    order, size, align = rng.permutation(n), rng.integers(1, 50, n), rng.choice([1, 4], n)
    room = np.zeros(n, np.int64), np.zeros((5, n), np.int64)
    return [order, size, align, np.full(n, -1), piece, first, last, bool(rng.integers(2)), *room, 0, n]


@native
def test_machine_code_does_what_is_written() -> None:
    for seed in range(50):
        one, other = arguments(seed), arguments(seed)
        assert greedy(*one) == greedy.function(*other)  # type: ignore[attr-defined]
        assert one[8].tolist() == other[8].tolist()


@native
@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1, lambda value: value.astype(np.int32), "argument size: found a 1-d array of int32, expected a contiguous 1-d"),
        (1, lambda value: np.stack([value, value]), "argument size: found a 2-d array of int64"),
        (1, lambda value: np.repeat(value, 2)[::2], "argument size: found a 1-d array of int64, expected a contiguous 1-d"),
        (1, list, "argument size: found a list, expected a contiguous 1-d array of int64"),
        (10, lambda value: "x", "argument since"),
        (10, lambda value: 0.5, "argument since"),
        (10, lambda value: 1 << 64, "argument since"),
    ],
)
def test_what_is_no_such_argument_is_refused(place: int, change: Any, message: str) -> None:
    values = arguments(3)
    values[place] = change(values[place])
    with pytest.raises(TypeError, match=f"stowplan.portfolio.packing.search.greedy, {message}"):
        greedy(*values)


@native
def test_the_count_of_arguments_is_checked() -> None:
    for values in (arguments(1)[:-1], [*arguments(1), 1]):
        with pytest.raises(TypeError, match=f"greedy takes 12 arguments, found {len(values)}"):
            greedy(*values)
    with pytest.raises(TypeError, match="greedy takes 12 arguments"):
        greedy(*arguments(1), other=1)  # type: ignore[call-arg]


@native
def test_arguments_may_be_named() -> None:
    values, named = arguments(5), arguments(5)
    count = named.pop()
    assert greedy(*values) == greedy(*named, until=count)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("annotation", "message"),
    [("list[int]", "does not pass to C"), ("str", "does not pass to C"), ("Any", "does not pass to C")],
)
def test_other_annotations_are_refused(annotation: str, message: str) -> None:
    def takes(value: int) -> int:
        return value

    takes.__annotations__["value"] = annotation
    with pytest.raises(TypeError, match=rf"takes, value.*{message}"):
        signature_of(takes)


def test_what_returns_arrays_is_refused() -> None:
    def makes(value: int) -> compiled.Ints:
        return np.zeros(value, np.int64)

    with pytest.raises(TypeError, match=r"makes returns .*write arrays that they are given"):
        signature_of(makes)


def test_interpreted_functions_return_what_machine_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's numbers: messages to other processes take no others."""

    def first(values: compiled.Ints) -> int:
        return values[0]  # type: ignore[no-any-return]

    def first_two(values: compiled.Ints) -> tuple[int, bool]:
        return values[0], values[1] > 0

    monkeypatch.setattr(functions, "IS_INTERPRETED", True)
    values = np.array([2, 3])
    assert type(compiled.njit(first)(values)) is int
    assert [type(value) for value in compiled.njit(first_two)(values)] == [int, bool]


def test_arrays_may_be_written_by_an_alias_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NumPy 2.5 has ``NDArray``: its origin is the alias, no class of arrays."""

    class Alias(Generic[T]):
        """Stands for that of NumPy."""

    def takes(values: Any) -> int:
        return 0

    monkeypatch.setattr(signature.npt, "NDArray", Alias)
    takes.__annotations__["values"] = Alias[np.float64]
    assert signature_of(takes).parameters == (signature.Array(np.dtype(np.float64), 1),)


# What machine code is made from


def test_modules_of_constants_are_sources() -> None:
    sources = library.sources("stowplan.learned_guidance.memory_mapping.observation")
    folder = PACKAGE / "learned_guidance" / "memory_mapping"
    assert {folder / "game" / "compiled" / "layout.py", folder / "observation" / "layout.py"} <= {*sources}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of a few modules, none of which can be imported."""
    room = tmp_path / "made_up_package" / "room"
    for name, text in {
        "kernel": "from stowplan.compiled import njit\nfrom made_up_package.room.tables import (\n    ROWS,\n)\n@njit\n",
        "tables": "from made_up_package.room import sizes\nROWS = 1\n",
        "sizes/__init__": "from made_up_package.room.sizes.large import LARGE\n",
        "sizes/large": "LARGE = 1\n",
        "runner": "from stowplan.compiled import INTERPRET\nfrom made_up_package.room.kernel import f\n",
        "other": "from made_up_package.room.runner import g\n",
    }.items():
        path = room / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "raise AssertionError('imported')\n")
    (room / "__init__.py").write_text("")
    (room.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield room
    for name in ("made_up_package", "made_up_package.room"):
        sys.modules.pop(name, None)


def test_sources_are_found_by_their_text(package: Path) -> None:
    expected = ("__init__.py", "kernel.py", "sizes/__init__.py", "sizes/large.py", "tables.py")
    assert library.sources("made_up_package.room") == tuple(package / name for name in expected)
    assert library.compiling_packages(package.parent) == ["made_up_package.room"]


@pytest.mark.parametrize(("name", "matters"), [("sizes/large", True), ("kernel", True), ("runner", False), ("other", False)])
def test_a_change_of_a_source_changes_the_name_of_the_code_and_nothing_else_does(
    package: Path, name: str, matters: bool
) -> None:
    def digest() -> str:
        library.digest.cache_clear()
        return library.digest("made_up_package.room")

    before = digest()
    path = package / f"{name}.py"
    os.utime(path, (0, 0))
    assert digest() == before
    path.write_text(path.read_text().replace("raise", "LARGE = 2\nraise"))
    assert (digest() != before) == matters


# Where it is kept


class _Stat:
    """What ``stat`` says of a path, its owner changed."""

    def __init__(self, found: os.stat_result):
        self.st_mode = found.st_mode
        self.st_uid = os.getuid() + 1


def test_a_folder_of_ones_own_is_made_private(tmp_path: Path) -> None:
    folder = library._private_folder(tmp_path / "new")
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_a_folder_that_others_could_write_is_not_used(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    assert library._private_folder(tmp_path / "open") is None


@pytest.mark.parametrize("name", ["stat", "lstat"])
def test_a_folder_or_link_of_another_user_is_not_used(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root could give them away for real."""
    (tmp_path / "mine").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "mine")
    assert library._private_folder(link) == link
    real = getattr(Path, name)
    monkeypatch.setattr(
        Path, name, lambda path, **options: _Stat(real(path, **options)) if path == link else real(path, **options)
    )
    assert library._private_folder(link) is None


def test_a_file_where_the_folder_should_be_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert library._private_folder(tmp_path / "file") is None


# Processes of their own


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


WITHOUT = """
import logging, sys
from pathlib import Path
logging.basicConfig(format="%(message)s", stream=sys.stdout)
sys.modules["numba"] = None
from stowplan.compiled import functions, library, signature
library.SHIPPED = Path("{folder}")
import numpy as np
from stowplan.portfolio.packing.skyline import fill
from stowplan.portfolio.packing.search import greedy
i = lambda *numbers: np.array(numbers, np.int64)
print(greedy(i(0), i(3), i(1), i(-1), i(0, 1), i(0), i(1), False, i(0), np.zeros((5, 1), np.int64), 0, 1))
print(library.trouble("stowplan.portfolio.packing"))
assert fill._entry is None
import stowplan
from tests.models.packing.cases import random_problem
result = stowplan.solve(random_problem(1), candidates="heuristic", time_limit=60)
print([warning for warning in result.warnings if "machine code" in warning])
"""


def test_without_machine_code_and_numba_functions_run_interpreted_and_it_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    done = run(
        WITHOUT.format(folder=tmp_path / "shipped"),
        STOWPLAN_COMPILE_CACHE=str(tmp_path / "cache"),
        STOWPLAN_INTERPRET="",
        TMPDIR=str(tmp_path),
    )
    warning, result, without, *_ = done.stdout.splitlines()
    assert result == "3"
    assert without == "there is no machine code of stowplan.portfolio.packing for this processor"
    assert warning == f"heuristics run interpreted, many times slower: {without}, and numba is not installed"
    assert len([line for line in done.stdout.splitlines() if "interpreted" in line]) == 2


@pytest.mark.parametrize("has_numba", [True, False])
def test_what_to_run_for_missing_machine_code_is_said_once(
    has_numba: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the result of a solve, and by a command that does not print the warnings of its results."""
    from stowplan.cli import main

    # A fixture replaces the function in all other tests.
    for module in (importlib.import_module("stowplan.kernel.solve"), library):
        monkeypatch.setattr(module, "missing_code", missing_code)
    monkeypatch.setattr(library, "trouble", lambda *packages: "there is no machine code of it")
    monkeypatch.setattr(library, "find_spec", lambda name: has_numba or None)
    expected = "there is no machine code of it: heuristics may exceed the time limit, because they "
    if has_numba:
        expected += "are compiled at their first use; 'python -m stowplan.compiled.build' does so in advance"
    else:
        expected += "run interpreted, many times slower; to compile them, install numba and run "
        expected += "'python -m stowplan.compiled.build'"
    result = stowplan.solve(random_problem(1), time_limit=60)
    assert [warning for warning in result.warnings if "machine code" in warning] == [expected]
    for name in ("one", "two"):
        random_problem(1).save(tmp_path / f"{name}.json")
    inputs = [str(tmp_path / f"{name}.json") for name in ("one", "two")]
    for quiet in ([], ["-q"]):
        with pytest.raises(SystemExit):
            main(["batch", *inputs, "-o", str(tmp_path / f"out{len(quiet)}"), "--time-limit", "60", *quiet])
        lines = [line for line in capsys.readouterr().err.splitlines() if "machine code" in line]
        assert lines == ([] if quiet else [f"stowplan: {expected}"])


@native
def test_a_solve_imports_no_numba() -> None:
    code = (
        "import sys, stowplan\n"
        "from tests.models.packing.cases import random_problem\n"
        "result = stowplan.solve(random_problem(0), time_limit=60)\n"
        "assert result.plan is not None\n"
        "from stowplan.portfolio.packing import search\n"
        "assert search.greedy._entry is not None\n"
        "assert not {'numba', 'llvmlite'} & {*sys.modules}\n"
    )
    run(code)


@pytest.mark.slow
def test_what_is_missing_is_compiled_where_numba_is_installed(tmp_path: Path) -> None:
    """A new package, in a folder of this machine; then it is there for the next process."""
    pytest.importorskip("numba")
    folder = tmp_path / "compiled_on_use"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    text = "from stowplan.compiled import njit\n\n\n@njit\ndef double(number: int) -> int:\n    return 2 * number\n"
    (folder / "kernel.py").write_text(text)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from pathlib import Path\n"
        "from stowplan.compiled import library\n"
        f"library.SHIPPED = Path({str(tmp_path / 'none')!r})\n"
        "from compiled_on_use.kernel import double\n"
        "print(double(21), double._entry is not None)\n"
    )
    variables = {"STOWPLAN_COMPILE_CACHE": str(tmp_path / "cache"), "STOWPLAN_INTERPRET": ""}
    assert run(code, **variables).stdout.split() == ["42", "True"]
    (built,) = (tmp_path / "cache").glob("compiled_on_use-*.so")
    before = built.stat().st_mtime_ns
    assert run(code, **variables).stdout.split() == ["42", "True"]
    assert built.stat().st_mtime_ns == before
