"""Files that commands write: checks before the run, then plans, offset tables, dependency rules, pictures and reports."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stowplan import files, kinds
from stowplan.cli.options import option
from stowplan.cli.output import note
from stowplan.errors import UsageError
from stowplan.file_uses import in_shell
from stowplan.result import Result

if TYPE_CHECKING:
    from stowplan.report.presenter import Presenter

#: Formats of ``--emit`` that only some plans have: a TensorFlow Lite model with the offsets in it, a solution for dsa-solver,
#: the configuration of a CGRA, and a trace.
TFLITE, DSA, CONFIG, PERFETTO = "tflite", "dsa", "config", "perfetto"

Emit = Annotated[
    list[str] | None,
    option(
        "--emit",
        "FORMAT[=FILE]",
        "Write the plan in a format for other programs. Formats for offsets: c-header, json and csv are tables; tflite is "
        "a copy of INPUT, which must be a TensorFlow Lite model, with the offsets added; dsa is a solution for dsa-solver, "
        "another planner of offsets, and INPUT must then be a problem in its format. config is the configuration of a "
        "coarse-grained reconfigurable array (CGRA), for the data-flow graph of a loop. perfetto is a trace that "
        "ui.perfetto.dev shows. Without =FILE, the output goes to the file of -o, instead of the plan. May be given "
        "several times.",
    ),
]
Depfile = Annotated[
    Path | None,
    option(
        "--depfile",
        "FILE",
        "Write a dependency file for Make, Ninja or CMake to this file. It lists the files on which the outputs of this "
        "command depend.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """All files that a command writes for a plan."""

    plan: Path | None = None
    """File of the plan."""
    tables: tuple[tuple[str, Path], ...] = ()
    """Format and file of each output of ``--emit``."""
    certificate: Path | None = None
    """File of the proof of the bound."""
    report: Path | None = None
    """File of the report, in HTML."""
    png: Path | None = None
    """File of the picture, in a format that its ending names."""
    depfile: Path | None = None
    """Dependency file: the rule that says on which inputs the other files depend."""

    @classmethod
    def of(cls, output: Path | None, emit: list[str] | None, **others: Path | None) -> Outputs:
        """The files that ``-o``, ``--emit`` and other options name. Raises UsageError for an unknown format, or for a format
        without a file."""
        tables: list[tuple[str, Path]] = []
        takes_output = False
        for text in emit or ():
            form, equals, name = text.partition("=")
            _check_format(form)
            if equals and not name:
                raise UsageError(f"--emit: found {text!r}, expected the name of a file after the =")
            if name:
                tables.append((form, Path(name)))
            elif output is None:
                raise UsageError(f"--emit {form}: found no file to write to, expected --emit {form}=FILE")
            elif takes_output:
                raise UsageError(f"--emit {form}: {output} is written in another format already, expected --emit {form}=FILE")
            else:
                takes_output = True
                tables.append((form, output))
        return cls(plan=None if takes_output else output, tables=tuple(tables), **others)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files except for the dependency file."""
        paths = (self.plan, *(path for _, path in self.tables), self.certificate, self.report, self.png)
        return tuple(path for path in paths if path is not None)

    def check(self, inputs: Iterable[Path | None]) -> None:
        """Does what :func:`check_outputs` does. Also raises UsageError if a dependency file is the only file to write, or if
        the file of the plan has the ending of another format, such as ``.png``; :meth:`check_problem` checks ``.csv``."""
        if self.depfile is not None and not self.files:
            raise UsageError("--depfile says what outputs depend on, and none is asked for: expected -o FILE or another")
        check_outputs((*self.files, self.depfile), inputs=inputs)
        if self.plan is not None and self.plan.suffix.lower() in _OTHER_ENDINGS.keys() - {".csv"}:
            raise _wrong_ending(self.plan)

    def check_problem(self, problem: Any, source: Path) -> None:
        """Checks, before the run, that plans for this problem can be written and drawn in the formats that are asked for.

        ``source`` is the input from which the problem was read.

        Raises
        ------
        UsageError
            A format is for another kind of problem, or for another kind of input.
        MissingDependencyError
            The format of the picture needs matplotlib, which is not installed.
        """
        if self.plan is not None and self.plan.suffix.lower() == ".csv":
            from stowplan.kernel.kind import kind_of

            kind = kind_of(problem)
            if kind.name != "packing":
                raise _wrong_ending(self.plan, has_other=kind.offset_table is not None)
        forms = {form for form, _ in self.tables}
        if CONFIG in forms:
            _presenter(problem).check_configurable(f"--emit {CONFIG}")
        if PERFETTO in forms:
            _presenter(problem).check_traceable(f"--emit {PERFETTO}")
        if forms - {CONFIG, PERFETTO}:
            from stowplan.backends.emit import check_emittable

            check_emittable(problem)
        if TFLITE in forms:
            from stowplan.frontends.tflite.model import is_tflite

            if not is_tflite(source):
                raise UsageError(f"--emit {TFLITE}: found the input {source}, expected a TensorFlow Lite model")
        if DSA in forms:
            from stowplan.frontends.dsa import is_dsa
            from stowplan.frontends.formats import look

            if not is_dsa(look(source)):
                raise UsageError(f"--emit {DSA}: found the input {source}, expected a problem of dsa-solver")
        check_picture(problem, self.png)

    def write(self, problem: Any, plan: Any, certificate: Any, source: Path) -> None:
        """Writes the plan and its tables if there is a plan, and the certificate if there is one.

        ``source`` is the input from which the problem was read. Raises InputError if a file cannot be written.
        """
        if plan is not None and self.plan is not None:
            plan.save(self.plan)
        for form, path in () if plan is None else self.tables:
            from stowplan.backends import emit
            from stowplan.backends.tflm.write import write_plan
            from stowplan.frontends.dsa import write_solution

            if form == TFLITE:
                write_plan(source, plan, path)
            elif form == DSA:
                write_solution(source, plan, path)
            elif form == CONFIG:
                _presenter(problem).configuration(problem, plan).save(path)
            elif form == PERFETTO:
                from stowplan.report.trace import encode

                files.write_atomic(path, encode(problem, plan, _presenter(problem).trace(problem, plan)))
            else:
                emit.write(path, problem, plan, form)
        if self.certificate is not None and certificate is not None:
            certificate.save(self.certificate)

    def draw(self, problem: Any, result: Result, plans: dict[str, Any]) -> None:
        """Writes the report and the picture, if they are asked for. Both compare the plan with the first of ``plans`` or, if
        there are none, with the plan that is usual for the kind of problem. If there is no plan, a line on standard error says
        that the picture is not drawn."""
        other = next(iter(plans.items()), None)
        if self.report is not None:
            from stowplan.report.html import write_report

            write_report(problem, result, self.report, compare=other)
        if self.png is None:
            return
        if result.plan is None:
            note(f"{self.png}: not drawn: there is no plan")
            return
        from stowplan.report.presenter import draw

        others = [other] if other is not None else _presenter(problem).references(problem)
        draw(problem, [(result.provenance.candidate, result.plan), *others], self.png)


