"""Models of known architectures: the keys and tensors that llama.cpp loads, without data.

Shapes are those of published models; types are one of llama.cpp's usual mixtures. One file each is written by
``python -m benchmarks.llama.architectures FOLDER``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.llama.gguf_files import TensorSpec, write_gguf
from benchmarks.llama.other_architectures import OTHERS


@dataclass(frozen=True)
class Shape:
    """The sizes of a model with attention."""

    architecture: str
    layers: int
    embedding: int
    heads: int
    kv_heads: int
    head: int
    feed_forward: int
    vocabulary: int
    context: int
    experts: int = 0
    used: int = 0
    expert_feed_forward: int = 0
    tied: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False
    window: int = 0
    is_gated: bool = True
    is_fused: bool = False
    weights: str = "Q4_K"
    larger: str = "Q6_K"

    def metadata(self, name: str) -> dict[str, Any]:
        """Keys of the file."""
        a = self.architecture
        keys: dict[str, Any] = {
            "general.architecture": a,
            "general.name": name,
            f"{a}.context_length": self.context,
            f"{a}.embedding_length": self.embedding,
            f"{a}.block_count": self.layers,
            f"{a}.feed_forward_length": self.feed_forward,
            f"{a}.attention.head_count": self.heads,
            f"{a}.attention.head_count_kv": self.kv_heads,
            f"{a}.attention.key_length": self.head,
            f"{a}.attention.value_length": self.head,
            f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{a}.attention.layer_norm_epsilon": 1e-5,
            f"{a}.rope.dimension_count": self.head,
            f"{a}.rope.freq_base": 500000.0,
            f"{a}.vocab_size": self.vocabulary,
            "tokenizer.ggml.model": "none",
        }
        if self.experts:
            keys |= {
                f"{a}.expert_count": self.experts,
                f"{a}.expert_used_count": self.used,
                f"{a}.expert_feed_forward_length": self.expert_feed_forward,
            }
        if self.window:
            keys[f"{a}.attention.sliding_window"] = self.window
        return keys

    def tensors(self) -> Iterator[TensorSpec]:
        """Tensors of the file."""
        e = self.embedding
        yield TensorSpec("token_embd.weight", self.weights, (e, self.vocabulary))
        yield TensorSpec("output_norm.weight", "F32", (e,))
        if not self.tied:
            yield TensorSpec("output.weight", self.larger, (e, self.vocabulary))
        for number in range(self.layers):
            yield from self.layer(number)

    def layer(self, number: int) -> Iterator[TensorSpec]:
        """Tensors of a layer; of some layers two are larger, as in llama.cpp's mixtures."""
        e, q, k = self.embedding, self.heads * self.head, self.kv_heads * self.head
        some = number < self.layers // 8 or number % 3 == 2
        larger = self.larger if some else self.weights

        def tensor(name: str, kind: str, *shape: int) -> TensorSpec:
            return TensorSpec(f"blk.{number}.{name}.weight", kind, shape)

        yield tensor("attn_norm", "F32", e)
        if self.is_fused:
            yield tensor("attn_qkv", self.weights, e, q + 2 * k)
        else:
            yield tensor("attn_q", self.weights, e, q)
            yield tensor("attn_k", self.weights, e, k)
            yield tensor("attn_v", larger, e, k)
        yield tensor("attn_output", self.weights, q, e)
        if self.has_qk_norm:
            yield tensor("attn_q_norm", "F32", self.head)
            yield tensor("attn_k_norm", "F32", self.head)
        if self.has_post_norms:
            yield tensor("post_attention_norm", "F32", e)
            yield tensor("post_ffw_norm", "F32", e)
        yield tensor("ffn_norm", "F32", e)
        if self.experts:
            f = self.expert_feed_forward
            yield tensor("ffn_gate_inp", "F32", e, self.experts)
            yield tensor("ffn_gate_exps", self.weights, e, f, self.experts)
            yield tensor("ffn_down_exps", larger, f, e, self.experts)
            yield tensor("ffn_up_exps", self.weights, e, f, self.experts)
            return
        f = self.feed_forward
        if self.is_gated and not self.is_fused:
            yield tensor("ffn_gate", self.weights, e, f)
        yield tensor("ffn_down", larger, f, e)
        yield tensor("ffn_up", self.weights, e, 2 * f if self.is_fused else f)


SHAPES: dict[str, Shape] = {
    "llama-3-8b": Shape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
    "llama-3-70b": Shape("llama", 80, 8192, 64, 8, 128, 28672, 128256, 131072),
    "llama-3-1b-tied": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, tied=True),
    "qwen-2-7b": Shape("qwen2", 28, 3584, 28, 4, 128, 18944, 152064, 131072),
    "qwen-3-32b": Shape("qwen3", 64, 5120, 64, 8, 128, 25600, 151936, 40960, has_qk_norm=True),
    "qwen-3-30b-a3b": Shape("qwen3moe", 48, 2048, 32, 4, 128, 6144, 151936, 262144, 128, 8, 768, has_qk_norm=True),
    "gemma-2-9b": Shape("gemma2", 42, 3584, 16, 8, 256, 14336, 256000, 8192, tied=True, has_post_norms=True, window=4096),
    "gemma-3-12b": Shape(
        "gemma3", 48, 3840, 16, 8, 256, 15360, 262208, 131072, tied=True, has_post_norms=True, has_qk_norm=True, window=1024
    ),
    "phi-3-mini": Shape("phi3", 32, 3072, 32, 32, 96, 8192, 32064, 131072, is_fused=True),
}

#: Small models with random data, for the rig: their placements are run.
TINY: dict[str, Shape] = {
    "tiny-dense": Shape("llama", 24, 1024, 16, 4, 64, 4096, 2048, 32768, weights="Q8_0", larger="Q8_0"),
    "tiny-moe": Shape(
        "qwen3moe", 16, 768, 12, 4, 64, 2048, 2048, 32768, 16, 2, 1024, has_qk_norm=True, weights="Q8_0", larger="Q8_0"
    ),
}

MAKERS: dict[str, Callable[[], tuple[dict[str, Any], list[TensorSpec]]]] = {
    name: (lambda shape=shape, name=name: (shape.metadata(name), [*shape.tensors()])) for name, shape in SHAPES.items()
} | OTHERS


def write_model(name: str, folder: Path) -> Path:
    """Write a model of :data:`MAKERS` without data, or one of :data:`TINY` with random data; its path."""
    path = folder / f"{name}.gguf"
    if name in TINY:
        write_gguf(path, TINY[name].metadata(name), [*TINY[name].tensors()], seed=0)
    else:
        metadata, tensors = MAKERS[name]()
        write_gguf(path, metadata, tensors)
    return path


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for model in MAKERS:
        print(write_model(model, target))
