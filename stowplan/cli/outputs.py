"""Files that commands write: looked at before, plans and offsets, rules for build systems, pictures and reports."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from stowplan import files
from stowplan.cli.options import option
from stowplan.cli.output import note
from stowplan.errors import UsageError
from stowplan.result import Result

#: Not a format of all plans: the input, a TensorFlow Lite model, with the offsets in it.
TFLITE = "tflite"

Emit = Annotated[
    list[str] | None,
    option(
        "--emit",
        "FORMAT[=FILE]",
        "Write the offsets as c-header, json, csv or tflite, again and again; without a file, to -o in place of the plan.",
    ),
]
Depfile = Annotated[
    Path | None, option("--depfile", "FILE", "Write what the outputs depend on here, as a rule for Make, Ninja and CMake.")
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


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Find out now, not after the time limit, that a file cannot be written, or would be written over another or an input.

    Raises
    ------
    UsageError
        Naming the file and what stands in the way.
    """
    read = [path for path in inputs if path is not None and os.path.exists(path)]
    written: list[Path] = []
    for path in outputs:
        if path is None:
            continue
        _check_writable(path)
        if any(_is_same_file(path, other) for other in read):
            raise UsageError(f"{path}: is an input of this command, expected another file to write to")
        if any(_is_same_file(path, other) for other in written):
            raise UsageError(f"{path}: is to be written twice by this command, expected a file for each output")
        if _is_standard_output(path):
            raise UsageError(f"{path}: is where standard output goes, expected another file to write to")
        written.append(path)


def check_folder(path: Path) -> None:
    """Find out now that a folder, there or to be made, could not be written into; raises UsageError saying why."""
    at = os.path.abspath(path)
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        raise UsageError(f"{path}: cannot write into it: {at} is no folder")
    if not os.access(at, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot write into it: no permission to write in {at}")


def _check_writable(path: Path) -> None:
    number = files.own_descriptor(path)
    if number is not None:
        try:
            os.fstat(number)
        except OSError as error:
            raise UsageError(f"{path}: cannot write: {error.strerror}") from error
        return
    # Not Path's own questions: those raise OSError for names that are too long.
    target = os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path)
    if os.path.islink(target):
        raise UsageError(f"{path}: cannot write: {os.strerror(errno.ELOOP)}")
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: cannot write: there is no folder {folder}")
    if os.path.isdir(target):
        raise UsageError(f"{path}: cannot write: it is a folder, expected the name of a file")
    if os.path.exists(target) and not os.path.isfile(target):
        # A device or pipe is written through.
        if not os.access(target, os.W_OK):
            raise UsageError(f"{path}: cannot write: no permission to write to it")
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot write: no permission to write in {folder}")


def _is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, there or not; what goes to a device such as /dev/null does not collide."""
    try:
        return one.samefile(other) and not one.is_char_device()
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _is_standard_output(path: Path) -> bool:
    """Whether a regular file that would be replaced is the one that standard output is redirected to."""
    try:
        return os.path.isfile(path) and files.own_descriptor(path) is None and os.path.samestat(os.fstat(1), path.stat())
    except OSError:
        return False


def check_picture(problem: Any, png: Path | None) -> None:
    """Raise now, not after the time limit, where a picture of a plan for this problem could not be written.

    Raises
    ------
    UsageError, MissingDependencyError
        Plans of this kind are not drawn, there is no such format, or it needs matplotlib, which is missing.
    """
    if png is not None:
        from stowplan.report.presenter import check_picture

        check_picture(problem, png)


def write_pictures(problem: Any, result: Result, plans: dict[str, Any], report: Path | None, png: Path | None) -> None:
    """Report and picture of a result, beside the first of ``plans``, else beside what its kind is usually compared with."""
    other = next(iter(plans.items()), None)
    if report is not None:
        from stowplan.report.html import write_report

        write_report(problem, result, report, compare=other)
    if png is None:
        return
    if result.plan is None:
        note(f"{png}: not drawn: there is no plan")
        return
    from stowplan.report.presenter import draw, presenter_for

    others = [other] if other is not None else presenter_for(problem).references(problem)
    draw(problem, [(result.provenance.candidate, result.plan), *others], png)
