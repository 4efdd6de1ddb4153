"""Output that is no regular file is written through; links stay. Nothing here could harm a device, were that to fail."""

from __future__ import annotations

import os
import pty
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowplan import files
from stowplan.errors import InputError


class Reader(threading.Thread):
    """Reads a named pipe until its writers have gone."""

    def __init__(self, path: Path):
        super().__init__(daemon=True)
        self.path, self.data = path, b""
        self.start()

    def run(self) -> None:
        self.data = self.path.read_bytes()

    def result(self) -> bytes:
        self.join(20)
        assert not self.is_alive()
        return self.data


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_named_pipe_is_written_through(pipe: Path) -> None:
    reader = Reader(pipe)
    data = b"long " * 100_000
    files.write_atomic(pipe, data)
    assert reader.result() == data
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert [each.name for each in pipe.parent.iterdir()] == ["pipe"]


def test_a_pipe_behind_a_link(pipe: Path) -> None:
    link = pipe.with_name("link")
    link.symlink_to(pipe.name)
    reader = Reader(pipe)
    files.write_atomic(link, b"x")
    assert reader.result() == b"x"
    assert link.is_symlink()
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_terminal_is_written_through() -> None:
    leader, follower = pty.openpty()
    path = os.ttyname(follower)
    before = os.stat(path)
    files.write_atomic(path, b"plan")
    assert os.read(leader, 100) == b"plan"
    assert os.path.samestat(os.stat(path), before)
    os.close(leader)
    os.close(follower)


def test_the_null_device_is_written_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the device was to be replaced")

    monkeypatch.setattr(files, "_write_and_rename", refuse)
    before = os.stat(os.devnull)
    files.write_atomic(os.devnull, b"plan")
    assert os.path.samestat(os.stat(os.devnull), before)


@pytest.fixture
def full() -> Iterator[str]:
    """A path that leads to a full device, though not by its name."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    handle = os.open("/dev/full", os.O_WRONLY)
    yield f"/dev/fd/{handle}"
    os.close(handle)


def test_a_full_device(full: str) -> None:
    for data in (b"x", b"x" * 1_000_000):
        with pytest.raises(InputError, match=f"^{full}: cannot write: No space left on device$"):
            files.write_atomic(full, data)


def test_a_pipe_whose_reader_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(InputError, match="cannot write: Broken pipe"):
        files.write_atomic(f"/dev/fd/{writing}", b"x" * 1_000_000)
    os.close(writing)


def test_what_is_not_open(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write: Bad file descriptor"):
        files.write_atomic("/dev/fd/987", b"x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="loop: cannot write: Too many levels of symbolic links"):
        files.write_atomic(tmp_path / "loop", b"x")


def test_an_open_file_is_written_where_it_stands(tmp_path: Path) -> None:
    """As standard output that goes to a file: what stands there stays, and the next line comes after."""
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as stream:
        stream.write(b"before\n")
        files.write_atomic(f"/dev/fd/{stream.fileno()}", b"plan\n")
        stream.write(b"after\n")
    assert path.read_bytes() == b"before\nplan\nafter\n"


def test_standard_output_in_order(tmp_path: Path) -> None:
    code = "from stowplan import files; print('before'); files.write_atomic('/dev/fd/1', b'plan\\n'); print('after')"
    for to_file in (False, True):
        if to_file:
            with (tmp_path / "log").open("wb") as stream:
                subprocess.run([sys.executable, "-c", code], stdout=stream, check=True)
            found = (tmp_path / "log").read_bytes()
        else:
            found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        assert found == b"before\nplan\nafter\n"


def test_own_descriptors_by_any_name(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/stdout")
    assert [files.own_descriptor(path) for path in ("/dev/stdout", "/dev/stderr", "/dev/fd/7", link)] == [1, 2, 7, 1]
    (tmp_path / "1").write_text("")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (tmp_path / "1", tmp_path / "missing", tmp_path, "1", os.devnull, "/", loop):
        assert files.own_descriptor(path) is None


def test_a_link_stays(tmp_path: Path) -> None:
    """Written at its end, by a rename there."""
    (tmp_path / "folder").mkdir()
    target, middle, link = tmp_path / "folder" / "plan.json", tmp_path / "middle", tmp_path / "link"
    target.write_bytes(b"old")
    middle.symlink_to("folder/plan.json")
    link.symlink_to(middle)
    with target.open("rb") as old:
        files.write_atomic(link, b"new")
        assert old.read() == b"old"
    assert target.read_bytes() == b"new"
    assert link.is_symlink()
    assert middle.is_symlink()
    assert not target.is_symlink()
    assert [each.name for each in (tmp_path / "folder").iterdir()] == ["plan.json"]


def test_a_dangling_link_gets_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("made.json")
    files.write_atomic(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "made.json").read_bytes() == b"new"
    lost = tmp_path / "lost"
    lost.symlink_to("nowhere/made.json")
    with pytest.raises(InputError, match="lost: cannot write: No such file or directory"):
        files.write_atomic(lost, b"new")
