"""The process that compiles. It alone imports jax; it reads requests and writes answers, one JSON object a line.

Run as ``python -m stowplan.backends.xla.child REQUESTS ANSWERS`` with two inherited file descriptors. First comes a request to
lower (:class:`Lower`), answered by a digest of what is to be compiled; then any number of requests to compile
(:class:`Compile`), each answered when its files are written. A process that is asked for previews (:class:`Preview`) does not
lower: it forks for each of them, since a compile cannot be interrupted but by ending its process. It ends with its requests, or
with its parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import select
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from stowplan.backends.xla.dumps import DUMPED, hbm_bytes, is_assigned, write_assigned, write_compiled
from stowplan.backends.xla.sharding import Partition, build_mesh, loads
from stowplan.backends.xla.workload import ArrayShape, Workload, shapes_of
from stowplan.errors import UsageError

#: What one may say to a compiler: a flag's value.
Option = str | bool | int | float

#: Seconds between looks at what the compiler has written so far.
_WATCH = 0.02


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


class Preview(msgspec.Struct, frozen=True, tag="preview"):
    """Compile to the memory-space assignment and no further: nine tenths of a compile come after it."""

    lower: Lower
    asked: list[Compile]
    jobs: int
    """How many of them side by side."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It worked."""

    digest: str = ""
    processor_seconds: float = 0.0
    seconds: float = 0.0
    resident_bytes: int = 0
    """Most memory that the process has had."""
    hbm_bytes: int = 0
    """What the program has in slow memory at most, where the compiler said it."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It did not; the message is the compiler's or the tracer's own."""

    message: str
    stage: str
    """``place`` (devices, their mesh, what is partitioned over it), ``import``, ``trace``, ``compile``, or ``end`` of the
    process that made a preview."""


class Previewed(msgspec.Struct, frozen=True, tag="previewed"):
    """Answers to a request for previews, in its order."""

    answers: list[Done | Failed]


Request = Lower | Compile | Preview
Answer = Done | Failed | Previewed


