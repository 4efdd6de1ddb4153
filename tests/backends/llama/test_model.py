"""Layers of GGUF files, and the bytes of their caches."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.llama.gguf_files import TensorSpec, write_gguf
from stowplan.backends.llama.model import ARCHITECTURES, Context, cache_bytes, read_bytes, read_model, spilled_parts
from stowplan.errors import InputError, UsageError
from tests.backends.llama.cases import DENSE, EXPERTS, WINDOWS, write


def test_layers_have_all_tensors_once(tmp_path: Path) -> None:
    for shape in (DENSE, EXPERTS, WINDOWS):
        model = read_model(write(shape, tmp_path))
        tensors = [*shape.tensors()]
        tied = sum(tensor.bytes for tensor in tensors if tensor.name == "token_embd.weight" and shape.tied)
        assert model.bytes == sum(tensor.bytes for tensor in tensors) + tied
        assert len(model.layers) == shape.layers + 1
        assert model.layers[-1].name == "output"
        assert model.vocabulary == 512


def test_parts_that_may_be_spilled(tmp_path: Path) -> None:
    dense, experts = (read_model(write(shape, tmp_path)) for shape in (DENSE, EXPERTS))
    assert [*spilled_parts(dense.layers[0], 0)] == ["down", "up", "gate"]
    found = spilled_parts(experts.layers[0], experts.experts)
    assert [tensor.name for tensors in found.values() for tensor in tensors] == [
        "blk.0.ffn_down_exps.weight",
        "blk.0.ffn_up_exps.weight",
        "blk.0.ffn_gate_exps.weight",
    ]
    assert spilled_parts(dense.layers[-1], 0) == {}


@pytest.mark.parametrize(("key", "value", "each"), [("f16", "f16", 256), ("q8_0", "q8_0", 136), ("f32", "q4_0", 256 + 36)])
def test_caches_of_all_tokens(tmp_path: Path, key: str, value: str, each: int) -> None:
    layer = read_model(write(DENSE, tmp_path)).layers[3]
    context = Context(1000, key_type=key, value_type=value)
    # Two heads of 32 numbers, for keys and values, and 1,024 rows.
    assert cache_bytes(layer, context) == 1024 * each
    assert read_bytes(layer, context, 10) == 10 * each
    # Three slots: each has a third, rounded up.
    assert cache_bytes(layer, replace(context, tokens=3000, slots=3)) == 3 * 1024 * each


def test_windows_hold_a_window_and_a_micro_batch(tmp_path: Path) -> None:
    layers = read_model(write(WINDOWS, tmp_path)).layers
    context = Context(8192, micro_batch=512)
    row = 2 * 2 * 64 * 2
    assert [cache_bytes(layer, context) // row for layer in layers[:7]] == [1024] * 5 + [8192] + [1024]
    assert [cache_bytes(layer, Context(512)) // row for layer in layers[4:6]] == [512, 512]
    assert read_bytes(layers[0], context, 4000) == 512 * row
    assert cache_bytes(layers[-1], context) == 0


def test_unknown_architectures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, {"general.architecture": "rwkv7"}, [])
    with pytest.raises(UsageError, match=re.escape(f"{path}: found the architecture 'rwkv7', whose bytes in llama.cpp")):
        read_model(path)
    assert len(ARCHITECTURES) >= 10


def test_missing_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    keys = DENSE.metadata("model")
    del keys["llama.block_count"]
    write_gguf(path, keys, [*DENSE.tensors()])
    with pytest.raises(InputError, match=r"llama\.block_count: found None, expected a whole number"):
        read_model(path)
    for key, value in (("block_count", 1 << 31), ("attention.head_count", "many"), ("context_length", [1, 2])):
        write_gguf(path, DENSE.metadata("model") | {f"llama.{key}": value}, [*DENSE.tensors()])
        with pytest.raises(InputError, match=r"model\.gguf: .*found .*, expected "):
            read_model(path)
    write_gguf(
        path, DENSE.metadata("model"), [TensorSpec(f"blk.{number}.attn_norm.weight", "F32", (256,)) for number in range(12)]
    )
    with pytest.raises(InputError, match=r"found neither output\.weight nor token_embd\.weight"):
        read_model(path)
