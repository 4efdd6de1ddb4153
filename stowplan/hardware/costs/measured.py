"""Measured latencies of steps, as data of a cost model. A step has one latency for each subset of up to eight of its uses.

A *use* is a read or a write of one tensor by one step. The latency of a subset is that of one run of the step if exactly the
uses in the subset are served from fast memory. ``docs/reference/costs.md`` describes the file formats.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.checks import expect
from stowplan.errors import InputError, naming
from stowplan.hardware.program import Program, ProgramStep
from stowplan.hardware.targets import Target
from stowplan.models.memory_mapping.problem import MAX_TABLE_USES, Table

#: Values of the fields ``format`` and ``version`` of files of measurements.
FORMAT = "stowplan.measurements"
VERSION = 1


class StepMeasurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latency of one run of a step for each subset of ``uses`` that is served from fast memory."""

    step: str
    """Name of the step."""
    uses: tuple[int, ...]
    """Positions in the step's list of uses, at most eight; other uses do not change the latency."""
    latency_ps: tuple[int, ...] | None = None
    """``2 ** len(uses)`` latencies in ps. In entry ``m``, ``uses[i]`` is served from fast memory if bit ``i`` of ``m`` is
    set."""
    cycles: tuple[int, ...] | None = None
    """The same latencies in cycles of the target's clock; exactly one of ``latency_ps`` and ``cycles`` is not None."""

    def table(self, step: ProgramStep, target: Target) -> Table:
        """The step's latency table; raises InputError if the step does not have all these uses."""
        if any(use >= len(step.uses) for use in self.uses):
            raise InputError(f"found use {max(self.uses)}, expected one below {len(step.uses)}", place=f"step {self.step}")
        latency = self.latency_ps
        if latency is None:
            latency = tuple(target.cycles_ps(cycles) for cycles in self.cycles or ())
        return Table(self.uses, latency)


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of some of a program's steps. Construction raises InputError if a measurement is not valid."""

    steps: tuple[StepMeasurement, ...]
    """The measurements, at most one for each step."""
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for number, entry in enumerate(self.steps):
            _check(entry, f"steps[{number}] ({entry.step})")
            expect(entry.step not in seen, f"steps[{number}] ({entry.step})", "the step twice", "once")
            seen.add(entry.step)

    def by_step(self, program: Program) -> dict[str, StepMeasurement]:
        """Measurements by names of steps; raises InputError if the program does not have one of the steps."""
        for entry in self.steps:
            expect(entry.step in program.step_index, "steps", f"step {entry.step!r}", f"a step of {program.name}")
        return {entry.step: entry for entry in self.steps}


def _check(entry: StepMeasurement, place: str) -> None:
    """Raises InputError if a measurement breaks a rule of the format."""
    if (entry.latency_ps is None) == (entry.cycles is None):
        raise InputError("found both or neither of latency_ps and cycles, expected one of them", place=place)
    values = (entry.latency_ps if entry.cycles is None else entry.cycles) or ()
    if len(entry.uses) > MAX_TABLE_USES or len(set(entry.uses)) != len(entry.uses) or min(entry.uses, default=0) < 0:
        raise InputError(f"found uses {list(entry.uses)}, expected at most {MAX_TABLE_USES} distinct positions", place=place)
    if len(values) != 1 << len(entry.uses):
        raise InputError(f"found {len(values)} values, expected {1 << len(entry.uses)} for {len(entry.uses)} uses", place=place)
    expect(min(values) >= 0, place, f"{min(values)}", "at least 0")


def read_measurements(path: str | Path) -> Measurements:
    """Reads measurements from a JSON or CSV file, which are distinguished by content.

    Raises
    ------
    InputError
        The file cannot be read or is no file of measurements, a subset is missing or occurs twice, or a value is out of range.
        The message names the line or the field.
    """
    data = files.read_bytes(path)
    try:
        with naming(path):
            return _read(data, path)
    except csv.Error as error:
        raise InputError(f"not a CSV file: {error}", source=path) from error


def _read(data: bytes, path: str | Path) -> Measurements:
    """The measurements in the contents of a file, which are JSON if they begin with a brace."""
    if data.lstrip()[:1] == b"{":
        return files.decode(data, Measurements, format_name=FORMAT, version=VERSION, source=path)
    return _from_csv(files.read_text(path))


def _from_csv(text: str) -> Measurements:
    """The measurements in the text of a CSV file."""
    reader = csv.reader(io.StringIO(text))
    header = next(reader, [])
    unit = header[2] if len(header) == 3 else ""
    if header[:2] != ["step", "fast"] or unit not in ("latency_ps", "cycles"):
        raise InputError(
            f"found columns {','.join(header)!r}, expected step,fast,latency_ps or step,fast,cycles", place="line 1"
        )
    latencies: dict[str, dict[frozenset[int], int]] = {}
    for row in reader:
        place = f"line {reader.line_num}"
        if not row:
            continue
        try:
            step, fast, value = row
            subset = frozenset(int(use) for use in fast.split())
            latency = int(value)
        except ValueError:
            raise InputError(
                f"found {','.join(row)!r}, expected a step, its fast uses such as '0 2', and a whole number", place=place
            ) from None
        expect(subset not in latencies.setdefault(step, {}), place, f"fast uses {fast!r} of {step} twice", "once")
        latencies[step][subset] = latency
    return Measurements(tuple(_complete(step, values, unit) for step, values in latencies.items()))


def _complete(step: str, values: dict[frozenset[int], int], unit: str) -> StepMeasurement:
    """The measurement of a step from its latencies by sets of fast uses; raises InputError if a subset is missing."""
    uses = tuple(sorted(frozenset().union(*values)))
    expect(len(uses) <= MAX_TABLE_USES, f"step {step}", f"{len(uses)} different uses", f"at most {MAX_TABLE_USES}")
    row = []
    for mask in range(1 << len(uses)):
        subset = frozenset(use for bit, use in enumerate(uses) if mask >> bit & 1)
        if subset not in values:
            missing = " ".join(map(str, sorted(subset)))
            raise InputError(f"found no value for fast uses {missing!r}, expected one for each subset", place=f"step {step}")
        row.append(values[subset])
    latency = tuple(row)
    return StepMeasurement(step, uses, *((latency, None) if unit == "latency_ps" else (None, latency)))


def largest_uses(step: ProgramStep, limit: int = MAX_TABLE_USES) -> tuple[int, ...]:
    """Positions of the ``limit`` uses of a step that move the most bytes, ascending; all uses if there are no more."""
    order = sorted(range(len(step.uses)), key=lambda position: -step.uses[position].bytes)
    return tuple(sorted(order[:limit]))


def measurement_sheet(program: Program, limit: int = MAX_TABLE_USES) -> str:
    """CSV text that is to be filled in: it has a row without a value for every measurement.

    There is a measurement for each subset of the ``limit`` largest uses of each step. :func:`read_measurements` accepts at most
    eight uses of a step.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", "fast", "latency_ps"])
    for step in program.steps:
        uses = largest_uses(step, limit)
        for mask in range(1 << len(uses)):
            writer.writerow([step.name, " ".join(str(use) for bit, use in enumerate(uses) if mask >> bit & 1), ""])
    return out.getvalue()
