"""RPC servers of llama.cpp as devices: memories that say what they are told, and, in a patched build, speeds.

``benchmarks.llama.build`` makes the build. Environment variables of a server, and of the programs that use it: STOW_VMEM (MiB
of memory), STOW_VBW and STOW_VKV (GB/s of weights and caches), STOW_VFLOPS (GFLOP/s), STOW_SKIP (compute nothing, only wait).
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

#: Seconds in which a server must answer.
PATIENCE = 20.0


class Rig:
    """Servers on ports of this machine, one for each device, started and ended together."""

    def __init__(self, build: Path, devices: Sequence[Mapping[str, float]], host: Mapping[str, float] | None = None):
        self.build = build
        self.ports = [_free_port() for _ in devices]
        self.processes = [
            subprocess.Popen(
                [build / "bin" / "ggml-rpc-server", "-t", "1", "-d", "CPU", "-p", str(port)],
                env=environment(device),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for port, device in zip(self.ports, devices, strict=True)
        ]
        self.environment = environment(host or {})
        for port in self.ports:
            _await(port)

    @property
    def servers(self) -> tuple[str, ...]:
        """Their addresses."""
        return tuple(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def names(self) -> list[str]:
        """Names of the devices in llama.cpp."""
        return [f"RPC{number}" for number in range(len(self.ports))]

    def named(self, buffer: str) -> str:
        """The device of a buffer such as ``RPC0[127.0.0.1:50052]``; others as they are."""
        match = re.fullmatch(r"RPC\d+\[127\.0\.0\.1:(\d+)\]", buffer)
        return f"RPC{self.ports.index(int(match[1]))}" if match else buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


def environment(device: Mapping[str, float]) -> dict[str, str]:
    """Variables for a device: ``memory`` (MiB), ``weights`` and ``cache`` (GB/s), ``flops`` (GFLOP/s); with speeds it waits."""
    names = {"memory": "STOW_VMEM", "weights": "STOW_VBW", "cache": "STOW_VKV", "flops": "STOW_VFLOPS"}
    given = {names[key]: f"{value:g}" for key, value in device.items()}
    return {**os.environ, **given, **({"STOW_SKIP": "1"} if "weights" in device else {})}


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _await(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no server on port {port}")
