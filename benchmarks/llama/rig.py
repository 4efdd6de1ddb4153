"""RPC servers of llama.cpp as devices: memories that say what they are told, and, in a patched build, speeds.

``benchmarks.llama.build`` makes the build. Environment variables of a server, and of the programs that use it: STOW_VMEM (MiB
of memory), STOW_VBW and STOW_VKV (GB/s of weights and caches), STOW_VFLOPS (GFLOP/s), STOW_SKIP (compute nothing, only wait).
"""

from __future__ import annotations

import json
import os
import re
import shlex
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

    def fit(self, model: Path, context: int, micro_batch: int, margin: int) -> list[str]:
        """Options that ``--fit`` chooses, one entry a word; the margin of each device is in MiB.

        Raises
        ------
        RuntimeError
            It prints no options, as where nothing fits.
        """
        words = ["-m", str(model), "-c", str(context), "-ub", str(micro_batch), "-fa", "on", "--fit-target", str(margin)]
        answer = self._run("llama-fit-params", ["--rpc", ",".join(self.servers), *words])
        match = re.search(r"^-c \d+.*", answer.stdout, re.MULTILINE)
        if match is None:
            raise RuntimeError(f"llama-fit-params found no options: {answer.stderr[-300:]}")
        return shlex.split(match[0])

    def raw(self, words: Sequence[str]) -> list[str]:
        """Options in which rules of ``-ot`` name the runtime's buffers for devices."""
        buffers = {f"={name}": f"=RPC0[{server}]" for name, server in zip(self.names, self.servers, strict=True)}
        return [re.sub(r"=RPC\d+(?=,|$)", lambda match: buffers[match[0]], word) for word in words]

    def rates(
        self, model: Path, words: Sequence[str], depth: int, micro_batch: int, generated: int = 8, runs: int = 3
    ) -> list[float]:
        """Tokens a second in each run of ``llama-bench``, which generates after ``depth`` tokens.

        The options place the model.

        Raises
        ------
        RuntimeError
            The program measures nothing.
        """
        value = dict(zip(words, [*words[1:], ""], strict=True))
        asked = ["-fa", "1", "-ub", str(micro_batch), "-b", str(micro_batch), "-p", "0", "-n", str(generated)]
        asked += ["-d", str(depth), "-r", str(runs), "-t", "1", "-o", "json", "--no-warmup"]
        # -1, all layers, is what --fit prints; here it would be a choice of its own.
        asked += ["-ngl", "99" if value.get("-ngl", "-1") == "-1" else value["-ngl"]]
        for flag, separator in (("-dev", "/"), ("-ts", "/"), ("-ot", ";")):
            if flag in value:
                asked += [flag, value[flag].replace(",", separator)]
        answer = self._run("llama-bench", ["-m", str(model), "-rpc", ",".join(self.servers), *asked])
        try:
            return [float(rate) for rate in json.loads(answer.stdout)[-1]["samples_ts"]]
        except (ValueError, LookupError, TypeError):
            raise RuntimeError(f"llama-bench {' '.join(asked)} measured nothing: {answer.stderr[-300:]}") from None

    def _run(self, program: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [str(self.build / "bin" / program), *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=600, check=False)

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
