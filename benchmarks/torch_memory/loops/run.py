"""What a loop is given: how its models are compiled, what a step is, and what is recorded of it."""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.torch_memory.loops.meter import LiveBytes
from stowplan.backends.torch import MemoryLimitError

#: Says how a loop runs: its models as they are, compiled by ``aot_eager``, or within a limit.
EAGER, AOT = "eager", "aot_eager"


def cause(error: BaseException) -> BaseException:
    """The error that torch.compile wraps."""
    while isinstance(found := getattr(error, "inner_exception", None), BaseException):
        error = found
    return error


class Run:
    """A run of a loop.

    Parameters
    ----------
    backend
        ``"eager"``, ``"aot_eager"``, or a ``TrainingMemory``.
    meter
        Counts; None where nothing but the back end itself is to count.
    opens_steps
        Whether ``step`` opens a step of the memory; else the loop has the one line alone, and steps open by themselves.
    """

    def __init__(self, backend: Any, meter: LiveBytes | None, opens_steps: bool):
        self.backend, self.meter, self.opens_steps = backend, meter, opens_steps
        self.models: list[Any] = []
        self.peaks: list[int] = []
        self.host_peaks: list[int] = []
        self.digests: list[str] = []

    def compile(self, model: Any, **options: Any) -> Any:
        """A model, or a function, as it is to run."""
        if isinstance(model, torch.nn.Module):
            self.models.append(model)
        if self.backend == EAGER:
            return model
        if isinstance(self.backend, str) or not self.opens_steps:
            return torch.compile(model, backend=self.backend, **options)
        return self.backend.compile(model, **options)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A step, whose peak is counted."""
        gc.collect()
        if self.meter is not None:
            self.meter.reset()
        is_said = self.opens_steps and not isinstance(self.backend, str)
        try:
            with self.backend.step() if is_said else contextlib.nullcontext():
                yield
        except Exception as error:
            if isinstance(cause(error), MemoryLimitError):
                raise
            self._read()
            raise
        self._read()

    def _read(self) -> None:
        if self.meter is not None:
            self.peaks.append(self.meter.peak)
            self.host_peaks.append(self.meter.host_peak)

    def record(self, values: Any) -> None:
        """Take a digest of values, and of parameters, buffers and gradients of all models."""
        digest = hashlib.sha256()
        with _disable_current_modes(), torch.no_grad():
            tensors = [each for model in self.models for each in (*model.parameters(), *model.buffers())]
            tensors += [each.grad for each in tensors if each.is_leaf and each.grad is not None]
            for value in (*(values if isinstance(values, list | tuple) else [values]), *tensors):
                if isinstance(value, torch.Tensor):
                    value = value.detach()
                    flat = (value.to_dense() if value.layout is not torch.strided else value).contiguous().reshape(-1)
                    value = flat.view(torch.uint8).numpy().tobytes()
                digest.update(value if isinstance(value, bytes) else repr(value).encode())
        self.digests.append(digest.hexdigest()[:16])
