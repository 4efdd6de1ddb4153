"""Says which command reads a file that the current command refuses, such as a plan that was given in place of an input.

The formats are repeated here as text, because importing the modules that define them takes too long for an error message.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from stowplan import files

#: Formats of plans that belong to a single command, ``stowplan tflm`` or ``stowplan llm``, and not to a kind of problem.
TFLM_PLAN, LLM_PLAN = OTHER_PLANS = ("stowplan.tflm", "stowplan.llama.plan")

#: What a file with this ``format`` is, and which command reads it. ``{file}`` stands for its path.
_USES = {
    TFLM_PLAN: "a plan of 'stowplan tflm', which 'stowplan verify MODEL.tflite {file}' checks",
    LLM_PLAN: "a placement of 'stowplan llm', which 'stowplan verify MODEL.gguf {file}' checks and 'stowplan show "
    "MODEL.gguf {file}' prints",
    "stowplan.certificate": "a proof of a bound, which 'stowplan verify INPUT PLAN --bound {file}' checks",
    "stowplan.hint": "a hint, which 'stowplan solve INPUT --hint {file}' takes",
    "stowplan.batch.result": "a result of 'stowplan batch', whose folder 'stowplan compare' reads",
}

#: What every plan of a kind is.
_PLAN = "a plan, which 'stowplan verify INPUT {file}' checks and 'stowplan show INPUT {file}' prints"


def use_of(declared: str | None, path: str | Path) -> str:
    """Returns the end of a sentence that says what a file of the package's own formats is and which command reads it.

    The text is empty if the format is not one that is often confused with another.

    Parameters
    ----------
    declared
        The ``format`` field of the file, or None if there is none.
    path
        The file, which the commands in the text name.
    """
    is_plan = declared is not None and re.fullmatch(r"stowplan\.\w+\.plan", declared) is not None
    text = _USES.get(declared or "", _PLAN if is_plan else "")
    return text.format(file=in_shell(path)) if text else ""


#: Formats that readers recognize by the ending of the name. For each one: a position in the file, the bytes there, what such a
#: file is, and what to do with it if its name has another ending.
_STARTS = (
    (0, b"GGUF", "a GGUF file, which holds a language model", "expected another input: run 'stowplan llm {file} --devices "
    "machine.toml' to place the model on devices"),
    (4, b"TFL3", "a TensorFlow Lite model", "expected a name that ends in .tflite"),
    (4, b"ET12", "a program of ExecuTorch", "expected the program before it is exported: ExecuTorch programs are planned "
    "during the export, from Python (docs/guide/executorch.md)"),
    (0, b"PK\x03\x04", "a ZIP archive", "expected a name that ends in .pt2 if it is a program of torch.export"),
)  # fmt: skip


def refusal_of(head: bytes, path: str | Path) -> str:
    """Says why a file that was read as HLO text is refused: what the file is and what to do with it. (All files that no other
    reader recognizes are read as HLO text.)

    ``head`` are the first bytes of the file. The result is empty if they do not belong to a known format.
    """
    for at, start, what, advice in _STARTS:
        if head[at : at + len(start)] == start:
            return f"found {what}, {advice.format(file=in_shell(path))}"
    return ""


def hint_for_text(path: str | Path) -> str:
    """Returns advice, as the end of a sentence, for a file that was read as HLO text and is not HLO text. It is empty if the
    name of the file has an ending that is usual for HLO text."""
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith((".hlo", ".txt")):
        return ""
    if name.endswith(".toml"):
        return " (a TOML file is no input: --target takes target files, and 'stowplan llm --devices' takes machine files)"
    return " (a file is read as HLO text if it is in none of the other formats that 'stowplan solve --help' lists)"


def in_shell(path: str | Path) -> str:
    """A path as it is typed in a shell, for commands in messages."""
    return shlex.quote(files.printable(path))
