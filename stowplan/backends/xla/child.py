"""The child process that compiles for the tuner. It imports jax, so that its parent need not.

Run it as ``python -m stowplan.backends.xla.child REQUESTS ANSWERS`` with the numbers of two inherited file descriptors.
Requests and answers are JSON objects, one on each line. The first request lowers the function (:class:`Lower`); its answer is a
digest of the lowered program. Any number of requests to compile follow (:class:`Compile`); each is answered when its files are
written. For previews (:class:`Preview`) the process does not lower the function itself, but forks once for each preview,
because a compilation can only be interrupted by ending its process. The process ends when there are no more requests, or when
its parent ends.

*libtpu* is the compiler for TPUs. XLA's *memory-space assignment* decides which values are in fast memory.
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

#: The value of a compiler option.
Option = str | bool | int | float

#: Seconds between checks of the files that the compiler has written.
_POLL_SECONDS = 0.02


class Lower(msgspec.Struct, frozen=True, tag="lower"):
    """A request to import, trace and lower a function."""

    workload: Workload
    """The function, with the shapes of its arguments."""
    topology: str
    """Name of the topology of devices, for jax."""
    config: str = ""
    """Configuration of the chip; empty for libtpu's default."""


class Compile(msgspec.Struct, frozen=True, tag="compile"):
    """A request to compile the lowered program, and to write the files of the result into a folder.

    :mod:`stowplan.backends.xla.dumps` describes these four files.
    """

    options: dict[str, Option]
    """Compiler options."""
    folder: str
    """Path of an existing folder."""


class Preview(msgspec.Struct, frozen=True, tag="preview"):
    """A request for previews: compilations that end right after memory-space assignment, before most of the work."""

    lower: Lower
    """How to lower the function that is compiled."""
    asked: list[Compile]
    """The options and the folder of each preview."""
    jobs: int
    """How many previews run at the same time."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The answer to a request that succeeded."""

    digest: str = ""
    """Digest of the lowered program."""
    processor_seconds: float = 0.0
    """CPU time of the request, in seconds."""
    seconds: float = 0.0
    """Elapsed time of the request, in seconds."""
    resident_bytes: int = 0
    """Peak resident memory of the process, in bytes."""
    hbm_bytes: int = 0
    """The most bytes that the program has in slow memory; 0 if the compiler did not report it."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The answer to a request that failed."""

    message: str
    """The message of the compiler or of the tracer."""
    stage: str
    """The stage that failed: ``place`` (devices, their mesh, and partitions over it), ``import``, ``trace``, ``compile``, or
    ``end`` if the process of a preview ended without an answer."""


class Previewed(msgspec.Struct, frozen=True, tag="previewed"):
    """The answers to a request for previews, in the order of the request."""

    answers: list[Done | Failed]
    """An answer for each preview."""


Request = Lower | Compile | Preview
Answer = Done | Failed | Previewed


