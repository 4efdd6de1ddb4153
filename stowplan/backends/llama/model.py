"""A language model as llama.cpp places it: its layers, with the bytes of their tensors and of their caches for a context.

A *context* is the number of tokens that the caches have room for. An *architecture* is a family of models with the same kinds
of layers. For each architecture, rules say which buffers llama.cpp allocates. They follow ``src/llama-kv-cache*.cpp``,
``llama-memory-recurrent.cpp`` and ``src/models`` of llama.cpp (November 2026). Models of an architecture are refused unless the
bytes by these rules were compared with the bytes that llama.cpp reports for the architecture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from stowplan.errors import InputError, UsageError, brief
from stowplan.frontends.gguf import GgufFile, Tensor, read_gguf

#: Bytes of one value of a cache, as (numerator, denominator), by the name of the type that ``-ctk`` and ``-ctv`` take.
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

#: The tokens of a context, and of a sliding window, are rounded up to multiples of this number.
CONTEXT_STEP = 256

#: Parts of a layer that may be *spilled*: they stay on the host, the CPU with its RAM, although the rest of the layer is on a
#: device. Here are the suffixes of their names, in the order in which they are spilled. With this order, ``down`` and ``gate``
#: are never on the host while ``up`` is on the device: llama.cpp would then split the layer twice, and move activations four
#: times.
SPILLED = ("down", "up", "gate", "gate_up")

#: Keys of an architecture whose value is a whole number, or a list with a number for each layer.
_NUMBERS_OF_LAYERS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window_pattern",
    "expert_used_count",
)
#: Keys whose value is a whole number.
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
#: The numbers of all these keys must be smaller than this.
_LARGEST = 1 << 40
#: Names of tensors of a layer, such as ``blk.3.ffn_up.weight``: the number of the layer, and the rest.
_BLOCK = re.compile(r"blk\.(\d{1,9})\.(.*)")
#: The rest of the names of tensors of a feed-forward network, and of the experts of a mixture.
_DENSE = re.compile(r"ffn_(down|gate|up|gate_up)\.(?:weight|bias)")
_EXPERTS = re.compile(r"ffn_(down|gate|up|gate_up)_(?:ch)?exps\.(?:weight|bias)")


class Architecture(NamedTuple):
    """How llama.cpp allocates the caches of an architecture."""

    window_pattern: int = 0
    """Length of the pattern of layers with a sliding window: in each group of this many consecutive layers, all but the last
    have one. 0 if no layer has a window."""
    window: int | None = None
    """The window in tokens if the file does not state one; None if layers then have no window."""
    recurrent: Literal["no", "all", "interval", "no heads", "every layer too"] = "no"
    """Which layers have a recurrent state. ``no``: none. ``all``: all layers. ``interval``: all but each n-th layer, where n is
    the key ``full_attention_interval``. ``no heads``: layers without key-value heads. ``every layer too``: all layers, in
    addition to their key-value caches."""
    latent: bool = False
    """Whether keys and values share one compressed row (multi-head latent attention)."""


#: The architectures for which the computed bytes were compared with the bytes that llama.cpp reports (docs/results/llm.md).
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
    """The cache of a layer: keys and values of earlier tokens, or a recurrent state, or both."""

    key_values: int = 0
    """How many numbers of keys are kept for each token."""
    value_values: int = 0
    """How many numbers of values are kept for each token."""
    window: int = 0
    """Number of earlier tokens that the layer reads at most (sliding window); 0 for all."""
    state_bytes: int = 0
    """Bytes of the recurrent state of each sequence."""


@dataclass(frozen=True)
class ModelLayer:
    """A repeated layer of the model, or the output layer."""

    name: str
    """``blk.N`` for the repeated layer N, counted from 0; ``output`` for the output layer."""
    tensors: tuple[Tensor, ...]
    """The weights of the layer."""
    cache: Cache = Cache()
    """The cache of the layer; the output layer has none."""
    attention_flops: int = 0
    """Floating-point operations of attention for each pair of a token and an earlier token."""

    @property
    def bytes(self) -> int:
        """Bytes of all tensors of the layer."""
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True)
class LanguageModel:
    """A language model of a GGUF file."""

    path: Path
    """The file."""
    name: str
    """Name of the model, for people."""
    architecture: str
    """A key of :data:`ARCHITECTURES`."""
    layers: tuple[ModelLayer, ...]
    """The repeated layers in the order in which they are computed, then the output layer."""
    input_bytes: int
    """Bytes of tensors that belong to no layer and stay on the host, above all the input embeddings."""
    embedding: int
    """How many numbers the activations of one token between two layers have."""
    experts: int
    """How many experts each layer has; 0 if the model is no mixture of experts."""
    experts_used: int
    """How many experts of a layer compute each token."""
    trained_context: int
    """Largest context with which the model was trained, in tokens; 0 if the file does not state it."""
    vocabulary: int
    """How many tokens the vocabulary has; 0 if the file has no input embeddings."""

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        return self.input_bytes + sum(layer.bytes for layer in self.layers)


@dataclass(frozen=True)
class Context:
    """The options on which the size of caches depends."""

    tokens: int
    """Number of tokens of all sequences together (``-c``)."""
    slots: int = 1
    """Number of sequences that are generated side by side (``-np``)."""
    micro_batch: int = 512
    """Number of tokens of a prompt that are computed at once (``-ub``)."""
    key_type: str = "f16"
    """Type of keys in the cache (``-ctk``), a key of :data:`CACHE_TYPES`."""
    value_type: str = "f16"
    """Type of values in the cache (``-ctv``), a key of :data:`CACHE_TYPES`."""

    @property
    def each(self) -> int:
        """Number of tokens of one sequence, rounded up as llama.cpp does."""
        total = _padded(self.tokens)
        return total if self.slots == 1 else _padded(total // self.slots)

    @property
    def total(self) -> int:
        """Number of tokens of all sequences for which rows are allocated."""
        return self.each * self.slots


def read_model(path: str | Path) -> LanguageModel:
    """Reads a GGUF file as a model.

    Raises
    ------
    InputError
        :func:`stowplan.frontends.gguf.read_gguf` raises it; a key that the architecture needs is missing or is no whole number;
        or the file has too few tensors, or no output layer.
    UsageError
        The architecture is not in :data:`ARCHITECTURES`.
    """
    return model_of(read_gguf(path))


def model_of(file: GgufFile) -> LanguageModel:
    """Returns the model that the header of a GGUF file describes.

    It raises the errors of :func:`read_model`, except those of reading the file.
    """
    name = file.architecture
    if name not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise UsageError(
            f"{file.path}: found the architecture {name!r}, whose bytes in llama.cpp are not known; expected one of {names}"
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
            # llama.cpp does not load the layers that predict further tokens.
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
        # The model ties its input and output embeddings. llama.cpp then allocates a copy of them for the output layer.
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
    """Returns the bytes that llama.cpp allocates for the cache of a layer, for all slots together."""
    cache = layer.cache
    rows = context.each
    if cache.window:
        rows = _padded(min(context.each, cache.window + context.micro_batch))
    keys = _typed(cache.key_values, context.key_type)
    values = _typed(cache.value_values, context.value_type)
    return (keys + values) * rows * context.slots + cache.state_bytes * context.slots


def read_bytes(layer: ModelLayer, context: Context, live: int) -> int:
    """Returns the bytes of its keys and values that a layer reads for one token of a sequence with ``live`` earlier tokens.

    A recurrent state is not included.
    """
    cache = layer.cache
    tokens = min(live, cache.window) if cache.window else live
    return (_typed(cache.key_values, context.key_type) + _typed(cache.value_values, context.value_type)) * tokens


def spilled_parts(layer: ModelLayer, experts: int) -> dict[str, list[Tensor]]:
    """Returns the parts of a layer that may stay on the host alone, each with its tensors, in the order of :data:`SPILLED`.

    They are the experts of a mixture, and otherwise the matrices of the feed-forward network. ``experts`` is the number of
    experts, 0 for a model without.
    """
    pattern = _EXPERTS if experts else _DENSE
    parts: dict[str, list[Tensor]] = {}
    for name in SPILLED:
        for tensor in layer.tensors:
            block = _BLOCK.match(tensor.name)
            match = pattern.fullmatch(block[2]) if block else None
            if match and match[1] == name and tensor.name.endswith(".weight"):
                parts.setdefault(name, []).append(tensor)
    return parts


def is_of_experts(tensor: Tensor) -> bool:
    """Returns whether a tensor holds the weights or biases of a layer's experts; each token reads only some of them."""
    block = _BLOCK.match(tensor.name)
    return block is not None and _EXPERTS.fullmatch(block[2]) is not None