def _check_format(form: str) -> None:
    """Raises UsageError if there is no format of this name."""
    from stowplan.backends.emit import FORMATS

    known = (*FORMATS, TFLITE, DSA, CONFIG, PERFETTO)
    if form not in known:
        raise UsageError(f"--emit: found {form!r}, expected one of {', '.join(known)}")


#: Endings of formats in which ``-o`` does not write a plan, and the options that write them.
_OTHER_ENDINGS = {
    **dict.fromkeys((".png", ".svg", ".pdf"), "--png {file}, which draws the plan"),
    **dict.fromkeys((".html", ".htm"), "--report {file}, which describes the result"),
    **dict.fromkeys((".h", ".hpp"), "--emit c-header={file}, which writes offsets for C"),
    ".tflite": "--emit tflite={file}, which writes offsets into a TensorFlow Lite model",
    ".csv": "--emit csv={file}, which writes offsets",
}


def _wrong_ending(path: Path, has_other: bool = True) -> UsageError:
    """The error that ``-o`` does not write the format of a file's name. ``has_other`` says whether another option writes it."""
    message = f"{path}: -o writes the plan as JSON, expected a name such as {path.with_suffix('.json').name}"
    other = _OTHER_ENDINGS[path.suffix.lower()].format(file=in_shell(path))
    return UsageError(f"{message}, or {other}" if has_other else message)


def check_csv(path: Path, kind: kinds.BaseKind, source: str | Path) -> None:
    """Raises UsageError if a problem is to be written to a CSV file, and is not one of packing, the only kind with CSV files.

    ``source`` is the input or the instance that the problem is from, for the message.
    """
    if path.suffix.lower() == ".csv" and kind.name != "packing":
        raise UsageError(f"{path}: CSV is for packing, and {source} is a problem of {kind.title}: write JSON")


