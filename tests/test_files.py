"""Files of our own: written whole or not at all, read with errors that name file and field."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from stowplan import files
from stowplan.errors import InputError


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int


class Thing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    parts: tuple[Inner, ...] = ()
    format: str = "test.thing"
    version: int = 3


def decode(data: bytes) -> Thing:
    return files.decode(data, Thing, format_name="test.thing", version=3, source="thing.json")


# ------------------------------------------------------------------------------------------------------------- writing


def test_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    thing = Thing("Größe", (Inner(1), Inner(2)))
    files.write_atomic(path, files.encode(thing))
    assert decode(files.read_bytes(path)) == thing
    assert files.encode(decode(files.read_bytes(path))) == path.read_bytes()
    assert path.read_bytes().endswith(b"}\n")
    assert [each.name for each in tmp_path.iterdir()] == ["thing.json"]


def test_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    path.write_text("a much longer text than the new one")
    files.write_atomic(str(path), b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "𝄞" * 63])
def test_names_as_long_as_names_can_be(tmp_path: Path, name: str) -> None:
    files.write_atomic(tmp_path / name, b"text")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(name, b"text")]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_is_as_public_as_other_files(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        files.write_atomic(tmp_path / "ours", b"")
        (tmp_path / "other").write_bytes(b"")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_no_folder_to_write_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere/thing\.json: cannot write: No such file or directory"):
        files.write_atomic(tmp_path / "nowhere" / "thing.json", b"")


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "thing.json").mkdir()
    with pytest.raises(InputError, match="cannot write: Is a directory"):
        files.write_atomic(tmp_path / "thing.json", b"")
    assert [each.name for each in tmp_path.iterdir()] == ["thing.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "thing.json"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises((InputError, KeyboardInterrupt)):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["thing.json"]


def test_a_process_killed_while_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    """Killed at a random moment of writing the same file again and again."""
    path = tmp_path / "thing.json"
    code = f"""
        from stowplan import files
        number = 0
        while True:
            files.write_atomic({str(path)!r}, (b"%d" % (number % 10)) * 1_000_000)
            number += 1
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]) as process:
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    data = path.read_bytes()
    assert (len(data), len(set(data))) == (1_000_000, 1)


# ------------------------------------------------------------------------------------------------------------- reading


def test_plain_and_gzip_are_told_apart_by_content(tmp_path: Path) -> None:
    text = "ein Schöner Text\n" * 100
    for name, data in (("plain.gz", text.encode()), ("packed.txt", gzip.compress(text.encode()))):
        (tmp_path / name).write_bytes(data)
        assert files.read_text(tmp_path / name) == text
        assert files.read_bytes(str(tmp_path / name)) == text.encode()
    (tmp_path / "empty").write_bytes(b"")
    assert files.read_bytes(tmp_path / "empty") == b""


def _packed(tmp_path: Path, damage: str) -> Path:
    data = bytearray(gzip.compress(bytes(range(256)) * 50))
    if damage == "cut short":
        del data[-20:]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    elif damage == "checksum":
        data[-6] ^= 0xFF
    elif damage == "head only":
        del data[2:]
    path = tmp_path / "damaged.gz"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("damage", ["cut short", "flipped", "checksum", "head only"])
def test_damaged_gzip_files(tmp_path: Path, damage: str) -> None:
    path = _packed(tmp_path, damage)
    with pytest.raises(InputError, match=r"damaged\.gz: (truncated|damaged) gzip file") as raised:
        files.read_bytes(path)
    assert raised.value.source == str(path)
    assert "\n" not in str(raised.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing: cannot read: No such file or directory"):
        files.read_bytes(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot read: Is a directory"):
        files.read_text(tmp_path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_limit_on_what_is_read_after_unpacking(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "large"
    path.write_bytes(pack(b"x" * 1000))
    assert len(files.read_bytes(path, limit=1000)) == 1000
    with pytest.raises(InputError, match="larger than the limit of 999 bytes"):
        files.read_bytes(path, limit=999)


def test_text_that_is_none_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"one\ntwo\nGr\xf6\xdfe\n")
    with pytest.raises(InputError, match=re.escape("latin1.txt: line 3: found byte 0xf6, expected UTF-8 text")):
        files.read_text(path)


# --------------------------------------------------------------------------------------------------------- our formats


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"", None, "not a test.thing file"),
        (b"HloModule x", None, "not a test.thing file"),
        (b"[1, 2]", None, "not a test.thing file"),
        (b'{"name": "x"}', "format", "found format None, expected 'test.thing'"),
        (b'{"format": "other", "version": 3, "name": "x"}', "format", "found format 'other', expected 'test.thing'"),
        (b'{"format": 5}', None, "not a test.thing file"),
        (b'{"format": "test.thing", "name": "x"}', "version", "found version None, expected 3"),
        (b'{"format": "test.thing", "version": 4, "name": "x"}', "version", "found version 4, expected 3"),
        (b'{"format": "test.thing", "version": 3}', None, "missing required field `name`"),
        (b'{"format": "test.thing", "version": 3, "name": 1}', "name", "Expected `str`, got `int`"),
        (b'{"format": "test.thing", "version": 3, "name": "x", "nmae": 1}', None, "unknown field `nmae`"),
        (b'{"format": "test.thing", "version": 3, "name": "x", "name": "y"}', None, "found the field 'name' 2 times"),
        (
            b'{"format": "test.thing", "version": 3, "name": "x", "parts": [{"size": 1}, {"size": 1, "size": 2}]}',
            None,
            "found the field 'size' 2 times in one object, expected it once",
        ),
        (
            b'{"format": "test.thing", "version": 3, "name": "x", "parts": [{"size": 1}, {"size": 1.5}]}',
            "parts[1].size",
            "Expected `int`, got `float`",
        ),
        (b'{"format": "test.thing", "version": 3, "name": "x"', None, "not a test.thing file"),
        (b'{"format": "test.thing", "version": 3, "name": "x"} trailing', None, "not a test.thing file"),
        (b'{"format": "test.thing", "version": 3, "name": "\xff"}', None, "not a test.thing file"),
        (b'{"format": "\xff"}', None, "not a test.thing file"),
    ],
)
def test_bad_files_name_the_field(data: bytes, place: str | None, message: str) -> None:
    with pytest.raises(InputError) as raised:
        decode(data)
    assert raised.value.source == "thing.json"
    assert raised.value.place == place
    assert message in str(raised.value)