def main(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Serve requests until there are no more."""
    lowered: Any = None
    for line in requests:
        request = msgspec.json.decode(line, type=Request)
        if isinstance(request, Preview):
            _say(answers, Previewed(_previews(request)))
            continue
        stage = _Stage()
        began, processor = time.monotonic(), time.process_time()
        answer: Answer
        try:
            if isinstance(request, Lower):
                lowered, digest = _lower(request, stage)
                answer = Done(digest)
            else:
                answer = Done(hbm_bytes=_compile(lowered, request))
        except (Exception, SystemExit) as error:
            # A module may end its interpreter when it is imported; the answer says so.
            answer = _failed(error, stage)
        if isinstance(answer, Done):
            answer = _measured(answer, began, processor)
        _say(answers, answer)


@dataclass
class _Stage:
    """How far a request has come."""

    name: str = "compile"


def _lower(request: Lower, stage: _Stage) -> tuple[Any, str]:
    """What is to be compiled, and its digest."""
    stage.name = "place"
    devices = _devices(request)
    mesh = request.workload.mesh and build_mesh(request.workload.mesh, devices)
    stage.name = "import"
    loaded = load(request.workload, devices, mesh)
    stage.name = "trace"
    lowered = _lowered(*loaded, devices, mesh)
    stage.name = "compile"
    return lowered, hashlib.sha256(lowered.as_text().encode()).hexdigest()


def _previews(request: Preview) -> list[Done | Failed]:
    """A fork for each; jax is imported once, libtpu, which starts threads, in the forks alone."""
    importlib.import_module("jax.numpy")
    importlib.import_module("jax.experimental.topologies")

    waiting, running = list(enumerate(request.asked)), dict[int, tuple[int, int]]()
    answers: dict[int, Done | Failed] = {}
    while waiting or running:
        while waiting and len(running) < request.jobs:
            number, asked = waiting.pop(0)
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                _preview(request.lower, asked, writer)
            os.close(writer)
            running[reader] = number, child
        for reader in select.select([*running], [], [])[0]:
            number, child = running.pop(reader)
            with os.fdopen(reader, "rb") as said:
                answer = said.read()
            os.waitpid(child, 0)
            answers[number] = _kept(request.asked[number], answer)
    return [answers[number] for number in range(len(request.asked))]


def _kept(asked: Compile, answer: bytes) -> Done | Failed:
    """A preview's answer, after its process has ended, and the files that go with it."""
    result = msgspec.json.decode(answer, type=Done | Failed) if answer else Failed("the compiling process ended", "end")
    try:
        if isinstance(result, Done):
            write_assigned(_dump_of(asked), Path(asked.folder))
            result = msgspec.structs.replace(result, hbm_bytes=hbm_bytes(_dump_of(asked)))
    except Exception as error:
        result = Failed(_message(error, "compile"), "compile")
    shutil.rmtree(_dump_of(asked), ignore_errors=True)
    return result


def _dump_of(asked: Compile) -> Path:
    """Where a preview has its dumps; its compiler writes until the process has ended."""
    return Path(asked.folder) / "dump"


def _preview(lower: Lower, asked: Compile, writer: int) -> NoReturn:
    """Compile in a process of its own, which ends as soon as the assignment is written down, or the compile has failed."""
    _end_with_parent()
    began, said, stage = time.monotonic(), threading.Lock(), _Stage()

    def end(answer: Done | Failed) -> NoReturn:
        said.acquire()
        os.write(writer, msgspec.json.encode(answer))
        os._exit(0)

    def fail(error: BaseException) -> NoReturn:
        end(_failed(error, stage))

    def run() -> None:
        try:
            lowered.compile(compiler_options=_options(asked, str(dump)))
        except Exception as error:
            # What fails after the assignment is none of a preview's business.
            if not is_assigned(dump):
                fail(error)

    try:
        lowered, digest = _lower(lower, stage)
        dump = _dump_of(asked)
        dump.mkdir()
        compiling = threading.Thread(target=run, daemon=True)
        compiling.start()
        while not is_assigned(dump) and compiling.is_alive():
            time.sleep(_WATCH)
        # Code generation has begun: what else is to be done is done when this process has ended.
        end(_measured(Done(digest), began, 0.0))
    except (Exception, SystemExit) as error:
        fail(error)


def _measured(answer: Done, began: float, processor: float) -> Done:
    return msgspec.structs.replace(
        answer,
        processor_seconds=time.process_time() - processor,
        seconds=time.monotonic() - began,
        resident_bytes=_resident_bytes(),
    )


def _say(answers: IO[bytes], answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def _failed(error: BaseException, stage: _Stage) -> Failed:
    return Failed(_message(error, stage.name), "place" if isinstance(error, UsageError) else stage.name)


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


def load(workload: Workload, devices: Any, mesh: Any) -> tuple[Any, Any, tuple[int, ...], Any]:
    """Function, arguments, donated positions, and shardings of the results."""
    sys.path[:0] = [path for path in workload.search_path if path not in sys.path]
    if workload.pickled:
        import base64

        function, arguments, outputs = loads(base64.b64decode(workload.pickled), devices)
        return function, arguments, workload.donated, outputs
    function, given = _attribute(workload.reference), {} if mesh is None else {"mesh": mesh}
    donated, arguments = workload.donated, workload.shapes
    if workload.factory_arguments is not None:
        function, arguments, named = function(*workload.factory_arguments, **given)
        donated = tuple(donated or ((named,) if isinstance(named, int) else named))
    elif workload.arguments:
        arguments = _attribute(workload.arguments)
        arguments = arguments(**given) if callable(arguments) else arguments
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    outputs = [_sharding(partition, devices, mesh) for partition in workload.outputs]
    return function, tuple(arguments), donated, tuple(outputs) if len(outputs) > 1 else next(iter(outputs), None)


def _attribute(reference: str) -> Any:
    module, _, path = reference.partition(":")
    value: Any = importlib.import_module(module)
    for name in path.split("."):
        value = getattr(value, name)
    return value


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


def _options(request: Compile, dump: str) -> dict[str, Option]:
    return {**request.options, **dict(zip(DUMPED, (dump, True), strict=True))}


def _compile(lowered: Any, request: Compile) -> int:
    """Write the files; what the program has in slow memory, bytes."""
    folder = Path(request.folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix="dump.") as dump:
        compiled = lowered.compile(compiler_options=_options(request, dump))
        write_compiled(compiled.as_text(), folder)
        write_assigned(Path(dump), folder)
        return hbm_bytes(Path(dump))


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
