"""Results on disk: whole or not there, found by what they were made from."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import msgspec
import pytest

from stowplan.backends.xla.dumps import ASSIGNED, COMPILED, OFFSETS, PROGRAM
from stowplan.backends.xla.store import Record, WorkloadStore, read_result, result_key
from stowplan.errors import InputError

RECORD = Record(
    options={"b": 1, "a": "x"}, versions={"jax": "1"}, topology="v4", workload="d" * 64, processor_seconds=1, seconds=2
)


def make(store: WorkloadStore, record: Record, program: bytes = b"p", mark: bytes = b"c") -> Path:
    with store.scratch() as scratch:
        for name, data in ((PROGRAM, program), (ASSIGNED, b"a"), (OFFSETS, b"o"), (COMPILED, mark)):
            (scratch / name).write_bytes(data)
        return store.keep(scratch, record).folder


def test_a_result_is_found_again(tmp_path: Path) -> None:
    store = WorkloadStore(tmp_path / "new", "toy", RECORD.workload)
    assert store.find(RECORD.key) is None
    folder = make(store, RECORD)
    found = store.find(result_key({"a": "x", "b": 1}, {"jax": "1"}, "v4"))
    assert found is not None
    assert (found.folder, found.record, found.error) == (folder, RECORD, "")
    # The program is the same for all results, and kept once.
    assert found.program_path == store.folder / PROGRAM
    other = make(store, msgspec.structs.replace(RECORD, options={}), program=b"another")
    assert (other / PROGRAM).read_bytes() == b"another"
    assert all(store.find(each.name) is not None for each in (folder, other))
    assert read_result(folder).record == RECORD
    with pytest.raises(InputError, match="cannot read"):
        read_result(tmp_path)


@pytest.mark.parametrize("change", [{"options": {"a": "y"}}, {"versions": {"jax": "2"}}, {"topology": "v5"}])
def test_what_a_key_depends_on(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(RECORD, **change).key != RECORD.key


def test_nothing_is_left_of_what_fails(tmp_path: Path) -> None:
    store = WorkloadStore(tmp_path, "toy", RECORD.workload)
    with contextlib.suppress(KeyboardInterrupt), store.scratch() as scratch:
        (scratch / COMPILED).write_bytes(b"half")
        raise KeyboardInterrupt
    assert not list(store.folder.iterdir())


def test_a_damaged_result_is_made_again(tmp_path: Path) -> None:
    store = WorkloadStore(tmp_path, "toy", RECORD.workload)
    folder = make(store, RECORD)
    for damage in (
        lambda: (folder / "record.json").write_text("{"),
        lambda: (folder / "record.json").unlink(),
        lambda: (folder / ASSIGNED).unlink(),
        lambda: (folder / "record.json").write_text((folder / "record.json").read_text().replace("dddd", "eeee")),
    ):
        damage()
        assert store.find(RECORD.key) is None
        assert make(store, RECORD, mark=b"again") == folder
        assert (folder / COMPILED).read_bytes() == b"again"


def test_the_first_of_two_writers_stays(tmp_path: Path) -> None:
    store = WorkloadStore(tmp_path, "toy", RECORD.workload)
    with store.scratch() as late:
        for name in (PROGRAM, ASSIGNED, OFFSETS, COMPILED):
            (late / name).write_bytes(b"late")
        folder = make(store, RECORD, program=b"late", mark=b"early")
        assert store.keep(late, RECORD).folder == folder
    assert (folder / COMPILED).read_bytes() == b"early"


def test_many_writers_at_once(tmp_path: Path) -> None:
    barrier, folders = threading.Barrier(8), []

    def write(number: int) -> None:
        store = WorkloadStore(tmp_path, "toy", RECORD.workload)
        barrier.wait()
        records = [msgspec.structs.replace(RECORD, options={"n": each}) for each in (0, number % 2, 2)]
        folders.extend(make(store, record) for record in records)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 24
    store = WorkloadStore(tmp_path, "toy", RECORD.workload)
    assert all(store.find(folder.name) is not None for folder in folders)
    assert {path.name for path in store.folder.iterdir()} == {PROGRAM, *(folder.name for folder in folders)}


def test_a_refusal_is_a_result(tmp_path: Path) -> None:
    store = WorkloadStore(tmp_path, "toy", RECORD.workload)
    refused = msgspec.structs.replace(RECORD, error="No such compile option")
    with store.scratch() as scratch:
        assert store.keep(scratch, refused).error == "No such compile option"
    found = store.find(RECORD.key)
    assert found is not None
    assert found.error == "No such compile option"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        WorkloadStore(tmp_path / "file", "toy", RECORD.workload)
