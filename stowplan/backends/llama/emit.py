"""Writes llama.cpp's options as a preset of llama-server, as environment variables, or as a shell script.

A preset is an INI file with a section of options for each model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stowplan.backends.llama.flags import text_of
from stowplan.backends.llama.planning import Summary
from stowplan.errors import UsageError, brief

#: For each option, the environment variable and the key of a preset by which llama.cpp reads the same value.
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

#: Characters that a value must not have in a file of environment variables, and in a preset. In a preset, ``#`` and ``;`` begin
#: a comment wherever they are.
_NOT_IN_ENV, _NOT_IN_INI = re.compile(r"[\r\n]"), re.compile(r"[#;\r\n]|^[ \t]|[ \t]$")


def emitted(summary: Summary, suffix: str) -> str:
    """Returns the text of a file with the recommended options.

    Parameters
    ----------
    summary
        The recommended placement of a model on devices; ``summary.command`` has its options, each a flag and a value.
    suffix
        ``.env`` for environment variables, ``.ini`` for a preset; any other suffix gives a shell script. Environment variables
        do not include the path of the model. Their values are not quoted, as ``docker run --env-file`` takes them.

    Raises
    ------
    UsageError
        The path of the model or another value has a character that a preset or a file of environment variables cannot have,
        because neither has a way to quote it.
    """
    words = summary.command
    pairs = list(zip(words[::2], words[1::2], strict=True))
    if suffix == ".env":
        _check(pairs, "a file of environment variables", _NOT_IN_ENV, "line breaks")
        return "".join(f"{_KEYS[flag][0]}={value}\n" for flag, value in pairs)
    if suffix == ".ini":
        _check([("-m", summary.file), *pairs], "a preset", _NOT_IN_INI, "#, ;, line breaks and outer spaces")
        # The title of the section is the name by which requests to llama-server choose the model. It comes from the model's
        # file, which may have any text there; a title ends at the first ``]``, and ``[*]`` is the section for all models.
        name = re.sub(r"[\[\]\s]+", " ", summary.model).strip()
        name = "model" if name in ("", "*") else name
        lines = [f"[{name}]", f"model = {summary.file}", *(f"{_KEYS[flag][1]} = {value}" for flag, value in pairs)]
        return "\n".join(lines) + "\n"
    return f'#!/bin/sh\n# {brief(summary.reason)}\nexec llama-server {text_of(["-m", summary.file, *words])} "$@"\n'


def _check(pairs: Sequence[tuple[str, str]], form: str, forbidden: re.Pattern[str], what: str) -> None:
    """Raises UsageError if the value of an option has a character that a file of this form cannot have.

    ``forbidden`` finds such characters, and ``what`` describes them in the message.
    """
    for flag, value in pairs:
        if forbidden.search(value):
            raise UsageError(f"found the value {value!r} of {flag}, expected one without {what}: {form} cannot have them")
