"""Infers shapes of an ONNX model in a child process, because onnx's inference crashes the process on some models.

The child process is started for the first model, and used for later models as well. It waits for models at a pipe, and ends
when its parent ends. If this module is run as ``__main__``, it is the child process. Large weights are not sent to the child,
because shapes do not depend on them.
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

#: Weights with more bytes than this (32 KiB) are not sent, except for integers, from which shapes may be computed.
_MAX_SENT = 1 << 15
#: Fields of a tensor that contain its values.
_NUMBERS = ("raw_data", "float_data", "int32_data", "string_data", "double_data", "uint64_data")
#: The first byte of an answer: inference succeeded or failed.
_DONE, _FAILED = b"+", b"-"


class _Process(ChildProcess):
    """The child process, as its parent sees it."""

    def __init__(self) -> None:
        super().__init__("stowplan.frontends.shape_inference")
        self.parent = os.getpid()
        """The process that started it."""
        self.is_busy = False
        """Whether it has not yet answered a request."""

    @property
    def is_ready(self) -> bool:
        """Whether the child process waits for a request of this process. After a fork, it belongs to the parent only, so that
        this is False in the process that was forked."""
        return self.parent == os.getpid() and self.is_alive and not self.is_busy

    def ask(self, data: bytes) -> bytes:
        """Sends a model; returns the findings (:class:`.onnx_shapes.Findings`) as a line of JSON, followed by the model with
        its shapes.

        Raises
        ------
        InputError
            Inference refused the model, or crashed on it. After a crash, the child process has ended.
        """
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
        """Ends the process if this process has started it, and closes the pipes."""
        if self.parent == os.getpid():
            self.end()
        super().close()


#: Held while a request is answered, because the child process answers one request at a time.
_lock = threading.Lock()
#: The child process; empty if none has been started.
_kept: list[_Process] = []


def start() -> None:
    """Starts the child process in the background, unless it is running.

    Raises
    ------
    OSError
        The system cannot start another process.
    """
    with _lock:
        _ready()


def infer(model: Any) -> tuple[Any, onnx_shapes.Findings]:
    """Infers the shapes of a model; returns a copy with all shapes that are known, and findings about declared shapes.

    Weights of more than 32 KiB, except for integers, are moved from ``model`` to the copy. Calls from several threads are
    answered one after the other.

    Raises
    ------
    InputError
        Inference refused the model, or crashed on it.
    OSError
        The system cannot start another process.
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
    """The child process that waits for requests. A new one is started if there is none, or if it has ended, belongs to the
    parent of this process, or is still answering a caller that was interrupted."""
    if _kept and not _kept[0].is_ready:
        _kept.pop().close()
    if not _kept:
        _kept.append(_Process())
    return _kept[0]


@atexit.register
def _end() -> None:
    """Ends the child process."""
    while _kept:
        _kept.pop().close()


def _serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answers requests until the parent closes the pipe. This function runs in the child process."""
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
