"""The process that compiles. It alone imports jax; it reads requests and writes answers, one JSON object a line.

Run as ``python -m stowplan.backends.xla.child REQUESTS ANSWERS`` with two inherited file descriptors. First comes a request to
lower (:class:`Lower`), answered by a digest of what is to be compiled; then any number of requests to compile
(:class:`Compile`), each answered when its files are written. It ends with its requests, or with its parent.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from stowplan.backends.xla.sharding import Partition, build_mesh, loads
from stowplan.backends.xla.workload import ArrayShape, Workload, shapes_of
from stowplan.errors import UsageError

#: What one may say to a compiler: a flag's value.
Option = str | bool | int | float

#: Files of a result.
PROGRAM = "program.hlo.txt.gz"
"""The scheduled module before memory-space assignment."""
ASSIGNED, OFFSETS = "assigned.hlo.txt.gz", "assigned.fastmem.txt.gz"
"""The module after it, and its allocations in fast memory."""
COMPILED = "compiled.hlo.txt.gz"
"""The module after code generation, with estimated cycles; its sliced copies are no longer told apart."""

#: Seconds between looks at what the compiler has written so far.
_WATCH = 0.2

#: Options by which the child has the compiler write those files.
DUMPED = ("xla_dump_to", "xla_dump_hlo_as_text")


class Lower(msgspec.Struct, frozen=True, tag="lower"):
    """Import, trace and lower."""

    workload: Workload
    topology: str
    config: str = ""
    """Configuration of the chip, where it is not libtpu's default."""


class Compile(msgspec.Struct, frozen=True, tag="compile"):
    """Compile what was lowered, and write its four files into a folder."""

    options: dict[str, Option]
    folder: str
    known: dict[str, str] = {}
    """Folders of results whose kernels are made alike, by :func:`assignment_digest`: an equal assignment need not be compiled
    to its end."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It worked."""

    digest: str = ""
    processor_seconds: float = 0.0
    seconds: float = 0.0
    resident_bytes: int = 0
    """Most memory that the process has had."""
    ended: bool = False
    """Whether the process ends with this answer: it found a known assignment, and a compile cannot be interrupted."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It did not; the message is the compiler's or the tracer's own."""

    message: str
    stage: str
    """``place`` (devices, their mesh, what is partitioned over it), ``import``, ``trace`` or ``compile``."""


Request = Lower | Compile
Answer = Done | Failed

