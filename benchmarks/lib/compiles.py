"""Folders of compiles, as ``stowplan tune-xla --folder`` writes them, for one chip: results by the text of their program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stowplan import files
from stowplan.backends.xla.knobs import SCOPED_OPTION
from stowplan.backends.xla.store import Compiled, read_result
from stowplan.errors import InputError
from stowplan.hardware.targets import Target, xla_chip


@dataclass(frozen=True)
class ProgramText:
    """What XLA made of one program text on one chip, with one scoped limit: kernels with another take other cycles.

    Flags that change fusions make texts of their own.
    """

    workload: str
    """Name of the function; its texts have most instructions in common."""
    number: int
    """Among the texts of the workload; that of XLA's defaults is 0 where it is there."""
    scoped: str
    """The scoped limit as its option says; empty for the chip's own."""
    results: tuple[Compiled, ...]
    """The result of fewest options first: the text's own default. Equal plans once."""

    @property
    def name(self) -> str:
        """Of the text, for tables."""
        return self.workload if not self.number else f"{self.workload}, text {self.number + 1}"


def read_texts(folder: Path, target: Target) -> list[ProgramText]:
    """All program texts in a folder of compiles that were compiled for the target.

    Raises
    ------
    InputError
        There is none.
    """
    machine, found = xla_chip(target).machine, []
    for workload in sorted(path for path in folder.iterdir() if path.is_dir()):
        results = [each for path in sorted(workload.glob("*/record.json")) if (each := _complete(path.parent, machine))]
        results.sort(key=lambda each: (len(each.record.options), each.record.key))
        texts: dict[tuple[str, str], dict[str, Compiled]] = {}
        for each in results:
            scoped = str(each.record.options.get(SCOPED_OPTION, ""))
            plans = texts.setdefault((files.digest(files.read_text(each.program_path)), scoped), {})
            plans.setdefault(files.digest(files.read_text(each.assigned_path)), each)
        # Folders end in the digest of what was lowered.
        name = re.sub(r"-[0-9a-f]{16}$", "", workload.name)
        found += [
            ProgramText(name, number, scoped, tuple(plans.values()))
            for number, ((_, scoped), plans) in enumerate(texts.items())
        ]
    if not found:
        raise InputError(f"found no compile for {machine}, expected some", source=folder)
    return found


def _complete(folder: Path, machine: str) -> Compiled | None:
    try:
        result = read_result(folder)
    except InputError:
        return None
    needed = (result.module_path, result.assigned_path, result.program_path)
    return result if not result.error and result.record.topology == machine and all(map(Path.exists, needed)) else None
