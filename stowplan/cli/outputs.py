"""Files that commands write: checks before the run, then plans, offset tables, dependency rules, pictures and reports."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stowplan import files
from stowplan.cli.options import option
from stowplan.cli.output import note
from stowplan.errors import UsageError
from stowplan.result import Result

if TYPE_CHECKING:
    from stowplan.report.presenter import Presenter

#: Formats that only some plans have: a TensorFlow Lite model with the offsets in it, a solution for dsa-solver, the
#: configuration of a CGRA, and a trace.
TFLITE, DSA, CONFIG, PERFETTO = "tflite", "dsa", "config", "perfetto"

Emit = Annotated[
    list[str] | None,
    option(
        "--emit",
        "FORMAT[=FILE]",
        "Write the plan for other programs: its offsets as a table (c-header, json or csv), in the TensorFlow Lite model "
        "(tflite) or as a solution of dsa-solver (dsa), the configuration of a coarse-grained reconfigurable array (config), "
        "or a trace for ui.perfetto.dev (perfetto). Without =FILE it goes to the file of -o, in place of the plan. May be "
        "given several times.",
    ),
]
Depfile = Annotated[
    Path | None,
    option(
        "--depfile",
        "FILE",
        "Write a dependency file for Make, Ninja or CMake; it lists the files from which the outputs were made.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """All files that a command writes for a plan."""

    plan: Path | None = None
    """File of the plan."""
    tables: tuple[tuple[str, Path], ...] = ()
    """Format and file of each offset table or configuration."""
    certificate: Path | None = None
    report: Path | None = None
    png: Path | None = None
    depfile: Path | None = None
    """File of the rule that says which inputs the other files depend on."""

    @classmethod
    def of(cls, output: Path | None, emit: list[str] | None, **others: Path | None) -> Outputs:
        """The files that ``-o``, ``--emit`` and other options name; raises UsageError for an unknown format, or one without a
        file."""
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
        """All files except for the dependency rule."""
        paths = (self.plan, *(path for _, path in self.tables), self.certificate, self.report, self.png)
        return tuple(path for path in paths if path is not None)

    def check(self, inputs: Iterable[Path | None]) -> None:
        """The same as :func:`check_outputs`; also raises UsageError for a dependency rule without any other file."""
        if self.depfile is not None and not self.files:
            raise UsageError("--depfile says what outputs depend on, and none is asked for: expected -o FILE or another")
        check_outputs((*self.files, self.depfile), inputs=inputs)

    def check_problem(self, problem: Any, source: Path) -> None:
        """Raises an error, before the run, if plans for this problem cannot be written in these formats or drawn."""
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
        """Writes the plan, its tables and the certificate, as far as they are not None."""
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
        """Writes the report and the picture. They compare the plan with the first of ``plans``, or else with the usual plan of
        the kind."""
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
    from stowplan.backends.emit import FORMATS

    known = (*FORMATS, TFLITE, DSA, CONFIG, PERFETTO)
    if form not in known:
        raise UsageError(f"--emit: found {form!r}, expected one of {', '.join(known)}")


def _presenter(problem: Any) -> Presenter:
    from stowplan.report.presenter import presenter_for

    return presenter_for(problem)


def named_paths(flag: str, texts: Iterable[str] | None) -> dict[str, Path]:
    """Paths by the names before the ``=``; raises UsageError if a name is missing or occurs twice."""
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
    """Writes the rule ``outputs: inputs`` with paths as they were given and each input once."""
    targets = " ".join(_escaped(output) for output in outputs)
    # Pipes and devices are left out because they have no meaningful modification time.
    sources = dict.fromkeys(_escaped(source) for source in inputs if os.path.isfile(source))
    files.write_atomic(path, " \\\n  ".join([f"{targets}:", *sources]).encode(errors="surrogateescape") + b"\n")


def _escaped(path: str | Path) -> str:
    """A path as it is written in a Makefile."""
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
    """Checks before the run that files can be written and that no file would overwrite another one or an input.

    Raises
    ------
    UsageError
        It names the file and the obstacle.
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
    """Checks before the run that files can be written to a folder, which may not exist yet; raises UsageError otherwise."""
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
    # Methods of Path are not used here, because they raise OSError for names that are too long.
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
    """Whether a path is the regular file to which standard output is redirected, and which would be replaced."""
    try:
        return os.path.isfile(path) and files.own_descriptor(path) is None and os.path.samestat(os.fstat(1), path.stat())
    except OSError:
        return False


def check_picture(problem: Any, png: Path | None) -> None:
    """Raises an error, before the run, if a picture of a plan for this problem could not be written.

    Raises
    ------
    UsageError, MissingDependencyError
        Plans of this kind are not drawn, the format is unknown, or it needs matplotlib, which is not installed.
    """
    if png is not None:
        from stowplan.report.presenter import check_picture

        check_picture(problem, png)
