"""Small models and machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.llama.architectures import Shape
from benchmarks.llama.gguf_files import write_gguf
from stowplan.backends.llama.machine import Machine, machine_of

DENSE = Shape("llama", 12, 256, 8, 2, 32, 1024, 512, 4096)
EXPERTS = Shape("qwen3moe", 10, 256, 8, 2, 32, 512, 512, 4096, 16, 2, 256, has_qk_norm=True)
WINDOWS = Shape("gemma3", 12, 256, 4, 2, 64, 1024, 512, 8192, tied=True, has_post_norms=True, has_qk_norm=True, window=512)


def write(shape: Shape, folder: Path, name: str = "model") -> Path:
    """Write a model."""
    path = folder / f"{name}.gguf"
    write_gguf(path, shape.metadata(name), [*shape.tensors()])
    return path


def device(name: str, free: float, speed: float, **others: Any) -> dict[str, Any]:
    """A row of a machine file: MiB and GB/s; no margin."""
    row = {"name": name, "free_mib": free, "margin_mib": 0, "compute_mib": 0.5, "weight_gbs": speed, "tflops": speed / 10}
    return {**row, "link_us": 1.0, **others}


def machine(*devices: dict[str, Any], host: float = 1000, error: float | None = 0.05) -> Machine:
    """A machine with a host of 4 GB/s, and 0.4 GB/s for caches."""
    row = {"free_mib": host, "compute_mib": 0.5, "weight_gbs": 4.0, "cache_gbs": 0.4, "tflops": 0.1}
    calibration = {} if error is None else {"calibration": {"error": error}}
    return machine_of({"host": row, "device": [*devices], **calibration}, "test")
