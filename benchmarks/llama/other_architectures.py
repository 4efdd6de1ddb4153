"""Architectures with other layers than attention and one feed-forward part: latent attention, sinks, state spaces, biases.

Each function gives the keys and tensors of one model, as ``src/models`` of llama.cpp loads them; shapes are those of
published models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.llama.gguf_files import TensorSpec

Made = tuple[dict[str, Any], list[TensorSpec]]

#: Type of large matrices.
WEIGHTS = "Q4_K"


class Block:
    """Names tensors of a layer."""

    def __init__(self, number: int):
        self.number = number

    def __call__(self, name: str, *shape: int, kind: str = "", bias: bool = False, bare: bool = False) -> TensorSpec:
        suffix = "" if bare else ".bias" if bias else ".weight"
        kind = kind or ("F32" if len(shape) == 1 else WEIGHTS if shape[0] % 256 == 0 else "Q8_0")
        return TensorSpec(f"blk.{self.number}.{name}{suffix}", kind, shape)


def keys(architecture: str, name: str, layers: int, embedding: int, vocabulary: int, **others: Any) -> dict[str, Any]:
    """Keys that every model has, and those of the architecture, with ``__`` for a dot."""
    common: dict[str, Any] = {
        "block_count": layers,
        "embedding_length": embedding,
        "context_length": 131072,
        "vocab_size": vocabulary,
    }
    common |= {"attention__layer_norm_rms_epsilon": 1e-5, "attention__layer_norm_epsilon": 1e-5}
    given = {f"{architecture}.{key.replace('__', '.')}": value for key, value in (common | others).items()}
    return {"general.architecture": architecture, "general.name": name, "tokenizer.ggml.model": "none", **given}


def ends(embedding: int, vocabulary: int, tied: bool = False) -> list[TensorSpec]:
    """Embeddings and output."""
    found = [
        TensorSpec("token_embd.weight", WEIGHTS if embedding % 256 == 0 else "Q8_0", (embedding, vocabulary)),
        TensorSpec("output_norm.weight", "F32", (embedding,)),
    ]
    return found if tied else [*found, TensorSpec("output.weight", "Q6_K", (embedding, vocabulary))]


def attention(block: Block, embedding: int, heads: int, kv_heads: int, head: int) -> Iterator[TensorSpec]:
    """Queries, keys, values and the output of attention."""
    yield block("attn_q", embedding, heads * head)
    yield block("attn_k", embedding, kv_heads * head)
    yield block("attn_v", embedding, kv_heads * head)
    yield block("attn_output", heads * head, embedding)


def feed_forward(block: Block, embedding: int, size: int) -> Iterator[TensorSpec]:
    """A gated feed-forward part."""
    yield block("ffn_gate", embedding, size)
    yield block("ffn_down", size, embedding)
    yield block("ffn_up", embedding, size)


def experts(block: Block, embedding: int, size: int, count: int, shared: int = 0) -> Iterator[TensorSpec]:
    """Experts, and a shared one where it has a size."""
    yield block("ffn_gate_inp", embedding, count, kind="F32")
    yield block("ffn_gate_exps", embedding, size, count)
    yield block("ffn_down_exps", size, embedding, count)
    yield block("ffn_up_exps", embedding, size, count)
    if shared:
        yield block("ffn_gate_shexp", embedding, shared)
        yield block("ffn_down_shexp", shared, embedding)
        yield block("ffn_up_shexp", embedding, shared)


def state_space(block: Block, embedding: int, inner: int, state: int, groups: int, heads: int) -> Iterator[TensorSpec]:
    """A layer of Mamba 2."""
    convolution = inner + 2 * groups * state
    yield block("ssm_in", embedding, inner + convolution + heads)
    yield block("ssm_conv1d", 4, convolution, kind="F32")
    yield block("ssm_conv1d", convolution, bias=True)
    yield block("ssm_dt", heads, bias=True)
    yield block("ssm_a", 1, heads, kind="F32", bare=True)
    yield block("ssm_d", 1, heads, kind="F32", bare=True)
    yield block("ssm_norm", inner // groups, groups, kind="F32")
    yield block("ssm_out", inner, embedding)


def mixtral() -> Made:
    """Mixtral 8x7B: the architecture llama with experts."""
    e, f, vocabulary, layers = 4096, 14336, 32000, 32
    made = keys("llama", "mixtral-8x7b", layers, e, vocabulary, feed_forward_length=f, expert_count=8, expert_used_count=2)
    made |= {"llama.attention.head_count": 32, "llama.attention.head_count_kv": 8, "llama.rope.dimension_count": 128}
    tensors = ends(e, vocabulary)
    for number in range(layers):
        block = Block(number)
        tensors += [block("attn_norm", e), *attention(block, e, 32, 8, 128), block("ffn_norm", e), *experts(block, e, f, 8)]
    return made, tensors


def starcoder2() -> Made:
    """StarCoder2 3B: no gate, with biases."""
    e, f, vocabulary, layers = 3072, 12288, 49152, 30
    made = keys("starcoder2", "starcoder2-3b", layers, e, vocabulary, feed_forward_length=f, rope__dimension_count=128)
    made |= {"starcoder2.attention.head_count": 24, "starcoder2.attention.head_count_kv": 2}
    tensors = [*ends(e, vocabulary, tied=True), TensorSpec("output_norm.bias", "F32", (e,))]
    for number in range(layers):
        block = Block(number)
        tensors += [block("attn_norm", e), block("attn_norm", e, bias=True), *attention(block, e, 24, 2, 128)]
        tensors += [block("attn_q", e, bias=True), block("attn_k", 256, bias=True), block("attn_v", 256, bias=True)]
        tensors += [block("attn_output", e, bias=True), block("ffn_norm", e), block("ffn_norm", e, bias=True)]
        tensors += [
            block("ffn_down", f, e),
            block("ffn_up", e, f),
            block("ffn_down", e, bias=True),
            block("ffn_up", f, bias=True),
        ]
    return made, tensors


def gpt_oss() -> Made:
    """gpt-oss 20B: experts with biases, windows in every second layer, sinks."""
    e, f, vocabulary, layers = 2880, 2880, 201088, 24
    made = keys(
        "gpt-oss", "gpt-oss-20b", layers, e, vocabulary, feed_forward_length=f, expert_feed_forward_length=f, expert_count=32,
        expert_used_count=4, attention__head_count=64, attention__head_count_kv=8, attention__key_length=64,
        attention__value_length=64, attention__sliding_window=128, rope__dimension_count=64,
    )  # fmt: skip
    tensors = [
        TensorSpec("token_embd.weight", "Q8_0", (e, vocabulary)),
        TensorSpec("output_norm.weight", "F32", (e,)),
        TensorSpec("output.weight", "Q8_0", (e, vocabulary)),
    ]
    for number in range(layers):
        block = Block(number)
        tensors += [block("attn_norm", e), block("post_attention_norm", e), *attention(block, e, 64, 8, 64)]
        tensors += [block("attn_sinks", 64), block("attn_output", e, bias=True)]
        for name, size in (("attn_q", 4096), ("attn_k", 512), ("attn_v", 512)):
            tensors.append(block(name, size, bias=True))
        tensors += [block("ffn_gate_inp", e, 32, kind="F32"), block("ffn_gate_inp", 32, bias=True)]
        for name in ("gate", "down", "up"):
            tensors.append(block(f"ffn_{name}_exps", e, f, 32, kind="MXFP4"))
            tensors.append(block(f"ffn_{name}_exps", f, 32, kind="F32", bias=True))
    return made, tensors


def deepseek2() -> Made:
    """DeepSeek-V2-Lite: latent attention, one dense layer, then experts with a shared one."""
    e, latent, rope, layers, vocabulary, heads, f = 2048, 512, 64, 27, 102400, 16, 1408
    made = keys(
        "deepseek2", "deepseek-v2-lite", layers, e, vocabulary, feed_forward_length=10944, expert_feed_forward_length=f,
        expert_count=64, expert_used_count=6, expert_shared_count=2, leading_dense_block_count=1, attention__head_count=heads,
        attention__head_count_kv=1, attention__kv_lora_rank=latent, attention__key_length=latent + rope,
        attention__value_length=latent, attention__key_length_mla=192, attention__value_length_mla=128,
        rope__dimension_count=rope, expert_weights_scale=1.0,
    )  # fmt: skip
    tensors = ends(e, vocabulary)
    for number in range(layers):
        block = Block(number)
        tensors += [block("attn_norm", e), block("attn_kv_a_norm", latent), block("attn_q", e, heads * 192)]
        tensors += [block("attn_kv_a_mqa", e, latent + rope), block("attn_k_b", 128, latent, heads, kind="Q8_0")]
        tensors += [block("attn_v_b", latent, 128, heads), block("attn_output", heads * 128, e), block("ffn_norm", e)]
        tensors += [*feed_forward(block, e, 10944)] if number == 0 else [*experts(block, e, f, 64, 2 * f)]
    return made, tensors


def mamba2() -> Made:
    """Mamba 2 2.7B: states alone."""
    e, inner, state, layers, vocabulary = 2560, 5120, 128, 64, 50288
    made = keys(
        "mamba2", "mamba2-2.7b", layers, e, vocabulary, feed_forward_length=0, attention__head_count=0, ssm__conv_kernel=4,
        ssm__inner_size=inner, ssm__state_size=state, ssm__time_step_rank=80, ssm__group_count=1,
    )  # fmt: skip
    tensors = ends(e, vocabulary, tied=True)
    for number in range(layers):
        block = Block(number)
        tensors += [block("attn_norm", e), *state_space(block, e, inner, state, 1, 80)]
    return made, tensors


def falcon_h1() -> Made:
    """Falcon-H1 1.5B: attention and a state in every layer."""
    e, inner, state, layers, vocabulary, f = 2048, 3072, 256, 24, 65536, 4096
    made = keys(
        "falcon-h1", "falcon-h1-1.5b", layers, e, vocabulary, feed_forward_length=f, attention__head_count=8,
        attention__head_count_kv=2, attention__key_length=128, attention__value_length=128, rope__dimension_count=128,
        ssm__conv_kernel=4, ssm__inner_size=inner, ssm__state_size=state, ssm__time_step_rank=48, ssm__group_count=1,
    )  # fmt: skip
    tensors = ends(e, vocabulary)
    for number in range(layers):
        block = Block(number)
        tensors += [*state_space(block, e, inner, state, 1, 48), *attention(block, e, 8, 2, 128), block("attn_norm", e)]
        # Its name has no suffix.
        tensors += [block("ffn_norm", e, bare=True), *feed_forward(block, e, f)]
    return made, tensors


def granite_hybrid() -> Made:
    """Granite 4 tiny: states, attention in four layers, experts with a shared one."""
    e, inner, state, layers, vocabulary, f = 1536, 3072, 128, 40, 100352, 512
    kv_heads = [4 if number in (5, 15, 25, 35) else 0 for number in range(layers)]
    made = keys(
        "granitehybrid", "granite-4-tiny", layers, e, vocabulary, feed_forward_length=f, expert_count=64, expert_used_count=6,
        expert_shared_feed_forward_length=1024, attention__head_count=12, attention__head_count_kv=kv_heads,
        rope__dimension_count=128, ssm__conv_kernel=4, ssm__inner_size=inner, ssm__state_size=state, ssm__time_step_rank=48,
        ssm__group_count=1,
    )  # fmt: skip
    tensors = ends(e, vocabulary, tied=True)
    for number in range(layers):
        block = Block(number)
        tensors.append(block("attn_norm", e))
        tensors += attention(block, e, 12, 4, 128) if kv_heads[number] else state_space(block, e, inner, state, 1, 48)
        tensors += [block("ffn_norm", e), *experts(block, e, f, 64, 1024)]
    return made, tensors


def qwen3_next() -> Made:
    """Qwen3-Next 80B: linear attention, full attention in every fourth layer, experts with a shared one."""
    e, layers, vocabulary, f = 2048, 48, 151936, 512
    made = keys(
        "qwen3next", "qwen-3-next-80b", layers, e, vocabulary, feed_forward_length=5120, expert_feed_forward_length=f,
        expert_shared_feed_forward_length=f, expert_count=512, expert_used_count=10, attention__head_count=16,
        attention__head_count_kv=2, attention__key_length=256, attention__value_length=256, rope__dimension_count=64,
        ssm__conv_kernel=4, ssm__inner_size=4096, ssm__state_size=128, ssm__time_step_rank=32, ssm__group_count=16,
    )  # fmt: skip
    tensors = ends(e, vocabulary)
    for number in range(layers):
        block = Block(number)
        tensors += [block("attn_norm", e), block("post_attention_norm", e)]
        if (number + 1) % 4:
            tensors += [block("ssm_in", e, 12288), block("ssm_conv1d", 4, 8192, kind="F32"), block("ssm_dt", 32, bias=True)]
            tensors += [
                block("ssm_a", 32, bare=True),
                block("ssm_ba", e, 64),
                block("ssm_norm", 128),
                block("ssm_out", 4096, e),
            ]
        else:
            tensors += [block("attn_q", e, 16 * 256 * 2), block("attn_k", e, 512), block("attn_v", e, 512)]
            tensors += [block("attn_output", 4096, e), block("attn_q_norm", 256), block("attn_k_norm", 256)]
        tensors += [*experts(block, e, f, 512, f), block("ffn_gate_inp_shexp", e)]
    return made, tensors


OTHERS = {
    "mixtral-8x7b": mixtral,
    "starcoder2-3b": starcoder2,
    "gpt-oss-20b": gpt_oss,
    "deepseek-v2-lite": deepseek2,
    "mamba2-2.7b": mamba2,
    "falcon-h1-1.5b": falcon_h1,
    "granite-4-tiny": granite_hybrid,
    "qwen-3-next-80b": qwen3_next,
}
