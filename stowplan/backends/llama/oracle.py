"""What llama.cpp itself says of the bytes of a placement: a program that loads a model without its data.

``oracle.cpp`` beside this file is built against llama.cpp's libraries (see docs/guide/llm.md). It reads a line for each
placement and prints, for each kind of buffer, the bytes of weights, of caches and of intermediate results.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stowplan.backends.llama.machine import Machine
from stowplan.errors import StowplanError

#: Seconds that one answer may take.
PATIENCE = 120.0


@dataclass(frozen=True)
class Oracle:
    """A built ``oracle.cpp``, for one model."""

    program: Path
    model: Path
    machine: Machine
    servers: tuple[str, ...] = ()
    """Addresses of RPC servers whose devices are used."""

    def ask(self, placements: Sequence[Sequence[str]]) -> list[dict[str, tuple[int, int, int]]]:
        """Bytes of weights, caches and intermediate results by buffer name, for each list of llama.cpp's options.

        Raises
        ------
        StowplanError
            The program cannot be run, or does not answer for every placement.
        """
        lines = "".join(map(_line, placements))
        try:
            answer = subprocess.run(
                [str(self.program), str(self.model), ",".join(self.servers)],
                input=lines,
                capture_output=True,
                text=True,
                timeout=PATIENCE * len(placements),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StowplanError(f"{self.program}: cannot be run: {error}") from None
        rows = answer.stdout.splitlines()
        if len(rows) != len(placements):
            raise StowplanError(f"{self.program}: has {len(rows)} answers for {len(placements)} placements")
        return [parse(row, self.program) for row in rows]

    def compute_bytes(self, words: Sequence[str]) -> dict[str, int]:
        """Bytes of intermediate results by device, CPU for the host."""
        found: dict[str, int] = {}
        for name, (_, _, compute) in self.ask([words])[0].items():
            device = device_of(name)
            found[device] = found.get(device, 0) + compute
        return found


def _line(words: Sequence[str]) -> str:
    """A placement as the program reads it."""
    value = dict(zip(words, [*words[1:], ""], strict=True))
    devices = value.get("-dev", "")
    fields = (
        value.get("-ngl", "-1"),
        value.get("-ts", ""),
        value.get("-ot", ""),
        value["-c"],
        value.get("-ub", "512"),
        "" if devices == "none" else devices,
        value.get("-np", "1"),
        value.get("-ctk", "f16"),
        value.get("-ctv", "f16"),
    )
    return "\t".join(fields) + "\n"


def parse(text: str, program: Path) -> dict[str, tuple[int, int, int]]:
    """One answer of the program."""
    found = {}
    for part in text.split(";"):
        words = part.split("\t")
        if len(words) == 4:
            found[words[0].strip()] = (int(words[1]), int(words[2]), int(words[3]))
    if not found:
        raise StowplanError(f"{program}: says {text[:80]!r}, expected bytes of buffers")
    return found


def device_of(buffer: str) -> str:
    """The device that a buffer belongs to; the host for those of the CPU, and those that it shares with devices."""
    return "CPU" if buffer.startswith("CPU") or buffer.endswith("_Host") else buffer