def main(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Serve requests from one stream and write the answers to the other, until there are no more requests."""
    lowered: Any = None
    for line in requests:
        request = msgspec.json.decode(line, type=Request)
        if isinstance(request, Preview):
            _send(answers, Previewed(_previews(request)))
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
            # A module may call ``sys.exit`` when it is imported, which is reported like an error.
            answer = _failed(error, stage)
        if isinstance(answer, Done):
            answer = _measured(answer, began, processor)
        _send(answers, answer)


@dataclass
class _Stage:
    """The current stage of a request (``name``), for error messages; :class:`Failed` lists the stages."""

    name: str = "compile"


def _lower(request: Lower, stage: _Stage) -> tuple[Any, str]:
    """Lowers a function; returns the lowered program and its digest."""
    stage.name = "place"
    devices = _devices(request)
    mesh = request.workload.mesh and build_mesh(request.workload.mesh, devices)
    stage.name = "import"
    loaded = load(request.workload, devices, mesh)
    stage.name = "trace"
    lowered = _lower_function(*loaded, devices, mesh)
    stage.name = "compile"
    return lowered, hashlib.sha256(lowered.as_text().encode()).hexdigest()


def _previews(request: Preview) -> list[Done | Failed]:
    """Makes previews, each in a fork. Jax is imported before forking; libtpu, which starts threads, only in the forks."""
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
            with os.fdopen(reader, "rb") as stream:
                answer = stream.read()
            os.waitpid(child, 0)
            answers[number] = _answer_of_preview(request.asked[number], answer)
    return [answers[number] for number in range(len(request.asked))]


def _answer_of_preview(asked: Compile, answer: bytes) -> Done | Failed:
    """Returns the answer of a preview whose process has ended; writes the files of the preview."""
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
    """Returns the folder for a preview's dumps, into which the compiler writes until its process has ended."""
    return Path(asked.folder) / "dump"


def _preview(lower: Lower, asked: Compile, writer: int) -> NoReturn:
    """Compile in a forked process, which ends once the memory-space assignment is dumped or the compilation has failed."""
    _end_with_parent()
    began, answer_lock, stage = time.monotonic(), threading.Lock(), _Stage()

    def end(answer: Done | Failed) -> NoReturn:
        answer_lock.acquire()
        os.write(writer, msgspec.json.encode(answer))
        os._exit(0)

    def fail(error: BaseException) -> NoReturn:
        end(_failed(error, stage))

    def run() -> None:
        try:
            lowered.compile(compiler_options=_options(asked, str(dump)))
        except Exception as error:
            # A failure after the memory-space assignment does not matter for a preview.
            if not is_assigned(dump):
                fail(error)

    try:
        lowered, digest = _lower(lower, stage)
        dump = _dump_of(asked)
        dump.mkdir()
        compiling = threading.Thread(target=run, daemon=True)
        compiling.start()
        while not is_assigned(dump) and compiling.is_alive():
            time.sleep(_POLL_SECONDS)
        # Code generation has begun. The parent reads the dumps after this process has ended.
        end(_measured(Done(digest), began, 0.0))
    except (Exception, SystemExit) as error:
        fail(error)


def _measured(answer: Done, began: float, processor: float) -> Done:
    """Returns the answer with times since the given moments, and with the peak memory of this process."""
    return msgspec.structs.replace(
        answer,
        processor_seconds=time.process_time() - processor,
        seconds=time.monotonic() - began,
        resident_bytes=_resident_bytes(),
    )


def _send(answers: IO[bytes], answer: Answer) -> None:
    """Write an answer as one line."""
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def _failed(error: BaseException, stage: _Stage) -> Failed:
    """Returns the answer for an error in a stage.

    A UsageError is about devices, meshes or partitions, and has the stage ``place``.
    """
    return Failed(_message(error, stage.name), "place" if isinstance(error, UsageError) else stage.name)


def _message(error: BaseException, stage: str) -> str:
    """Returns the text of an error; for an error in the user's code it begins with the file and the line."""
    text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    if stage in ("place", "compile") or isinstance(error, UsageError):
        return text
    # The last frame that is neither in this package nor in the standard library is in the user's code.
    foreign = (os.path.dirname(__file__), sysconfig.get_path("stdlib"), "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    user_frames = [frame for frame in frames if not frame.filename.startswith(foreign)]
    return f"{user_frames[-1].filename}:{user_frames[-1].lineno}: {text}" if user_frames else text


def _resident_bytes() -> int:
    """Returns the peak resident memory of this process, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _devices(request: Lower) -> Any:
    """Descriptions of the devices of the topology, for which libtpu compiles without any device."""
    from jax.experimental import topologies

    config = {"chip_config_name": request.config} if request.config else {}
    return topologies.get_topology_desc(topology_name=request.topology, platform="tpu", **config).devices


def load(workload: Workload, devices: Any, mesh: Any) -> tuple[Any, Any, tuple[int, ...], Any]:
    """Loads a workload; returns its function, its arguments, positions of donated arguments, and shardings of the results.

    Errors of the user's code are raised, and ImportError or AttributeError if a reference names nothing.

    Parameters
    ----------
    workload
        The workload.
    devices
        Descriptions of the devices for which it is compiled.
    mesh
        The mesh of these devices; None without a mesh.
    """
    sys.path[:0] = [path for path in workload.search_path if path not in sys.path]
    if workload.pickled:
        import base64

        function, arguments, outputs = loads(base64.b64decode(workload.pickled), devices)
        return function, arguments, workload.donated, outputs
    function, keywords = _attribute(workload.reference), {} if mesh is None else {"mesh": mesh}
    donated, arguments = workload.donated, workload.shapes
    if workload.factory_arguments is not None:
        function, arguments, of_factory = function(*workload.factory_arguments, **keywords)
        donated = tuple(donated or ((of_factory,) if isinstance(of_factory, int) else of_factory))
    elif workload.arguments:
        arguments = _attribute(workload.arguments)
        arguments = arguments(**keywords) if callable(arguments) else arguments
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    outputs = [_sharding(partition, devices, mesh) for partition in workload.outputs]
    return function, tuple(arguments), donated, tuple(outputs) if len(outputs) > 1 else next(iter(outputs), None)


def _attribute(reference: str) -> Any:
    """Returns the attribute that ``module:attribute`` names."""
    module, _, path = reference.partition(":")
    value: Any = importlib.import_module(module)
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _lower_function(function: Any, arguments: Any, donated: tuple[int, ...], outputs: Any, devices: Any, mesh: Any) -> Any:
    """Traces and lowers a function for these devices; ``outputs`` are shardings of its results, None to let XLA choose."""
    import jax

    shapes, mesh_of_arguments = shapes_of(arguments)
    if mesh is None and mesh_of_arguments is not None:
        mesh = build_mesh(mesh_of_arguments, devices)
    struct: Any = jax.ShapeDtypeStruct
    placed = jax.tree.map(
        lambda leaf: struct(leaf.dims, leaf.dtype, sharding=_sharding(leaf.partition, devices, mesh)),
        shapes,
        is_leaf=lambda leaf: isinstance(leaf, ArrayShape),
    )
    shardings = {} if outputs is None else {"out_shardings": outputs}
    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        return jax.jit(function, donate_argnums=donated, keep_unused=False, **shardings).lower(*placed)


def _sharding(partition: Partition | None, devices: Any, mesh: Any) -> Any:
    """Returns the sharding of an array over a mesh; without a mesh, the first device."""
    import jax

    if mesh is None:
        return jax.sharding.SingleDeviceSharding(devices[0])
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(axes or None for axes in partition or ())))


def _options(request: Compile, dump: str) -> dict[str, Option]:
    """Returns the options of a request, and the options that make the compiler write its dumps into a folder."""
    return {**request.options, **dict(zip(DUMPED, (dump, True), strict=True))}


def _compile(lowered: Any, request: Compile) -> int:
    """Compile and write the files; returns the most bytes that the program has in slow memory."""
    folder = Path(request.folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix="dump.") as dump:
        compiled = lowered.compile(compiler_options=_options(request, dump))
        write_compiled(compiled.as_text(), folder)
        write_assigned(Path(dump), folder)
        return hbm_bytes(Path(dump))


def _end_with_parent() -> None:
    """End this process when its parent has ended, because nothing else would stop a running compilation."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    main(os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb"))