def _cache(file: GgufFile, number: int) -> Cache:
    """Returns the cache of a repeated layer, by the rules of its architecture."""
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
    """Returns the floating-point operations of attention in a layer for each pair of tokens.

    Each head multiplies queries with keys, and weights with values.
    """
    heads = int(_at(file.get("attention.head_count", 0), number) or 0)
    if not heads:
        return 0
    key = int(file.get("attention.key_length", _whole(file, "embedding_length") // heads))
    value = int(file.get("attention.value_length", key))
    return 2 * heads * (key + value)


def _typed(values: int, name: str) -> int:
    """Returns the bytes of this many numbers of a cache type."""
    size, block = CACHE_TYPES[name]
    return values * size // block


def _padded(tokens: int) -> int:
    """Returns a number of tokens, rounded up to a multiple of CONTEXT_STEP."""
    return -(-tokens // CONTEXT_STEP) * CONTEXT_STEP


def _at(value: object, number: int) -> int:
    """Returns the value of a key for a layer; the key has one number for all layers, or a list of numbers."""
    return int(value[number]) if isinstance(value, list) else int(value or 0)  # type: ignore[call-overload]


def _check_numbers(file: GgufFile, layers: int) -> None:
    """Raise InputError if a key of the architecture has a wrong value.

    The value must be a whole number. Some keys may instead have a list with a number for each layer.
    """
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
    """Returns the value of a key of the architecture; raises InputError if it is missing or no whole number."""
    value = file.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"found {value!r}, expected a whole number", source=file.path, place=f"{file.architecture}.{key}")
    return value
