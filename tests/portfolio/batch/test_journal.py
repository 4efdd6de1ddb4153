"""One line for each input, whatever has happened to the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stowplan.errors import InputError
from stowplan.portfolio.batch.records import Journal, Record, Settings, only_writer, remove_temporary


def record(name: str, code: int = 0) -> Record:
    return Record(input=name, settings=Settings(), exit_code=code, error="x" * 100)


def lines(path: Path) -> list[tuple[str, int]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["name"], line["record"]["exit_code"]) for line in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with the lines a, b and c."""
    path = tmp_path / "results.jsonl"
    journal = Journal(path)
    for name in "abc":
        journal.add(name, record(name))
    journal.close()
    return path


def test_a_line_that_was_cut_short_at_any_place_goes(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(whole.rindex(b'{"name":"c"'), len(whole)):
        path.write_bytes(whole[:length])
        journal = Journal(path)
        assert (journal.has("b", record("b")), journal.has("c", record("c"))) == (True, False)
        journal.add("c", record("c"))
        journal.close()
        assert path.read_bytes() == whole


def test_the_last_line_of_an_input_counts(path: Path) -> None:
    journal = Journal(path)
    journal.add("a", record("a", 3))
    # Written at once, and without touching what was there.
    assert lines(path) == [("a", 0), ("b", 0), ("c", 0), ("a", 3)]
    before = path.read_bytes()
    journal.close()
    assert lines(path) == [("b", 0), ("c", 0), ("a", 3)]
    # So it is where nobody came to closing it.
    path.write_bytes(before)
    journal = Journal(path)
    assert lines(path) == [("b", 0), ("c", 0), ("a", 3)]
    assert (journal.has("a", record("a")), journal.has("a", record("a", 3))) == (False, True)
    journal.close()


@pytest.mark.parametrize("text", ["{}\n", "a,b\n", '{"name": "a", "record": {"format": "other"}}\n', "\xff\n"])
def test_a_file_of_another_kind_stays(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text, encoding="latin-1")
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"results.jsonl: line 4: .*expected a result of 'stowplan batch'"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_device_is_written_through() -> None:
    journal = Journal(Path("/dev/null"))
    journal.add("a", record("a"))
    journal.add("a", record("a", 2))
    journal.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_of_one_line() -> None:
    journal = Journal(Path("/dev/full"))
    with pytest.raises(InputError, match="/dev/full: cannot write: No space left on device"):
        journal.add("a", record("a"))


def test_what_was_killed_while_it_wrote_is_cleared_away(tmp_path: Path) -> None:
    for name in (".a.plan.json.k3j2_x1a.tmp", ".b c.result.json.abcdefgh.tmp", ".other.tmp", "a.plan.json", ".a.csv.abc.tmp"):
        (tmp_path / name).touch()
    remove_temporary(tmp_path, r".+\.(plan|result)\.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.csv.abc.tmp", ".other.tmp", "a.plan.json"]


def test_a_lock_is_held_by_one_and_no_longer_than_it_lives(tmp_path: Path) -> None:
    path = tmp_path / ".batch.lock"
    held = f"import time; from pathlib import Path; from {only_writer.__module__} import only_writer\n"
    held += f"with only_writer(Path({str(path)!r})): print('held', flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", held], stdout=-1, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"found another batch \(process {holder.pid}\) at work on it"), only_writer(path):
            pass
        holder.kill()
        holder.wait()
        assert path.exists()
        with only_writer(path):
            pass
    assert not path.exists()


def test_a_line_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"name": ' + b"[" * 100_000 + b"\n")
    with pytest.raises(InputError, match=r"results.jsonl: line 1: .*expected a result of 'stowplan batch'"):
        Journal(path)