_METADATA = re.compile(r',? metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}')
_ATTRIBUTES = re.compile(r', frontend_attributes=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_ALLOCATION = re.compile(r"(?m)^(?=allocation \d+:)")
_FAST_ALLOCATION = re.compile(r"allocation \d+: size \d+, color [1-9]\d*,")


def main(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Serve requests until there are no more."""
    lowered: Any = None
    for line in requests:
        request = msgspec.json.decode(line, type=Request)
        began, processor = time.monotonic(), time.process_time()
        stage = "compile"
        answer: Answer
        try:
            if isinstance(request, Lower):
                stage = "place"
                devices = _devices(request)
                mesh = request.workload.mesh and build_mesh(request.workload.mesh, devices)
                stage = "import"
                loaded = _load(request.workload, devices, mesh)
                stage = "trace"
                lowered = _lowered(*loaded, devices, mesh)
                answer = Done(hashlib.sha256(lowered.as_text().encode()).hexdigest())
            else:
                with Shortcut(request, partial(_say_last, answers, began, processor)) as dump:
                    _compile(lowered, request, dump)
                answer = Done()
        except (Exception, SystemExit) as error:
            # A module may end its interpreter when it is imported; the answer says so.
            answer = Failed(_message(error, stage), "place" if isinstance(error, UsageError) else stage)
        if isinstance(answer, Done):
            answer = _measured(answer, began, processor)
        _say(answers, answer)


def _measured(answer: Done, began: float, processor: float) -> Done:
    return msgspec.structs.replace(
        answer,
        processor_seconds=time.process_time() - processor,
        seconds=time.monotonic() - began,
        resident_bytes=_resident_bytes(),
    )


def _say_last(answers: IO[bytes], began: float, processor: float) -> None:
    _say(answers, _measured(Done(ended=True), began, processor))


def _say(answers: IO[bytes], answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def _message(error: BaseException, stage: str) -> str:
    text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    if stage in ("place", "compile") or isinstance(error, UsageError):
        return text
    # Where in the user's own code it went wrong.
    foreign = (os.path.dirname(__file__), sysconfig.get_path("stdlib"), "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    own = [frame for frame in frames if not frame.filename.startswith(foreign)]
    return f"{own[-1].filename}:{own[-1].lineno}: {text}" if own else text


def _resident_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _devices(request: Lower) -> Any:
    from jax.experimental import topologies

    config = {"chip_config_name": request.config} if request.config else {}
    return topologies.get_topology_desc(topology_name=request.topology, platform="tpu", **config).devices


def _load(workload: Workload, devices: Any, mesh: Any) -> tuple[Any, Any, tuple[int, ...], Any]:
    """Function, arguments, donated positions, and shardings of the results."""
    sys.path[:0] = [path for path in workload.search_path if path not in sys.path]
    if workload.pickled:
        import base64

        function, arguments, outputs = loads(base64.b64decode(workload.pickled), devices)
        return function, arguments, workload.donated, outputs
    found, given = _attribute(workload.reference), {} if mesh is None else {"mesh": mesh}
    donated, arguments = workload.donated, workload.shapes
    if workload.factory:
        found, arguments, named = found(*workload.factory_arguments, **given)
        donated = tuple(donated or ((named,) if isinstance(named, int) else named))
    elif workload.arguments:
        arguments = _attribute(workload.arguments)
        arguments = arguments(**given) if callable(arguments) else arguments
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    outputs = [_sharding(each, devices, mesh) for each in workload.outputs]
    return found, tuple(arguments), donated, tuple(outputs) if len(outputs) > 1 else next(iter(outputs), None)


def _attribute(reference: str) -> Any:
    module, _, path = reference.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _lowered(function: Any, arguments: Any, donated: tuple[int, ...], outputs: Any, devices: Any, mesh: Any) -> Any:
    import jax

    shapes, own = shapes_of(arguments)
    if mesh is None and own is not None:
        mesh = build_mesh(own, devices)
    struct: Any = jax.ShapeDtypeStruct
    placed = jax.tree.map(
        lambda leaf: struct(leaf.dims, leaf.dtype, sharding=_sharding(leaf.partition, devices, mesh)),
        shapes,
        is_leaf=lambda leaf: isinstance(leaf, ArrayShape),
    )
    chosen = {} if outputs is None else {"out_shardings": outputs}
    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        return jax.jit(function, donate_argnums=donated, keep_unused=False, **chosen).lower(*placed)


def _sharding(partition: Partition | None, devices: Any, mesh: Any) -> Any:
    import jax

    if mesh is None:
        return jax.sharding.SingleDeviceSharding(devices[0])
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(axes or None for axes in partition or ())))


def _compile(lowered: Any, request: Compile, dump: str) -> None:
    folder = Path(request.folder)
    options = {**request.options, **dict(zip(DUMPED, (dump, True), strict=True))}
    compiled = lowered.compile(compiler_options=options)
    _write(folder / COMPILED, slim(compiled.as_text()))
    before = _dumped(dump, "after_optimizations_before_buffer_assignment")
    assignment = _dumped(dump, "after_optimizations-buffer-assignment")
    _write(folder / PROGRAM, slim(before))
    _write(folder / ASSIGNED, slim(_dumped(dump, "after_optimizations")))
    _write(folder / OFFSETS, fast_allocations(assignment))


def assignment_digest(folder: str | Path) -> str:
    """Digest of the module as the assignment left it, of a result's folder."""
    return hashlib.sha256(gzip.decompress((Path(folder) / ASSIGNED).read_bytes())).hexdigest()


class Shortcut:
    """The folder of dumps of a compile, watched: nine tenths of a compile come after the assignment.

    Where it is one that is known, the known result is copied, ``finish`` says so, and the process ends.
    """

    def __init__(self, request: Compile, finish: Callable[[], None]):
        self._request = request
        self._finish = finish
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._dump = ""

    def __enter__(self) -> str:
        self._dump = tempfile.mkdtemp(dir=self._request.folder, prefix="dump.")
        if self._request.known:
            threading.Thread(target=self._watch, daemon=True).start()
        return self._dump

    def __exit__(self, *error: object) -> None:
        self._over.set()
        with self._lock:
            shutil.rmtree(self._dump, ignore_errors=True)

    def _watch(self) -> None:
        size = 0
        while not self._over.wait(_WATCH):
            found = max((path.stat().st_size for path in Path(self._dump).glob("*.after_optimizations.txt")), default=0)
            if found == size:
                continue
            size = found
            known = self._request.known.get(
                hashlib.sha256(slim(_dumped(self._dump, "after_optimizations")).encode()).hexdigest()
            )
            if known is None:
                continue
            with self._lock:
                if not self._over.is_set():
                    for name in (PROGRAM, ASSIGNED, OFFSETS, COMPILED):
                        if (Path(known) / name).exists():
                            shutil.copy(Path(known) / name, self._request.folder)
                    self._finish()
                    os._exit(0)


def _dumped(folder: str, stage: str) -> str:
    """The largest module of a stage: small ones are helpers that the compiler makes on the way."""
    found = sorted(Path(folder).glob(f"*.{stage}.txt"), key=lambda path: path.stat().st_size)
    if not found:
        raise RuntimeError(f"this libtpu wrote no dump '{stage}', from which the plan is read")
    return found[-1].read_text()


def slim(text: str) -> str:
    """HLO text without source locations, which are half of it."""
    head, _, rest = text.partition("\n")
    start = re.search(r"(?m)^(?:%|ENTRY)", rest)
    return head + "\n" + _ATTRIBUTES.sub("", _METADATA.sub("", rest[start.start() :] if start else rest))


def fast_allocations(assignment: str) -> str:
    """The allocations of a buffer assignment that lie in a memory space of their own."""
    blocks = _ALLOCATION.split(assignment.partition("\n\nHloLiveRange")[0])
    return "".join(block for block in blocks if _FAST_ALLOCATION.match(block))


def _write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), 6, mtime=0))


def _end_with_parent() -> None:
    """End this process once its parent has: a compile cannot be interrupted, and nobody would wait for it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    main(os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb"))
