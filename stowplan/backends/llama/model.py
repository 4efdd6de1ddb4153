"""A language model as llama.cpp places it: layers with the bytes of their tensors, and of caches for a context.

Which buffers llama.cpp allocates is written down here as rules for each architecture, from ``src/llama-kv-cache*.cpp``,
``llama-memory-recurrent.cpp`` and ``src/models`` (llama.cpp of November 2026). An architecture whose bytes were not compared
with the runtime's is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from stowplan.errors import InputError, UsageError, brief
from stowplan.frontends.gguf import GgufFile, Tensor, read_gguf

#: Bytes of one value of a cache, as a fraction: by the name of the type that ``-ctk`` and ``-ctv`` take.
CACHE_TYPES: dict[str, tuple[int, int]] = {
    "f32": (4, 1),
    "f16": (2, 1),
    "bf16": (2, 1),
    "q8_0": (34, 32),
    "q5_1": (24, 32),
    "q5_0": (22, 32),
    "q4_1": (20, 32),
    "q4_0": (18, 32),
    "iq4_nl": (18, 32),
}

#: Contexts, and windows, are rounded up to multiples of this many tokens.
CONTEXT_STEP = 256

#: Tensors of a layer that may stay on the host alone, by the suffix of their names, in the order in which they are spilled.
#: With ``down`` and ``gate`` there and ``up`` on the device, the runtime would split the layer twice, and move activations
#: four times.
SPILLED = ("down", "up", "gate", "gate_up")

#: Keys of an architecture that are a whole number, or a list with one for each layer.
_NUMBERS_OF_LAYERS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window_pattern",
    "expert_used_count",
)
#: Keys that are a whole number.
_NUMBERS = (
    "attention.key_length",
    "attention.key_length_mla",
    "attention.sliding_window",
    "attention.value_length",
    "context_length",
    "embedding_length",
    "expert_count",
    "full_attention_interval",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
)
#: Limit on these numbers.
_LARGEST = 1 << 40
_BLOCK = re.compile(r"blk\.(\d{1,9})\.(.*)")
_DENSE = re.compile(r"ffn_(down|gate|up|gate_up)\.(?:weight|bias)")
_EXPERTS = re.compile(r"ffn_(down|gate|up|gate_up)_(?:ch)?exps\.(?:weight|bias)")


class Architecture(NamedTuple):
    """How llama.cpp allocates the caches of an architecture."""

    window_pattern: int = 0
    """Number of consecutive layers of which all but the last have a sliding window; 0 if no layer has one."""
    window: int | None = None
    """The window where the file has none; None where the file without one has no windows."""
    recurrent: Literal["no", "all", "interval", "no heads", "every layer too"] = "no"
    """Which layers have a recurrent state: none; all; all but each n-th (``full_attention_interval``); those without key-value
    heads; each layer, beside its cache."""
    latent: bool = False
    """Keys and values share one compressed row (multi-head latent attention)."""


#: The architectures whose bytes were compared with those that the runtime reports (docs/results/llm.md).
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "qwen3moe": Architecture(),
    "phi3": Architecture(),
    "starcoder2": Architecture(),
    "gemma2": Architecture(window_pattern=2, window=4096),
    "gemma3": Architecture(window_pattern=6),
    "gpt-oss": Architecture(window_pattern=2),
    "deepseek2": Architecture(latent=True),
    "mamba2": Architecture(recurrent="all"),
    "falcon-h1": Architecture(recurrent="every layer too"),
    "granitehybrid": Architecture(recurrent="no heads"),
    "qwen3next": Architecture(recurrent="interval"),
}


@dataclass(frozen=True)
class Cache:
    """What a layer keeps of the tokens before."""

    key_values: int = 0
    """Numbers of a key, for each token."""
    value_values: int = 0
    """Numbers of a value, for each token."""
    window: int = 0
    """Tokens that it looks back at most; 0 for all."""
    state_bytes: int = 0
    """Bytes of a recurrent state, for each sequence."""


@dataclass(frozen=True)
class ModelLayer:
    """A layer of the model, or its output."""

    name: str
    tensors: tuple[Tensor, ...]
    cache: Cache = Cache()
    attention_flops: int = 0
    """Operations of attention for each pair of a token and a token before it."""

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True)
class LanguageModel:
    """A model in the order in which it is computed."""

    path: Path
    name: str
    architecture: str
    layers: tuple[ModelLayer, ...]
    """The repeating layers, then the output layer."""
    input_bytes: int
    """Bytes of tensors that stay on the host: the input embeddings."""
    embedding: int
    """Numbers of the activations of one token between layers."""
    experts: int
    experts_used: int
    trained_context: int
    vocabulary: int

    @property
    def bytes(self) -> int:
        """Of all weights."""
        return self.input_bytes + sum(layer.bytes for layer in self.layers)


@dataclass(frozen=True)
class Context:
    """What caches are allocated for."""

    tokens: int
    """Tokens of all sequences together, as ``-c`` takes them."""
    slots: int = 1
    """Sequences side by side, as ``-np`` takes them."""
    micro_batch: int = 512
    key_type: str = "f16"
    value_type: str = "f16"

    @property
    def each(self) -> int:
        """Tokens of one sequence, rounded up as the runtime does."""
        total = _padded(self.tokens)
        return total if self.slots == 1 else _padded(total // self.slots)

    @property
    def total(self) -> int:
        """Tokens for which rows are allocated."""
        return self.each * self.slots


def read_model(path: str | Path) -> LanguageModel:
    """Read a GGUF file as a model.

    Raises
    ------
    InputError
        As :func:`stowplan.frontends.gguf.read_gguf`; or a key that every model has is missing.
    UsageError
        The architecture's bytes were not compared with the runtime's.
    """
    return model_of(read_gguf(path))


def model_of(file: GgufFile) -> LanguageModel:
    """A header as a model; see :func:`read_model` for what it raises."""
    name = file.architecture
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UsageError(
            f"{file.path}: found the architecture {name!r}, whose bytes in llama.cpp are not known; expected one of {known}"
        )
    blocks, embedding = _whole(file, "block_count"), _whole(file, "embedding_length")
    count = blocks - (_whole(file, "nextn_predict_layers") if file.get("nextn_predict_layers") else 0)
    if not 0 < count <= len(file.tensors):
        reason = f"found {count} layers and {len(file.tensors)} tensors, expected at least one tensor for each layer"
        raise InputError(reason, source=file.path)
    _check_numbers(file, count)
    tensors: list[list[Tensor]] = [[] for _ in range(count)]
    output, input_bytes, embeddings = list[Tensor](), 0, None
    rope = list[Tensor]()
    for tensor in file.tensors:
        match = _BLOCK.match(tensor.name)
        if match is not None:
            # Layers that predict further tokens are not loaded.
            if int(match[1]) < count:
                tensors[int(match[1])].append(tensor)
        elif tensor.name.startswith("output"):
            output.append(tensor)
        elif tensor.name.startswith("rope_"):
            rope.append(tensor)
        else:
            input_bytes += tensor.bytes
            embeddings = tensor if tensor.name == "token_embd.weight" else embeddings
    if not any(tensor.name == "output.weight" for tensor in output):
        if embeddings is None:
            raise InputError("found neither output.weight nor token_embd.weight", source=file.path)
        # Tied embeddings: the output layer has a copy of its own.
        output.append(embeddings)
    layers = []
    for number, own in enumerate(tensors):
        cache = _cache(file, number)
        layers.append(ModelLayer(f"blk.{number}", tuple(own), cache, _attention_flops(file, number) if cache.key_values else 0))
    return LanguageModel(
        path=file.path,
        name=str(file.metadata.get("general.name", file.path.stem)),
        architecture=name,
        layers=(*layers, ModelLayer("output", tuple(output))),
        input_bytes=input_bytes + sum(tensor.bytes for tensor in rope),
        embedding=embedding,
        experts=int(file.get("expert_count", 0) or 0),
        experts_used=int(_at(file.get("expert_used_count", 0), 0) or 0),
        trained_context=int(file.get("context_length", 0) or 0),
        vocabulary=embeddings.shape[-1] if embeddings is not None else 0,
    )


def cache_bytes(layer: ModelLayer, context: Context) -> int:
    """Bytes that the runtime allocates for the cache and state of a layer."""
    cache = layer.cache
    rows = context.each
    if cache.window:
        rows = _padded(min(context.each, cache.window + context.micro_batch))
    keys = _typed(cache.key_values, context.key_type)
    values = _typed(cache.value_values, context.value_type)
    return (keys + values) * rows * context.slots + cache.state_bytes * context.slots


def read_bytes(layer: ModelLayer, context: Context, live: int) -> int:
    """Bytes of its cache that a layer reads for one token of one sequence, with ``live`` tokens before it."""
    cache = layer.cache
    tokens = min(live, cache.window) if cache.window else live
    return (_typed(cache.key_values, context.key_type) + _typed(cache.value_values, context.value_type)) * tokens


def spilled_parts(layer: ModelLayer, experts: int) -> dict[str, list[Tensor]]:
    """Tensors of a layer that may stay on the host alone, by part, in the order in which they are spilled."""
    pattern = _EXPERTS if experts else _DENSE
    parts: dict[str, list[Tensor]] = {}
    for name in SPILLED:
        for tensor in layer.tensors:
            block = _BLOCK.match(tensor.name)
            match = pattern.fullmatch(block[2]) if block else None
            if match and match[1] == name and tensor.name.endswith(".weight"):
                parts.setdefault(name, []).append(tensor)
    return parts


def _cache(file: GgufFile, number: int) -> Cache:
    kind = ARCHITECTURES[file.architecture]
    heads = int(_at(file.get("attention.head_count_kv", file.get("attention.head_count", 0)), number))
    state = 0
    if kind.recurrent != "no":
        convolution = (max(0, _whole(file, "ssm.conv_kernel") - 1)) * (
            _whole(file, "ssm.inner_size") + 2 * int(file.get("ssm.group_count", 0)) * _whole(file, "ssm.state_size")
        )
        state = 4 * (convolution + _whole(file, "ssm.state_size") * _whole(file, "ssm.inner_size"))
    if kind.recurrent == "all":
        return Cache(state_bytes=state)
    interval = max(1, int(file.get("full_attention_interval", 4)))
    is_recurrent = {
        "no": False,
        "interval": (number + 1) % interval != 0,
        "no heads": heads == 0,
        "every layer too": False,
    }[kind.recurrent]
    if is_recurrent:
        return Cache(state_bytes=state)
    query_heads = max(1, int(_at(file.get("attention.head_count", 1), number)))
    key = int(file.get("attention.key_length", _whole(file, "embedding_length") // query_heads))
    value = int(file.get("attention.value_length", _whole(file, "embedding_length") // query_heads))
    window = int(file.get("attention.sliding_window", kind.window or 0) or 0) if kind.window_pattern else 0
    pattern = file.get("attention.sliding_window_pattern", kind.window_pattern)
    if isinstance(pattern, list):
        has_window = bool(pattern[number])
    else:
        has_window = bool(window) and number % max(1, int(pattern)) < int(pattern) - 1
    is_latent = kind.latent and bool(file.get("attention.key_length_mla", 0))
    return Cache(
        key_values=heads * key,
        value_values=0 if is_latent else heads * value,
        window=window if has_window else 0,
        state_bytes=state if kind.recurrent == "every layer too" else 0,
    )


def _attention_flops(file: GgufFile, number: int) -> int:
    """Two products for each pair of tokens and head."""
    heads = int(_at(file.get("attention.head_count", 0), number) or 0)
    if not heads:
        return 0
    key = int(file.get("attention.key_length", _whole(file, "embedding_length") // heads))
    value = int(file.get("attention.value_length", key))
    return 2 * heads * (key + value)


def _typed(values: int, name: str) -> int:
    size, block = CACHE_TYPES[name]
    return values * size // block


def _padded(tokens: int) -> int:
    return -(-tokens // CONTEXT_STEP) * CONTEXT_STEP


def _at(value: object, number: int) -> int:
    return int(value[number]) if isinstance(value, list) else int(value or 0)  # type: ignore[call-overload]


def _check_numbers(file: GgufFile, layers: int) -> None:
    """Raises InputError if a key of the architecture is no whole number, and no list with one for each layer."""
    for key in _NUMBERS + _NUMBERS_OF_LAYERS:
        value, may_be_list = file.get(key, 0), key in _NUMBERS_OF_LAYERS
        is_list = may_be_list and isinstance(value, list) and len(value) >= layers
        numbers = value if is_list else [value]
        if not all(isinstance(number, int) and 0 <= number < _LARGEST for number in numbers):
            others = f", or a list with one for each of the {layers} layers" if may_be_list else ""
            raise InputError(
                f"found {brief(repr(value), 40)}, expected a whole number{others}",
                source=file.path,
                place=f"{file.architecture}.{key}",
            )


def _whole(file: GgufFile, key: str) -> int:
    value = file.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"found {value!r}, expected a whole number", source=file.path, place=f"{file.architecture}.{key}")
    return value
