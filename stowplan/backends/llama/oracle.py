"""Asks llama.cpp itself how many bytes it allocates for a placement.

The *oracle* is a program that is built from ``oracle.cpp``, in the folder of this file, with llama.cpp's libraries (see
docs/guide/llm.md). It loads a model without its data. For each placement, that is, each list of llama.cpp's options, it reads a
line and prints the bytes of weights, of caches and of intermediate results in each of llama.cpp's buffers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stowplan.errors import StowplanError

#: Time limit of :meth:`Oracle.ask` in seconds for each of the placements that it is called with.
PATIENCE = 120.0


@dataclass(frozen=True)
class Oracle:
    """The oracle for one model, on the machine that runs it."""

    program: Path
    """The program that was built from ``oracle.cpp``."""
    model: Path
    """The GGUF file."""
    servers: tuple[str, ...] = ()
    """Addresses of llama.cpp's RPC servers, which lend devices of other machines. A machine file names no servers, so that
    :func:`stowplan.backends.llama.plan` has none."""

    def ask(self, placements: Sequence[Sequence[str]]) -> list[dict[str, tuple[int, int, int]]]:
        """Returns, for each list of options, the bytes of weights, caches and intermediate results by the name of the buffer.

        Raises
        ------
        StowplanError
            The program cannot be run or exceeds the time limit, or its answers are too few or cannot be read.
        """
        lines = "".join(map(_line, placements))
        limit = PATIENCE * len(placements)
        try:
            answer = subprocess.run(
                [str(self.program), str(self.model), ",".join(self.servers)],
                input=lines,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            count = f"{len(placements)} placement{'s' * (len(placements) > 1)}"
            raise StowplanError(f"{self.program}: takes more than {limit:g} s for {count}; it was stopped") from None
        except OSError as error:
            raise StowplanError(f"{self.program}: cannot be run: {error}") from None
        rows = answer.stdout.splitlines()
        if len(rows) != len(placements):
            raise StowplanError(f"{self.program}: has {len(rows)} answers for {len(placements)} placements")
        return [parse(row, self.program) for row in rows]

    def compute_bytes(self, words: Sequence[str]) -> dict[str, int]:
        """Returns the bytes of intermediate results with these options, by the name of the device; ``CPU`` is the host.

        Raises StowplanError as :meth:`ask` does.
        """
        bytes_of: dict[str, int] = {}
        for name, (_, _, compute) in self.ask([words])[0].items():
            device = device_of(name)
            bytes_of[device] = bytes_of.get(device, 0) + compute
        return bytes_of


def _line(words: Sequence[str]) -> str:
    """The line for a placement: the values of its options, separated by tabs."""
    value = dict(zip(words, [*words[1:], ""], strict=True))
    fields = (
        value.get("-ngl", "-1"),
        value.get("-ts", ""),
        value.get("-ot", ""),
        value["-c"],
        value.get("-ub", "512"),
        value.get("-dev", ""),
        value.get("-np", "1"),
        value.get("-ctk", "f16"),
        value.get("-ctv", "f16"),
    )
    return "\t".join(fields) + "\n"


def parse(text: str, program: Path) -> dict[str, tuple[int, int, int]]:
    """Reads one answer of the program; raises StowplanError if it has no bytes of buffers, or a size that is no number."""
    bytes_of = {}
    try:
        for part in text.split(";"):
            words = part.split("\t")
            if len(words) == 4:
                bytes_of[words[0].strip()] = (int(words[1]), int(words[2]), int(words[3]))
    except ValueError:
        bytes_of = {}
    if not bytes_of:
        raise StowplanError(f"{program}: says {text[:80]!r}, expected bytes of buffers")
    return bytes_of


def device_of(buffer: str) -> str:
    """Returns the name of the device to which a buffer of this name belongs.

    It is ``CPU`` for buffers of the CPU, and for buffers of the host that a device can read directly (``CUDA_Host``, for
    example).
    """
    return "CPU" if buffer.startswith("CPU") or buffer.endswith("_Host") else buffer
