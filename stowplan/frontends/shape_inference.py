"""Shapes of an ONNX model, inferred in a process of its own: onnx's inference ends the process over some models.

The process is started with the first model that is read, and kept for those after it. It waits at a pipe, and ends when its
parent does. As ``__main__`` this module is that process. Only what shapes may depend on is sent: large weights stay here.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import warnings
from typing import Any, BinaryIO

from stowplan.child_process import ChildProcess, describe_end, read_message, write_encoded
from stowplan.errors import InputError, first_line
from stowplan.frontends import onnx_shapes

#: Bytes of a weight that are sent, at most; whole numbers are always sent, since shapes may be computed with them.
_MAX_SENT = 1 << 15
#: Fields of a tensor that hold its numbers.
_NUMBERS = ("raw_data", "float_data", "int32_data", "string_data", "double_data", "uint64_data")
#: What an answer begins with.
_DONE, _FAILED = b"+", b"-"


class _Process(ChildProcess):
    """The process that infers."""

    def __init__(self) -> None:
        super().__init__("stowplan.frontends.shape_inference")
        self.parent = os.getpid()
        self.is_busy = False
        """Whether an answer is due."""

    @property
    def is_ready(self) -> bool:
        """Whether it waits for requests of this process, not of one that this one was forked from."""
        return self.parent == os.getpid() and self.is_alive and not self.is_busy

    def ask(self, data: bytes) -> bytes:
        """Findings as a line of JSON, then the model with its shapes; raises InputError as :func:`infer` does."""
        self.is_busy = True
        try:
            self.send(data)
            answer = self.receive()
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise InputError(f"onnx cannot infer the model's shapes: {describe_end(self.end())}")
        self.is_busy = False
        if answer[:1] == _FAILED:
            raise InputError(f"not an ONNX model: {answer[1:].decode(errors='replace')}")
        return answer[1:]

    def close(self) -> None:
        """End it, whatever it does, and free the pipes."""
        if self.parent == os.getpid():
            self.end()
        super().close()


_lock = threading.Lock()
_kept: list[_Process] = []


def start() -> None:
    """Have the process start, if there is none, while the caller does something else.

    Raises
    ------
    OSError
        The system has no room for another process.
    """
    with _lock:
        _ready()


def infer(model: Any) -> tuple[Any, onnx_shapes.Findings]:
    """A copy of a model with all shapes that can be inferred, and what was found out about those that it declares.

    The model itself loses its large weights to the copy.

    Raises
    ------
    InputError
        Inference refused the model, or ended its process over it.
    OSError
        The system has no room for another process.
    """
    weights: dict[int, bytes] = {}
    for number, tensor in enumerate(model.graph.initializer):
        if tensor.data_type not in (tensor.INT32, tensor.INT64) and tensor.ByteSize() > _MAX_SENT:
            weights[number] = tensor.SerializeToString()
            for field in _NUMBERS:
                tensor.ClearField(field)
    with _lock:
        findings, _, answer = _ready().ask(model.SerializeToString()).partition(b"\n")
    inferred = type(model).FromString(answer)
    for number, weight in weights.items():
        inferred.graph.initializer[number].ParseFromString(weight)
    return inferred, onnx_shapes.Findings(*json.loads(findings))


def _ready() -> _Process:
    """The process that is kept, or a new one where it has ended or owes an answer to a caller that was interrupted."""
    if _kept and not _kept[0].is_ready:
        _kept.pop().close()
    if not _kept:
        _kept.append(_Process())
    return _kept[0]


@atexit.register
def _end() -> None:
    while _kept:
        _kept.pop().close()


def _serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer requests until there are no more."""
    import onnx

    warnings.simplefilter("ignore")
    with contextlib.suppress(BrokenPipeError):
        while (data := read_message(incoming)) is not None:
            try:
                findings = onnx_shapes.Findings([], [])
                model = onnx_shapes.inferred(onnx.ModelProto.FromString(data), findings)
                answer = _DONE + json.dumps(findings).encode() + b"\n" + model.SerializeToString()
            except Exception as error:
                # protobuf and onnx raise errors of many types, over several lines.
                answer = _FAILED + first_line(error).encode()
            write_encoded(outgoing, answer)


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
