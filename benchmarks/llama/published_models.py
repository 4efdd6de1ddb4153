"""Models of published measurements that ``architectures`` does not have: Qwen3.5 with dense layers.

Three of four layers have linear attention with a recurrent state, the fourth has attention with a cache. llama.cpp calls the
architecture ``qwen35``, whose bytes stowplan has not compared with the runtime's. The files written here say ``qwen3next``
instead, which has the same kinds of layers and caches, so that stowplan reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.llama.architectures import MAKERS
from benchmarks.llama.gguf_files import TensorSpec, write_gguf
from benchmarks.llama.other_architectures import Made, keys
from stowplan.backends.llama.model import LanguageModel, read_model

#: Numbers of a head of linear attention, and heads of its keys.
STATE, GROUPS = 128, 16

#: Numbers of a head of attention.
HEAD = 256

VOCABULARY = 248320


@dataclass(frozen=True)
class Hybrid:
    """The sizes of a Qwen3.5 model, in the mixture of types that llama.cpp calls Q4_K_M."""

    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    values: int
    """Numbers of the values of linear attention: heads times 128."""
    tied: bool = False

    def has_larger(self, number: int) -> bool:
        """Whether some matrices of a layer have the larger type (``use_more_bits`` in llama.cpp's quantization)."""
        eighth = self.layers // 8
        return number < eighth or number >= 7 * self.layers // 8 or (number - eighth) % 3 == 2

    def made(self, name: str) -> Made:
        """Keys and tensors."""
        metadata = keys(
            "qwen3next", name, self.layers, self.embedding, VOCABULARY, feed_forward_length=self.feed_forward,
            attention__head_count=self.heads, attention__head_count_kv=self.kv_heads, attention__key_length=HEAD,
            attention__value_length=HEAD, rope__dimension_count=64, full_attention_interval=4, ssm__conv_kernel=4,
            ssm__inner_size=self.values, ssm__state_size=STATE, ssm__time_step_rank=self.values // STATE,
            ssm__group_count=GROUPS,
        )  # fmt: skip
        metadata["qwen3next.context_length"] = 262144
        e = self.embedding
        tensors = [TensorSpec("token_embd.weight", "Q6_K" if self.tied else "Q4_K", (e, VOCABULARY))]
        tensors.append(TensorSpec("output_norm.weight", "F32", (e,)))
        if not self.tied:
            tensors.append(TensorSpec("output.weight", "Q6_K", (e, VOCABULARY)))
        for number in range(self.layers):
            tensors += self.layer(number)
        return metadata, tensors

    def layer(self, number: int) -> list[TensorSpec]:
        """Tensors of a layer."""
        e, f, larger = self.embedding, self.feed_forward, "Q6_K" if self.has_larger(number) else "Q4_K"

        def tensor(name: str, kind: str, *shape: int) -> TensorSpec:
            return TensorSpec(f"blk.{number}.{name}.weight", kind, shape)

        found = [tensor("attn_norm", "F32", e), tensor("post_attention_norm", "F32", e)]
        if (number + 1) % 4:
            convolved = self.values + 2 * GROUPS * STATE
            found += [tensor("attn_qkv", larger, e, convolved), tensor("attn_gate", "Q4_K", e, self.values)]
            found += [tensor("ssm_conv1d", "F32", 4, convolved), tensor("ssm_out", "Q4_K", self.values, e)]
            found += [tensor(part, "Q4_K", e, self.values // STATE) for part in ("ssm_alpha", "ssm_beta")]
        else:
            q, k = self.heads * HEAD, self.kv_heads * HEAD
            # Half of what is called queries gates the output.
            found += [tensor("attn_q", "Q4_K", e, 2 * q), tensor("attn_k", "Q4_K", e, k), tensor("attn_v", larger, e, k)]
            found += [tensor("attn_output", "Q4_K", q, e)]
        return [
            *found,
            tensor("ffn_gate", "Q4_K", e, f),
            tensor("ffn_down", larger, f, e),
            tensor("ffn_up", "Q4_K", e, f),
        ]


HYBRIDS = {
    "qwen-3.5-0.8b": Hybrid(24, 1024, 3584, 8, 2, 2048, tied=True),
    "qwen-3.5-9b": Hybrid(32, 4096, 12288, 16, 4, 4096),
    "qwen-3.5-27b": Hybrid(64, 5120, 17408, 24, 4, 6144),
}

ALL: dict[str, Callable[[], Made]] = MAKERS | {
    name: (lambda shape=shape, name=name: shape.made(name)) for name, shape in HYBRIDS.items()
}


def model_named(name: str, folder: Path) -> LanguageModel:
    """The model of a name, read from a file without data that is written to a folder."""
    metadata, tensors = ALL[name]()
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_gguf(path, metadata, tensors)
    return read_model(path)
