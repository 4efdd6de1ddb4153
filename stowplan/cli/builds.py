"""What build systems need of a command: offsets in formats that builds take, and the files that a plan depends on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stowplan import files
from stowplan.errors import UsageError

#: Not a format of all plans: the input, a TensorFlow Lite model, with the offsets in it.
TFLITE = "tflite"

Emit = Annotated[
    list[str] | None,
    typer.Option(
        "--emit",
        metavar="FORMAT[=FILE]",
        help="Write the offsets as c-header, json, csv or tflite, again and again; without a file, to -o in place of the plan.",
    ),
]
Depfile = Annotated[
    Path | None,
    typer.Option(
        "--depfile", metavar="FILE", help="Write what the outputs depend on here, as a rule for Make, Ninja and CMake."
    ),
]


@dataclass(frozen=True)
class Emissions:
    """What ``-o`` and ``--emit`` ask for."""

    plan: Path | None
    """Where the plan goes."""
    offsets: tuple[tuple[str, Path], ...]
    """Format and file of each offset table."""

    @property
    def outputs(self) -> tuple[Path, ...]:
        """All files."""
        return (*([] if self.plan is None else [self.plan]), *(path for _, path in self.offsets))

    def check(self, problem: Any, source: Path) -> None:
        """Raise UsageError, before any plan is sought, where there will be no offsets, or no model to write them to."""
        if self.offsets:
            from stowplan.backends.emit import check_emittable

            check_emittable(problem)
        if any(form == TFLITE for form, _ in self.offsets):
            from stowplan.frontends.arena.tflite_file import is_tflite

            if not is_tflite(source):
                raise UsageError(f"--emit {TFLITE}: found the input {source}, expected a TensorFlow Lite model")

    def write(self, problem: Any, plan: Any, source: Path) -> None:
        """Write plan and offsets."""
        if self.plan is not None:
            plan.save(self.plan)
        for form, path in self.offsets:
            from stowplan.backends import emit, tflite

            if form == TFLITE:
                tflite.write_plan(source, plan, path)
            else:
                emit.write(path, problem, plan, form)


def emissions(output: Path | None, emit: list[str] | None) -> Emissions:
    """What is to be written; raises UsageError for formats unknown, or without a file."""
    found: list[tuple[str, Path]] = []
    takes_output = False
    for text in emit or ():
        form, equals, name = text.partition("=")
        check_format(form)
        if equals and not name:
            raise UsageError(f"--emit: found {text!r}, expected the name of a file after the =")
        if name:
            found.append((form, Path(name)))
        elif output is None:
            raise UsageError(f"--emit {form}: found no file to write to, expected --emit {form}=FILE")
        elif takes_output:
            raise UsageError(f"--emit {form}: {output} is written in another format already, expected --emit {form}=FILE")
        else:
            takes_output = True
            found.append((form, output))
    return Emissions(None if takes_output else output, tuple(found))


def check_format(form: str) -> None:
    """Raise UsageError where there is no such format."""
    from stowplan.backends.emit import FORMATS

    if form not in FORMATS and form != TFLITE:
        raise UsageError(f"--emit: found {form!r}, expected one of {', '.join((*FORMATS, TFLITE))}")


def write_depfile(path: Path, outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Write the rule ``outputs: inputs``, each input once, paths as they were given."""
    targets = " ".join(_escaped(each) for each in outputs)
    # A pipe or device is no file that could be newer.
    sources = dict.fromkeys(_escaped(each) for each in inputs if os.path.isfile(each))
    files.write_atomic(path, " \\\n  ".join([f"{targets}:", *sources]).encode(errors="surrogateescape") + b"\n")


def _escaped(path: str | Path) -> str:
    """A path as Make reads it."""
    text = os.fspath(path)
    if "\n" in text:
        raise UsageError(f"{files.printable(path)!r}: no rule can name a file with a line break, expected another name")
    # A backslash before a blank or # would otherwise be taken for one that protects it.
    found = ""
    for at, each in enumerate(text):
        if each in " \t#":
            before = len(text[:at]) - len(text[:at].rstrip("\\"))
            found += "\\" * (before + 1) + each
        else:
            found += "$$" if each == "$" else each
    return found
