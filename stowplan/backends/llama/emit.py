"""Writes llama.cpp's options as a preset of llama-server, as environment variables, or as a shell script."""

from __future__ import annotations

from stowplan.backends.llama.flags import text_of
from stowplan.backends.llama.planning import Summary

#: From an option to the environment variable and to the key of a preset that llama.cpp reads for it.
_KEYS = {
    "-c": ("LLAMA_ARG_CTX_SIZE", "ctx-size"),
    "-fa": ("LLAMA_ARG_FLASH_ATTN", "flash-attn"),
    "-ub": ("LLAMA_ARG_UBATCH", "ubatch-size"),
    "-b": ("LLAMA_ARG_BATCH", "batch-size"),
    "-np": ("LLAMA_ARG_N_PARALLEL", "parallel"),
    "-ctk": ("LLAMA_ARG_CACHE_TYPE_K", "cache-type-k"),
    "-ctv": ("LLAMA_ARG_CACHE_TYPE_V", "cache-type-v"),
    "--fit": ("LLAMA_ARG_FIT", "fit"),
    "-fitt": ("LLAMA_ARG_FIT_TARGET", "fit-target"),
    "-ngl": ("LLAMA_ARG_N_GPU_LAYERS", "n-gpu-layers"),
    "-dev": ("LLAMA_ARG_DEVICE", "device"),
    "-ts": ("LLAMA_ARG_TENSOR_SPLIT", "tensor-split"),
    "-ot": ("LLAMA_ARG_OVERRIDE_TENSOR", "override-tensor"),
}


def emitted(summary: Summary, suffix: str) -> str:
    """Returns the text of a file with the recommended options.

    Parameters
    ----------
    summary
        The recommended placement; ``summary.command`` has its options, each a flag and a value.
    suffix
        ``.env`` for environment variables, ``.ini`` for a preset; any other suffix gives a shell script.
    """
    words = summary.command
    pairs = list(zip(words[::2], words[1::2], strict=True))
    if suffix == ".env":
        return "".join(f"{_KEYS[flag][0]}={value}\n" for flag, value in pairs)
    if suffix == ".ini":
        lines = [f"[{summary.model}]", f"model = {summary.file}", *(f"{_KEYS[flag][1]} = {value}" for flag, value in pairs)]
        return "\n".join(lines) + "\n"
    return f'#!/bin/sh\n# {summary.reason}\nexec llama-server -m "{summary.file}" {text_of(words)} "$@"\n'
