"""The compile cache: one folder for each state of the sources, and no claim that it is complete before it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stowplan import compiled


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of its own."""
    monkeypatch.setenv("STOWPLAN_COMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled.tempfile, "tempdir", str(tmp_path))
    compiled.cache_folder.cache_clear()
    yield tmp_path / "cache"
    compiled.cache_folder.cache_clear()


ROOT = Path(compiled.__file__).parent
ROOMS = ("hardware", "learned_guidance", "portfolio")


@pytest.mark.parametrize("room", ROOMS)
def test_every_compiled_source_is_part_of_the_digest(room: str) -> None:
    decorated = {path for path in (ROOT / room).rglob("*.py") if "\n@njit" in path.read_text()}
    assert decorated
    assert decorated <= set(compiled.sources(room))


@pytest.mark.parametrize(
    "constants",
    [
        "learned_guidance/memory_mapping/game/kernel/layout.py",
        "learned_guidance/memory_mapping/observation/layout.py",
        "portfolio/memory_mapping/state.py",
    ],
)
def test_modules_of_constants_are_part_of_the_digest(constants: str) -> None:
    assert ROOT / constants in compiled.sources(constants.partition("/")[0])


def test_what_only_asks_for_the_cache_is_no_source() -> None:
    """A change of the runner leaves the heuristics compiled."""
    beside = {path.name for path in compiled.sources("portfolio") if path.parent == ROOT / "portfolio"}
    assert beside <= {"first_fit.py", "random_numbers.py"}


@pytest.fixture
def package(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A room of a few modules, none of which can be imported."""
    room = tmp_path / "stowplan" / "room"
    for name, text in {
        "kernel": "from stowplan.compiled import (\n    njit,\n)\nfrom stowplan.room.tables import (\n    ROWS,\n)\n",
        "tables": "from stowplan.room import sizes\nROWS = 1\n",
        "sizes/__init__": "from stowplan.room.sizes.large import LARGE\n",
        "sizes/large": "LARGE = 1\n",
        "runner": "from stowplan.compiled import INTERPRET, is_warm\nfrom stowplan.room.kernel import f\n",
        "other": "from stowplan.room.runner import g\n",
    }.items():
        path = room / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "raise AssertionError('imported')\n")
    (tmp_path / "stowplan" / "compiled.py").write_text("")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "stowplan" / "compiled.py"))
    compiled.sources.cache_clear()
    yield room
    compiled.sources.cache_clear()


def test_sources_are_found_by_their_text(package: Path) -> None:
    expected = ("kernel.py", "sizes/__init__.py", "sizes/large.py", "tables.py")
    assert compiled.sources("room") == tuple(package / name for name in expected)


@pytest.mark.parametrize(("name", "matters"), [("sizes/large", True), ("kernel", True), ("runner", False), ("other", False)])
def test_a_change_of_what_compiled_code_takes_in_changes_the_cache(package: Path, name: str, matters: bool) -> None:
    before = compiled.cache_folder("room")
    path = package / f"{name}.py"
    path.write_text(path.read_text().replace("raise", "LARGE = 2\nraise"))
    compiled.sources.cache_clear()
    compiled.cache_folder.cache_clear()
    assert (compiled.cache_folder("room") != before) == matters


def test_rooms_keep_their_code_apart(fresh: Path) -> None:
    assert compiled.cache_folder("learned_guidance") != compiled.cache_folder("portfolio")


def test_warm_only_once_marked(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.cache_folder().parent == fresh
    assert not compiled.is_warm()
    monkeypatch.setenv(compiled.INTERPRET, "1")
    compiled.mark_warm()
    assert not compiled.is_warm()  # interpreted functions leave nothing behind
    monkeypatch.delenv(compiled.INTERPRET)
    compiled.mark_warm()
    assert compiled.is_warm()


def test_a_cache_that_cannot_be_written_is_replaced(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.write_text("a file where the folder should be")
    folder = compiled.cache_folder()
    assert folder.is_dir()
    assert fresh not in folder.parents


def test_interpreted_functions_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(number: int) -> int:
        return 2 * number

    monkeypatch.setenv(compiled.INTERPRET, "1")
    assert compiled.njit(double) is double


def test_asking_whether_it_is_warm_does_not_import_numba() -> None:
    code = "import sys; from stowplan.compiled import is_warm; is_warm(); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


class _Stat:
    """What ``stat`` says of a path, its owner changed."""

    def __init__(self, found: os.stat_result):
        self.st_mode = found.st_mode
        self.st_uid = os.getuid() + 1


def _give_away(monkeypatch: pytest.MonkeyPatch, *given: Path) -> None:
    """Folders look as if another user owned them: only root could give them away for real."""
    for name in ("stat", "lstat"):
        real = getattr(Path, name)

        def look(path: Path, *args: object, _real: Any = real, **options: object) -> object:
            found = _real(path, *args, **options)
            return _Stat(found) if path in given else found

        monkeypatch.setattr(Path, name, look)


@pytest.fixture
def homeless(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Neither home nor named cache can be written; the temporary folder that all users share is returned."""
    monkeypatch.delenv("STOWPLAN_COMPILE_CACHE")
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no folder"))
    everyones = tmp_path / "tmp"
    everyones.mkdir()
    monkeypatch.setattr(compiled.tempfile, "tempdir", str(everyones))
    return everyones


def test_the_cache_is_private(homeless: Path) -> None:
    folder = compiled.cache_folder()
    assert folder.parent == homeless / f"stowplan-{os.getuid()}"
    assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700, 0o700]


def test_a_folder_of_another_user_is_not_used(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = homeless / f"stowplan-{os.getuid()}"
    taken.mkdir()
    _give_away(monkeypatch, taken)
    folder = compiled.cache_folder()
    assert folder.parent != taken
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    # Not a new one for each process.
    compiled.cache_folder.cache_clear()
    assert compiled.cache_folder() == folder


def test_a_link_of_another_user_is_not_followed(homeless: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even to a folder of one's own."""
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    link = homeless / f"stowplan-{os.getuid()}"
    link.symlink_to(mine)
    real = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: _Stat(real(path)) if path == link else real(path))
    assert link != compiled.cache_folder().parent
    assert not list(mine.iterdir())


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_cached_code_that_others_could_write_is_not_used(fresh: Path, mode: int) -> None:
    folder = compiled.cache_folder()
    assert folder.parent == fresh
    folder.chmod(mode)
    compiled.cache_folder.cache_clear()
    assert compiled.cache_folder() != folder


def test_cached_code_that_others_can_only_read_is_kept_to_oneself(fresh: Path) -> None:
    folder = compiled.cache_folder()
    folder.chmod(0o755)
    compiled.cache_folder.cache_clear()
    assert compiled.cache_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_ordinary_cache_is_looked_at_too(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STOWPLAN_COMPILE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = compiled.cache_folder()
    assert folder.parent == tmp_path / "home" / "stowplan"
    compiled.cache_folder.cache_clear()
    _give_away(monkeypatch, folder)
    assert tmp_path / "home" not in compiled.cache_folder().parents


def test_a_function_of_no_room_is_compiled_again_with_any_room() -> None:
    """Such as one of a benchmark, which may call functions of several."""
    assert set(compiled.sources("")) >= {path for room in ROOMS for path in compiled.sources(room)}

    def double(number: int) -> int:
        return 2 * number

    function: Any = compiled.njit(double)
    assert Path(function._cache.cache_path).is_relative_to(compiled.cache_folder(""))


FULL_DISK = """
import logging, resource, signal, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
from stowplan import compiled
def double(number):
    return 2 * number
print(compiled.njit(double)(21), compiled.njit(double)(2.5))
compiled.mark_warm()
print(compiled.is_warm())
"""


def _run(code: str, tmp_path: Path, **variables: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), **variables}
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="limits of processes")
def test_a_full_disk_costs_compile_time_only(tmp_path: Path) -> None:
    """A limit of 0 bytes a file stands for the disk: folders can be made, nothing can be written."""
    warning, values, warm = _run(FULL_DISK, tmp_path, STOWPLAN_COMPILE_CACHE=str(tmp_path / "cache"))
    assert (values, warm) == ("42 5.0", "False")
    assert warning.startswith("compiled code cannot be kept")


@pytest.mark.slow
def test_damaged_code_is_compiled_again(tmp_path: Path) -> None:
    code = FULL_DISK.replace("resource.setrlimit(", "(").replace("(21), compiled.njit(double)(2.5)", "(21)")
    folder = {"STOWPLAN_COMPILE_CACHE": str(tmp_path / "cache")}
    assert _run(code, tmp_path, **folder) == ["42", "True"]
    for suffix in ("nbi", "nbc"):
        for path in (tmp_path / "cache").rglob(f"*.{suffix}"):
            path.write_bytes(path.read_bytes()[:40])
        warning, value, _ = _run(code, tmp_path, **folder)
        assert (value, warning[:13]) == ("42", "compiled code")
        assert _run(code, tmp_path, **folder)[0] == "42"