class Shelf(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    width: int = 0


class Store(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    shelves: dict[str, tuple[Shelf, ...]] = {}
    spare: Shelf | None = None
    pair: tuple[int, Shelf] | None = None
    state: Literal["open", "shut"] = "open"
    days: tuple[Literal["mon", "tue"], ...] = ()


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        # What is expected are fields of that very object: not 'id', which another has.
        ('"shelves": {"a": [{"label": "x"}, {"id": 1}]}', "shelves[...][1]", "field `id`, expected one of label, width"),
        ('"spare": {"id": 1}', "spare", "field `id`, expected one of label, width"),
        ('"pair": [1, {"shelves": 1}]', "pair[1]", "field `shelves`, expected one of label, width"),
        ('"spare": {"labl": 1}', "spare", "field `labl`, expected `label`"),
        ('"label": 1', None, "field `label`, expected one of id, shelves, spare, pair, state, days"),
        ('"spare": {"width": 1}', "spare", "missing required field `label`"),
        ('"spare": {"label": 1}', "spare.label", "Expected `str`, got `int`"),
        ('"state": "ajar"', "state", "Invalid enum value 'ajar', expected one of 'open', 'shut'"),
        ('"days": ["mon", "open"]', "days[1]", "Invalid enum value 'open', expected one of 'mon', 'tue'"),
    ],
)
def test_wrong_objects_are_told_what_they_may_hold(text: str, place: str | None, expected: str) -> None:
    with pytest.raises(InputError) as raised:
        files.decode_json(f'{{"id": "s", {text}}}'.encode(), Store, "a store", "store.json")
    assert (raised.value.source, raised.value.place) == ("store.json", place)
    assert raised.value.message.endswith(expected), raised.value.message


def test_a_field_twice_is_an_error_wherever_it_stands() -> None:
    for text in ('{"a": {"b": [1, {"c": ":", "c": "::"}]}}', '{"a": 1, "\\u0061": 2}', '{"a:": 1, "a:": 1}'):
        with pytest.raises(InputError, match="2 times in one object, expected it once"):
            files.decode_json(text.encode(), dict[str, object], "anything", "x.json")
    for text in ('{"a": {"a": [{"a": ":"}, {"a": "\\u003a"}]}, "b": "é:", "c": 1e3}', '{"a\\u003a": ":"}', "{}"):
        files.decode_json(text.encode(), dict[str, object], "anything", "x.json")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HloModule m", "no JSON object"),
        (b"[]", "no JSON object but a list of 0"),
        (b"[1, 2]", "no JSON object but a list of 2"),
        (b'[{"id": 1, "op": 2}]', "no JSON object but a list of 1, the first an object with the keys id, op"),
        (b'{"cells": 1, "nets": 2}', "a JSON object without a format, with the keys cells, nets"),
        (b"{}", "a JSON object without a format"),
        (b'{"format": "x"}', "format 'x'"),
        (b'{"format": 7}', "format 7"),
    ],
)
def test_what_is_no_file_of_ours_is_described(data: bytes, expected: str) -> None:
    assert files.describe(data) == expected


def test_equal_values_give_equal_bytes() -> None:
    assert files.encode(Thing("x", (Inner(1),))) == files.encode(decode(files.encode(Thing("x", (Inner(1),)))))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'  {"format": "a", "other": [1]}', "a"),
        (b'{"no": "format"}', None),
        (b"HloModule m", None),
        (b"{HloModule", None),
        (b"", None),
        (b'{"format": 1}', None),
        (b'{"format": "\xff"}', None),
        (b'["format"]', None),
    ],
)
def test_peek_format(data: bytes, expected: str | None) -> None:
    assert files.peek_format(data) == expected


def test_is_json(tmp_path: Path) -> None:
    cases = {
        "object": (b' \n{"a": 1}', True),
        "packed object": (gzip.compress(b'{"a": 1}'), True),
        "text": (b"HloModule m {", False),
        "packed text": (gzip.compress(b"HloModule m {"), False),
        "list": (b"[]", True),
        "empty": (b"", False),
        "damaged": (b"\x1f\x8b", False),
    }
    for name, (data, expected) in cases.items():
        (tmp_path / name).write_bytes(data)
        assert files.is_json(tmp_path / name) is expected, name
    assert not files.is_json(tmp_path / "nothing")
    assert not files.is_json(tmp_path)
