"""Pickles of plain data come as Python's own reader has them; others are refused in one line, and nothing of them is run."""

from __future__ import annotations

import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from stowplan.errors import InputError
from stowplan.frontends.snapshot import plain_pickle
from stowplan.frontends.snapshot.plain_pickle import load

HEAD = b"\x80\x04"


def plain(chance: random.Random, depth: int = 4) -> Any:
    """A random value of plain data."""
    kind = chance.randrange(11 if depth else 8)
    if kind < 8:
        number = chance.choice([0, 1, 255, 256, 65535, 65536, 1 << 31, 1 << 47, (1 << 63) - 1, (1 << 64) - 1])
        text = "".join(chance.choice("ab\u00e9\u4e2d\U0001f600\x00") for _ in range(chance.choice([0, 3, 300])))
        every = (None, True, False, number, -number, chance.random(), text, text.encode()[: chance.choice([2, 400])])
        return every[kind]
    values = [plain(chance, depth - 1) for _ in range(chance.choice([0, 1, 2, 3, 5]))]
    if kind == 8:
        return values
    return tuple(values) if kind == 9 else {f"{at}": value for at, value in enumerate(values)}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data(protocol: int) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        shared = [{"filename": "a.py"}]
        value = [plain(chance), shared, {"again": shared, "bytes": plain(chance)}]
        if protocol == 2:
            # Protocol 2 has no opcodes for bytes, and calls a function to make them.
            value = [shared, {"again": shared, "numbers": list(range(3000))}]
        found = load(pickle.dumps(value, protocol))
        assert found == value
        assert [*map(type, found)] == [*map(type, value)]
    assert found[0 if protocol == 2 else 1] is found[-1]["again"]


class Calls:
    """Runs a command where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_called(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "made"
    for value in (Calls(path), {"segments": [Calls(path)], "device_traces": []}):
        with pytest.raises(InputError, match=r"byte \d+: found the opcode \w+, expected a pickle of plain data"):
            load(pickle.dumps(value, protocol))
    assert not path.exists()


REFUSED = {
    "a global": b"cos\nsystem\n.",
    "a global from the stack": b"\x8c\x02os\x8c\x06system\x93.",
    "a call": b"\x8c\x02os(tR.",
    "a new object": b")\x81.",
    "an instance": b"(ios\nsystem\n.",
    "a built object": b"}}b.",
    "a persistent id": b"Pname\n.",
    "a persistent id from the stack": b"NQ.",
    "an extension": b"\x82\x01.",
    "a buffer outside": b"\x97.",
    "a byte array of any size": b"\x96" + struct.pack("<Q", 1 << 60) + b".",
    "a set": b"\x8f.",
    "a frozen set": b"(\x91.",
    "text that is evaluated": b"S'a'\n.",
    "a number as text": b"I12\n.",
    "bytes of any size": b"\x8e" + struct.pack("<Q", 1 << 60) + b".",
    "a number of any size": b"\x8b" + struct.pack("<I", 1 << 30) + b".",
    "a long number": b"\x8a\xff" + b"\1" * 255 + b".",
    "a key that is no text": b"}(K\1K\2u.",
    "one key that is no text": b"}K\1K\2s.",
    "a key without a value": b"}(\x8c\1au.",
    "entries of a list in a dictionary": b"}K\1a.",
    "entries of a dictionary in a list": b"](\x8c\1aK\1u.",
    "a number for a value far off": b"Nr\xff\xff\xff\xff.",
    "a value that has no number": b"h\7.",
    "an opcode that is none": b"\xff.",
    "nesting without an end": b"(" * 100_000 + b".",
    "an empty stack": b".",
    "two values": b"NN.",
    "a mark that is not there": b"Nt.",
    "a tuple of what is not there": b"\x87.",
    "text that is no UTF-8": b"\x8c\1\xff.",
    "text beyond the end": b"X\xff\xff\xff\x7fabc.",
    "no end": b"N",
    "nothing": b"",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load(HEAD + REFUSED[name])
    assert caught.value.message.startswith("found ")
    assert "\n" not in str(caught.value)
    assert caught.value.place is not None


def test_cut_off_anywhere() -> None:
    data = pickle.dumps({"a": [1, 300, 70000, -1, 1 << 40, 1.5, "text", b"bytes", (1, 2), None, True, "x" * 300]}, 4)
    for size in range(2, len(data)):
        with pytest.raises(InputError):
            load(data[:size])


def test_deep_lists_are_harmless() -> None:
    value = load(HEAD + b"]" * 200_000 + b"a" * 199_999 + b".")
    assert len(value) == 1


def test_too_many_opcodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_OPCODES", 1 << 17)
    with pytest.raises(InputError, match="found more than 131072 opcodes"):
        load(HEAD + b"N\x85" * (1 << 17))
