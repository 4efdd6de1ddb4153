"""Headers of GGUF files: what is read, and what is refused in one line."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from benchmarks.llama.gguf_files import NUMBERS, TensorSpec, write_gguf
from stowplan.errors import InputError
from stowplan.frontends.gguf import TYPES, Strings, read_gguf

KEYS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 500000.0,
    "llama.attention.head_count_kv": [8, 0],
    "tokenizer.ggml.tokens": ["a", "bc", ""],
    "flag": True,
}


def test_keys_and_tensors_are_read(tmp_path: Path) -> None:
    tensors = [TensorSpec(f"blk.0.{name}", name, (256 * 2, 3)) for name in NUMBERS]
    path = tmp_path / "model.gguf"
    total = write_gguf(path, KEYS, tensors)
    assert path.stat().st_size == total
    found = read_gguf(path)
    assert found.metadata == KEYS | {"tokenizer.ggml.tokens": Strings(3)}
    assert found.architecture == "llama"
    assert found.get("block_count") == 2
    assert found.get("missing", 7) == 7
    assert [(each.name, each.type, each.shape, each.bytes) for each in found.tensors] == [
        (each.name, each.type, each.shape, each.bytes) for each in tensors
    ]
    assert sum(each.bytes for each in found.tensors if each.type == "Q4_K") == 512 * 3 // 256 * 144


def test_version_2_and_models_in_several_files(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        keys = KEYS | {"split.count": 3}
        write_gguf(tmp_path / f"m-{number:05d}-of-00003.gguf", keys, [TensorSpec(f"t{number}", "F32", (4,))], version=2)
    found = read_gguf(tmp_path / "m-00001-of-00003.gguf")
    assert [each.name for each in found.tensors] == ["t1", "t2", "t3"]
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(InputError, match=r"00002-of-00003\.gguf: cannot be read: No such file"):
        read_gguf(tmp_path / "m-00001-of-00003.gguf")


def test_any_file_of_a_split_model_may_be_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-{number:05d}-of-00002.gguf" for number in (1, 2)]
    write_gguf(paths[0], KEYS | {"split.count": 2}, [TensorSpec("t1", "F32", (4,))])
    # gguf-split writes the keys of the model only into the first file.
    write_gguf(paths[1], {"split.count": 2}, [TensorSpec("t2", "F32", (4,))])
    first, second = map(read_gguf, paths)
    assert first == second
    assert second.path == paths[0]
    assert second.architecture == "llama"
    assert [each.name for each in second.tensors] == ["t1", "t2"]


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("m-00001-of-00002", 3, r"m-00001-of-00002\.gguf: split\.count: found 3, expected 2, as in the name of the file"),
        ("m-00001-of-00002", 1, "found 1, expected 2"),
        ("m-00003-of-00002", 2, "found file 3 of 2 by its name, expected a file from 1 to 2"),
        ("m-00000-of-00002", 2, "found file 0 of 2 by its name"),
        ("m-00001-of-00002", "2", r"split\.count: found '2', expected a number"),
    ],
)
def test_files_of_a_split_model_must_fit_their_names(tmp_path: Path, name: str, count: int | str, message: str) -> None:
    path = tmp_path / f"{name}.gguf"
    write_gguf(path, KEYS | {"split.count": count}, [TensorSpec("t", "F32", (4,))])
    with pytest.raises(InputError, match=message):
        read_gguf(path)


def test_whole_models_may_be_named_like_a_file_of_a_split_one(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    for keys in (KEYS, KEYS | {"split.count": 0}):
        write_gguf(path, keys, [TensorSpec("t", "F32", (4,))])
        assert len(read_gguf(path).tensors) == 1


def test_every_shortened_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, KEYS, [TensorSpec("t", "Q8_0", (64, 2))])
    data = path.read_bytes()
    header = data.rindex(b"t" + struct.pack("<I", 2)) + 1 + 4 + 16 + 12
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, header, 3), header - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(InputError, match=r"cut\.gguf"):
            read_gguf(cut)
    cut.write_bytes(data[:header])
    assert read_gguf(cut).tensors[0].bytes == 128 // 32 * 34


def test_damaged_headers_raise_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, KEYS, [TensorSpec("t", "Q8_0", (64, 2))])
    data, chance, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(min(len(changed), 400))] = chance.randrange(256)
        path.write_bytes(bytes(changed))
        try:
            read_gguf(path)
        except InputError as error:
            refused += len(str(error).splitlines()) == 1
    assert refused > 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"GGML" + data[4:], "expected b'GGUF'"),
        (lambda data: data[:4] + struct.pack("<I", 9) + data[8:], "found version 9, expected one of 2, 3"),
        (lambda data: data[:8] + struct.pack("<Q", 1 << 40) + data[16:], "found 1099511627776 tensors"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, KEYS, [TensorSpec("t", "F32", (4,))])
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        read_gguf(path)


def test_unknown_types_and_shapes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, KEYS, [TensorSpec("odd", "F32", (4,))])
    data = path.read_bytes()
    at = data.rindex(b"odd") + 3 + 4 + 8
    for kind, message in ((99, "tensor odd: found type 99"), (12, r"found shape \(4,\), expected a multiple of 256")):
        path.write_bytes(data[:at] + struct.pack("<I", kind) + data[at + 4 :])
        with pytest.raises(InputError, match=message):
            read_gguf(path)
    assert 99 not in TYPES
