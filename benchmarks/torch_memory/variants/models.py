"""Two sets of twelve models, by name: ``TUNING`` to look at, ``FINAL`` for a measurement of what was not looked at.

No combination of ways is in both sets. All parameters and batches are on ``meta``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.torch_memory.variants import decoders, parts
from benchmarks.torch_memory.variants.decoders import Choices
from benchmarks.torch_memory.variants.parts import Experts, FloatRms, Mlp, SwiGlu
from benchmarks.torch_memory.variants.pictures import DeepUNet, Diffusion, Pictures
from benchmarks.torch_memory.variants.sequences import BiasedT5, Encoder, Speech, States

Model = tuple[nn.Module, tuple[Tensor, ...]]


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _on_meta(make: Callable[[], nn.Module], *batch: tuple[int, ...] | int) -> Model:
    """A model in bfloat16 and its batch: shapes of numbers, or of indices where the first number is negative."""
    with torch.device("meta"):
        shapes = [each if isinstance(each, tuple) else (each,) for each in batch]
        inputs = [
            torch.empty(-shape[0], *shape[1:], dtype=torch.int64) if shape[0] < 0 else torch.empty(*shape, dtype=torch.bfloat16)
            for shape in shapes
        ]
        return make().bfloat16(), tuple(inputs)


def _decoder(**choices: object) -> Callable[[], Model]:
    return lambda: decoders.made(Choices(**choices))  # type: ignore[arg-type]


def _swiglu(inner: int, is_fused: bool = False) -> Callable[[int], nn.Module]:
    return lambda width: SwiGlu(width, inner, is_fused)


def _mlp(function: Callable[[Tensor], Tensor], dropout: float = 0.0) -> Callable[[int], nn.Module]:
    return lambda width: Mlp(width, 4 * width, function, dropout)


def _experts(inner: int, way: str) -> Callable[[int], nn.Module]:
    return lambda width: Experts(width, inner, way)


TUNING: dict[str, Callable[[], Model]] = {
    # Decoders.
    "cat16": _decoder(
        layers=16, width=4096, heads=32, key_heads=8, feed=_swiglu(14336), rotary=parts.by_cat, is_turned_once=False,
        repeat=parts.by_repeat, vocabulary=128256,
    ),
    "complex24": _decoder(
        layers=24, width=3072, heads=24, key_heads=8, feed=_swiglu(8192), norm=partial(nn.RMSNorm, eps=1e-6),
        rotary=parts.by_complex, loss="outside", vocabulary=50304,
    ),
    "cache32": _decoder(
        layers=32, width=4096, heads=32, key_heads=8, feed=_swiglu(14336, True), rotary=parts.by_cache, is_fused=True,
        loss="chunked",
    ),
    "dropout24": _decoder(
        layers=24, width=2048, heads=16, key_heads=16, feed=_mlp(F.gelu, 0.1), norm=nn.LayerNorm, is_fused=True,
        has_bias=True, dropout=0.1, vocabulary=50257, batch=8, length=2048,
    ),
    "cast18": _decoder(
        layers=18, width=2048, heads=8, key_heads=1, feed=lambda width: SwiGlu(width, 16384, function=F.gelu),
        norm=partial(FloatRms, plus_one=True), rotary=parts.by_cat, is_cast=True, vocabulary=256000, batch=2,
    ),
    "parallel44": _decoder(
        layers=44, width=3072, heads=24, key_heads=24, feed=_mlp(F.gelu), norm=nn.LayerNorm, rotary=parts.in_part,
        is_fused=True, has_bias=True, is_parallel=True, loss="outside", vocabulary=50432, length=2048,
    ),
    "sorted16": _decoder(
        layers=16, width=4096, heads=32, key_heads=8, feed=_experts(14336, "sorted"), rotary=parts.by_complex,
        repeat=parts.by_repeat, is_turned_once=False, loss="chunked",
    ),
    # Others.
    "biased12": lambda: _on_meta(partial(BiasedT5, 12, 1024, 4096, 16, 32128), (-16, 512), (-16, 512)),
    "scaled32": lambda: _on_meta(partial(Pictures, "scaled", 32, 1280, 16), (64, 3, 224, 224), -64),
    "diffusion28": lambda: _on_meta(partial(Diffusion, 28, 1152, 16, 16), (64, 256, 16), (64, 256), (64, 256, 16)),
    "chunked16": lambda: _on_meta(partial(States, "chunked", 16, 1536, 128, 50280), (-8, 2048), (-8, 2048)),
    "unet20": lambda: _on_meta(
        partial(DeepUNet, [320, 640, 1280], 2, 2, False), (16, 4, 64, 64), (16, 320), (16, 4, 64, 64)
    ),
}  # fmt: skip

FINAL: dict[str, Callable[[], Model]] = {
    # Decoders.
    "repeat28": _decoder(
        layers=28, width=3584, heads=28, key_heads=4, feed=_swiglu(18944), rotary=parts.by_cache, repeat=parts.by_repeat,
        has_bias=True, has_head_norms=True, loss="outside", vocabulary=152064, batch=2,
    ),
    "cast20": _decoder(
        layers=20, width=2560, heads=20, key_heads=20, feed=_swiglu(6912, True), norm=partial(nn.RMSNorm, eps=1e-6),
        rotary=parts.by_complex, is_fused=True, is_cast=True, loss="inside", vocabulary=65024,
    ),
    "part24": _decoder(
        layers=24, width=2048, heads=32, key_heads=8, feed=_mlp(_squared_relu, 0.1), norm=nn.LayerNorm, rotary=parts.in_part,
        has_bias=True, is_parallel=True, dropout=0.1, loss="chunked", vocabulary=51200, is_turned_once=False,
    ),
    "expand48": _decoder(
        layers=48, width=2560, heads=20, key_heads=4, feed=_swiglu(6912), rotary=parts.by_cat, is_fused=True,
        has_head_norms=True, loss="chunked", vocabulary=49152,
    ),
    "capacity16": _decoder(
        layers=16, width=2048, heads=16, key_heads=16, feed=_experts(5632, "capacity"), rotary=parts.by_cat, is_fused=True,
        norm=nn.LayerNorm, loss="outside",
    ),
    "dense24": _decoder(
        layers=24, width=2048, heads=16, key_heads=4, feed=_experts(1408, "dense"), rotary=parts.by_cache, loss="inside",
    ),
    # Others.
    "encoder24": lambda: _on_meta(partial(Encoder, 24, 1024, 16, 30522, 512), (-16, 512), (-16, 512), (16, 512)),
    "speech12": lambda: _on_meta(partial(Speech, 12, 768, 12, 51865, 448), (16, 80, 3000), (-16, 448), (-16, 448)),
    "registers40": lambda: _on_meta(partial(Pictures, "registers", 40, 1536, 24), (64, 3, 224, 224), -64),
    "joint24": lambda: _on_meta(
        partial(Diffusion, 24, 1536, 24, 64, 4096), (16, 1024, 64), (16, 256), (16, 1024, 64), (16, 256, 4096)
    ),
    "associative16": lambda: _on_meta(partial(States, "associative", 16, 1024, 16, 50280), (-2, 1024), (-2, 1024)),
    "unet30": lambda: _on_meta(
        partial(DeepUNet, [192, 384, 576, 768], 3, 3, True), (16, 4, 64, 64), (16, 192), (16, 4, 64, 64)
    ),
}  # fmt: skip

SETS = {"tuning": TUNING, "final": FINAL}