def _presenter(problem: Any) -> Presenter:
    """The presenter of the problem's kind, which draws and describes plans."""
    from stowplan.report.presenter import presenter_for

    return presenter_for(problem)


def named_paths(flag: str, texts: Iterable[str] | None) -> dict[str, Path]:
    """Paths by the names that precede them in texts ``NAME=PATH``. Raises UsageError if a name is missing or occurs twice."""
    paths: dict[str, Path] = {}
    for text in texts or ():
        name, _, path = text.partition("=")
        if not name or not path:
            raise UsageError(f"{flag}: found {text!r}, expected a name and a path, such as xla=FILE")
        if name in paths:
            raise UsageError(f"{flag}: found {name} twice, expected another name")
        paths[name] = Path(path)
    return paths


def write_depfile(path: Path, outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Writes the rule ``outputs: inputs``. The paths are written as they were given, and each input once.

    Raises UsageError if the name of a file contains a line break, and InputError if the file ``path`` cannot be written.
    """
    targets = " ".join(_escaped(output) for output in outputs)
    # Pipes and devices are left out because their modification times mean nothing.
    sources = dict.fromkeys(_escaped(source) for source in inputs if os.path.isfile(source))
    files.write_atomic(path, " \\\n  ".join([f"{targets}:", *sources]).encode(errors="surrogateescape") + b"\n")


def _escaped(path: str | Path) -> str:
    """A path as it is written in a Makefile; raises UsageError if it contains a line break."""
    text = os.fspath(path)
    if "\n" in text:
        raise UsageError(f"{files.printable(path)!r}: no rule can name a file with a line break, expected another name")
    # Make takes a backslash before a blank or # for an escape, so backslashes there are doubled.
    escaped = ""
    for at, character in enumerate(text):
        if character in " \t#":
            before = len(text[:at]) - len(text[:at].rstrip("\\"))
            escaped += "\\" * (before + 1) + character
        else:
            escaped += "$$" if character == "$" else character
    return escaped


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Checks before the run that files can be written, and that none of them would overwrite another one or an input.

    Raises
    ------
    UsageError
        A file cannot be written or would overwrite another one. The message names the file and the obstacle.
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
    """Checks before the run that files can be written to a folder, which need not exist yet. Raises UsageError otherwise."""
    at = os.path.abspath(path)
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        raise UsageError(f"{path}: cannot write into it: {at} is no folder")
    if not os.access(at, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot write into it: no permission to write in {at}")


def _check_writable(path: Path) -> None:
    """Raises UsageError if a file cannot be written."""
    number = files.own_descriptor(path)
    if number is not None:
        try:
            os.fstat(number)
        except OSError as error:
            raise UsageError(f"{path}: cannot write: {error.strerror}") from error
        return
    # Methods of Path are not used here, because they raise OSError if a name is too long.
    target = os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path)
    if os.path.islink(target):
        raise UsageError(f"{path}: cannot write: {os.strerror(errno.ELOOP)}")
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: cannot write: there is no folder {folder}")
    if os.path.isdir(target):
        raise UsageError(f"{path}: cannot write: it is a folder, expected the name of a file")
    if os.path.exists(target) and not os.path.isfile(target):
        # A device or pipe is written to directly.
        if not os.access(target, os.W_OK):
            raise UsageError(f"{path}: cannot write: no permission to write to it")
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot write: no permission to write in {folder}")


def _is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same file, which need not exist. Devices such as /dev/null do not count."""
    try:
        return one.samefile(other) and not one.is_char_device()
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _is_standard_output(path: Path) -> bool:
    """Whether a path is the regular file to which standard output is redirected. Writing an output would replace that file."""
    try:
        return os.path.isfile(path) and files.own_descriptor(path) is None and os.path.samestat(os.fstat(1), path.stat())
    except OSError:
        return False


def check_picture(problem: Any, png: Path | None) -> None:
    """Raises an error, before the run, if a picture of a plan for this problem could not be written.

    Raises
    ------
    UsageError
        Plans of this kind are not drawn, or the format is unknown.
    MissingDependencyError
        The format needs matplotlib, which is not installed.
    """
    if png is not None:
        from stowplan.report.presenter import check_picture

        check_picture(problem, png)
