"""Feeds damaged files to every reader: ``python -m benchmarks.attacks.fuzz_readers --seconds 60 --seed 1 --save failures``.

A reader may accept a file or refuse it with one line; anything else is a failure: another error, a message of several lines or
of kilobytes, more CPU time than a small file can need. Prints a table of readers, mutants, refusals, files accepted and
failures; failing files are kept in the folder given, each beside a text that says what happened.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import json
import pickle
import random
import resource
import shutil
import signal
import sqlite3
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import stowplan
from benchmarks.lib import fuzz_inputs
from benchmarks.lib.damage import Mutator
from benchmarks.lib.fuzz_inputs import INPUTS
from benchmarks.lib.places import EXAMPLES, ROOT
from benchmarks.llama.architectures import Shape
from benchmarks.llama.gguf_files import write_gguf
from stowplan import files, kinds
from stowplan.backends.emit import emit
from stowplan.backends.llama.calibration import read_bench
from stowplan.backends.llama.lowering import Request, problem_of
from stowplan.backends.llama.machine import machine_of, read_machine
from stowplan.backends.llama.model import read_model
from stowplan.backends.tflm.write import with_offsets
from stowplan.errors import InputError, UsageError
from stowplan.frontends.dfg.op_table import load_op_table
from stowplan.frontends.hlo import read_program
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input, read_plan
from stowplan.frontends.tflite.model import read_tflite
from stowplan.frontends.xla_plan import import_xla_plan
from stowplan.hardware.costs.measured import read_measurements
from stowplan.hardware.costs.signatures.predictor import SHIPPED, Predictor
from stowplan.hardware.inferentia.target import load_target as load_bank_target
from stowplan.hardware.memories import load_target as load_memory_target
from stowplan.hardware.nnp_i.target import load_target as load_tier_target
from stowplan.hardware.se import load_machine
from stowplan.hardware.targets import load_target
from stowplan.kernel.given import read_hint
from stowplan.kernel.kind import kind as kind_named
from stowplan.kernel.kind import kind_of
from stowplan.learned_guidance.memory_mapping.guide import guide
from stowplan.models.hint import of_values
from stowplan.portfolio.batch.records import Journal, Settings, read_records
from stowplan.portfolio.batch.run import run_batch
from stowplan.portfolio.batch.task import find_inputs
from stowplan.report.snapshot import lines

DATA = ROOT / "tests" / "data"

#: A small program, and where XLA has put what.
CHAIN, CHAIN_PLAN, CHAIN_OFFSETS = (DATA / "xla_plan" / f"chain{part}.txt" for part in (".hlo", ".plan.hlo", ".plan.fastmem"))

#: Characters of a message, file name left out, beyond which nobody reads it.
LONGEST_MESSAGE = 1000
#: CPU seconds that a mutant of a small file may take.
MOST_SECONDS = 10.0


class TooSlowError(BaseException):
    """A reader took longer than it may; no Exception, so that no reader takes it for one of its own."""


@dataclass(frozen=True)
class Reader:
    """One way into the package for a user's file."""

    name: str
    suffix: str
    originals: Callable[[], list[bytes]]
    """Valid files, as text where the format has one."""
    read: Callable[[Path], Any]
    pack: Callable[[bytes], bytes] = lambda data: data
    """From mutated text to the file."""


def _reread(problem: Any) -> Any:
    """A problem must survive its own file."""
    kind = kind_of(problem)
    again = kind.problem.decode(files.encode(problem))
    if again.digest != problem.digest:
        raise AssertionError("the problem is another one after it was written and read")
    return problem


#: Of each kind a small input, and the target that it is read for.
SMALL = {
    "memory_mapping": (DATA / "hlo" / "loop.hlo.txt", "tpu-v4"),
    "packing": (EXAMPLES / "buffers.csv", None),
    "tier_placement": (INPUTS / "small.layers.json", "nnp-i"),
    "bank_mapping": (INPUTS / "graph.hlo.txt", "inferentia"),
    "modulo_scheduling": (EXAMPLES / "fir.dfg.json", "se"),
    "operator_order": (EXAMPLES / "cells.graph.json", None),
    "banked_packing": (EXAMPLES / "banks.json", None),
    "rematerialization": (EXAMPLES / "training.remat.json", None),
    "llm_placement": (EXAMPLES / "llm.json", None),
}


#: A machine file of 'stowplan llm', and what 'llama-bench -o json' printed.
DEVICES = """
[host]
free_mib = 60000
weight_gbs = 40.0

[[device]]
name = "CUDA0"
free_mib = 11800
margin_mib = 1024
compute_mib = 800
weight_gbs = 288.0
cache_gbs = 250.0
tflops = 25.0
link_us = 12.5
copies_weights = true

[calibration]
error = 0.05
"""
BENCH = [
    {"devices": "none", "n_gpu_layers": 99, "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 4.655},
    {
        "devices": "CUDA0/CUDA1",
        "n_gpu_layers": 32,
        "tensor_split": "3.00/1.00",
        "n_prompt": 0,
        "n_gen": 32,
        "n_depth": 9,
        "avg_ts": 3.6,
    },
    {
        "devices": "CUDA0",
        "n_gpu_layers": 99,
        "tensor_buft_overrides": "ffn_(down|up)\\.weight=CPU",
        "n_prompt": 0,
        "n_gen": 32,
        "avg_ts": 2.566,
    },
]


@cache
def _problem(kind: str) -> Any:
    """A small problem of a kind."""
    return stowplan.read(*SMALL[kind])


@cache
def _plan(kind: str) -> Any:
    """Some plan for the problem of a kind."""
    problem = _problem(kind)
    if kind == "modulo_scheduling":
        from stowplan.models.modulo_scheduling.cpsat.solve import solve

        return solve(problem, time_limit=20).plan
    if kind == "packing":
        from stowplan.models.packing.plan import Plan

        ends = [sum(buffer.size for buffer in problem.buffers[: at + 1]) for at in range(len(problem.buffers))]
        offsets = tuple(end - buffer.size for end, buffer in zip(ends, problem.buffers, strict=True))
        return Plan(problem=problem.digest, objective=ends[-1], offsets=offsets, buffers=problem.buffers)
    return next(iter(kind_named(kind).initial(problem).values()))


def _hint(kind: str) -> Any:
    """A hint that is the plan."""
    return of_values(_problem(kind), {}, confidence=(), plan=_plan(kind), source="fuzz")


def _read_hint(path: Path, kind: str) -> Any:
    return read_hint(path, _problem(kind))


def _encoded(make: Callable[[str], Any], kind: str) -> list[bytes]:
    """The file of what is made for a kind."""
    return [files.encode(make(kind))]


def _cached(path: Path) -> Any:
    """A damaged cache costs a remark; the result is the same."""
    problem, folder = _problem("packing"), path.parent / "cache"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(path, folder / "plans.sqlite")
    result = stowplan.solve(problem, time_limit=20.0, candidates="heuristic", deterministic=True, cache=folder)
    if result.plan is None or result.objective != _first_cached()[1]:
        raise AssertionError(f"the result with this cache is {result.objective}, without {_first_cached()[1]}")
    if any("cache" in warning for warning in result.warnings):
        raise InputError("the cache is damaged")
    return result


@cache
def _first_cached() -> tuple[bytes, int | None]:
    """A cache with one result, and its objective."""
    with TemporaryDirectory() as folder:
        result = stowplan.solve(_problem("packing"), time_limit=20.0, candidates="heuristic", deterministic=True, cache=folder)
        database = sqlite3.connect(Path(folder) / "plans.sqlite")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        return (Path(folder) / "plans.sqlite").read_bytes(), result.objective


def _arrays() -> list[bytes]:
    """Each array of the shipped guide after its name: what a mutant of it is packed into the archive again."""
    with zipfile.ZipFile(guide.SHIPPED) as archive:
        return [name.encode() + b"\n" + archive.read(name) for name in archive.namelist()]


def _with_array(text: bytes) -> bytes:
    name, _, data = text.partition(b"\n")
    out = io.BytesIO()
    with zipfile.ZipFile(guide.SHIPPED) as archive, zipfile.ZipFile(out, "w") as changed:
        for other in archive.namelist():
            changed.writestr(other, data if other.encode() == name else archive.read(other))
    return out.getvalue()


@cache
def _record(journal: bool = False) -> bytes:
    """The record of a small batch, or its journal."""
    with TemporaryDirectory() as folder:
        items = find_inputs([EXAMPLES / "buffers.csv"])
        list(run_batch(items, folder, Settings(time_limit=5.0, candidates=("heuristic",))))
        name = "results.jsonl" if journal else next(iter(read_records(folder))) + ".result.json"
        return (Path(folder) / name).read_bytes()


def _journal(path: Path) -> Any:
    with closing(Journal(path)) as journal:
        return journal


def _records(path: Path) -> Any:
    folder = path.parent / "records"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "x.result.json")
    return read_records(folder)


def _checked_plan(path: Path, kind: str) -> Any:
    problem = _problem(kind)
    plan = read_plan(path, problem)
    its_kind = kind_of(problem)
    if type(plan) is type(_plan(kind)):
        its_kind.verify(problem, plan)
    return plan


def _cycles(path: Path, planned: bool) -> Any:
    pair = (EXAMPLES / "alexnet_inf_b1.hlo.txt.gz", path) if planned else (path, path)
    return stowplan.read(CHAIN, "tpu-v4", cost_model="table", cycles=pair)


def _with_cycles(data: bytes) -> bytes:
    lines = data.split(b"\n")
    note = b', backend_config={"estimated_cycles":"120"}'
    return b"\n".join(line + note if b" = " in line and b"parameter(" not in line else line for line in lines)


@cache
def _chain() -> tuple[Any, Any]:
    return stowplan.read(CHAIN, "tpu-v4", stalls="allowed"), read_program(CHAIN)


def _xla_plan(path: Path, offsets: bool) -> Any:
    problem, program = _chain()
    return import_xla_plan(problem, program, CHAIN_PLAN if offsets else path, path if offsets else CHAIN_OFFSETS)


def _onnx_text() -> list[bytes]:
    from google.protobuf import text_format

    models = (fuzz_inputs.onnx_model(), fuzz_inputs.onnx_shapes_model())
    return [text_format.MessageToString(model).encode() for model in models]


def _onnx_bytes(text: bytes) -> bytes:
    """The model that a text describes; where it is none, the original with bytes changed where the text has changed."""
    import onnx
    from google.protobuf import text_format

    try:
        return bytes(text_format.Parse(text.decode(errors="replace"), onnx.ModelProto()).SerializeToString())
    except Exception:  # protobuf's own errors, and those of numbers out of range
        whole = bytearray(fuzz_inputs.onnx_model().SerializeToString())
        chance = random.Random(len(text))
        for _ in range(3):
            whole[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        return bytes(whole)


def _pickled(text: bytes) -> bytes:
    """The pickle of a JSON value; of the text itself where it is none."""
    try:
        return pickle.dumps(json.loads(text))
    except (ValueError, RecursionError):
        return pickle.dumps(text)


def _explained(path: Path) -> Any:
    """The problem of a memory snapshot, of which all was told that is known of it."""
    opened = open_input(path, ReadOptions())
    if opened.findings is not None:
        opened.findings.plans()
        lines(opened.findings.details(1 << 20, 1 << 19)["snapshot"])
    return opened.problem


def _tflite_models() -> list[bytes]:
    """A model, and it with offsets of some tensors, two of which share bytes."""
    model = read_tflite(EXAMPLES / "branches.tflite")
    return [model.data, with_offsets(model.data, [0, -1, 96, 128, *[-1] * 6, 4096])]


def _language_models() -> list[bytes]:
    """The headers of two tiny models, one of them a mixture of experts. Nothing but the header is read."""
    found = []
    with TemporaryDirectory() as folder:
        for shape in (
            Shape("llama", 2, 32, 2, 1, 32, 64, 64, 512, weights="Q8_0", larger="Q8_0"),
            Shape("qwen3moe", 2, 32, 2, 1, 32, 64, 64, 512, 4, 2, 32, has_qk_norm=True, weights="Q8_0", larger="Q8_0"),
        ):
            path = Path(folder) / f"{shape.architecture}.gguf"
            write_gguf(path, shape.metadata("small"), [*shape.tensors()])
            # What was written as weights are zeros.
            found.append(path.read_bytes().rstrip(b"\0") + bytes(8))
    return found


def _placement(path: Path) -> Any:
    """The problem of a model on a machine with one device."""
    device = {"name": "CUDA0", "free_mib": 500, "weight_gbs": 288.0, "tflops": 25.0}
    machine = machine_of({"host": {"free_mib": 900, "weight_gbs": 40.0, "tflops": 0.3}, "device": [device]}, "small")
    return problem_of(read_model(path), machine, Request(256, 100, 20))


def _as_target(path: Path, source: Path) -> Any:
    """A target file of any sort, given to a program: told apart by what it says, as the command line does."""
    return stowplan.read(source, path)


def _policy_file(config: bytes | None = None) -> bytes:
    """The policy that comes with the package, perhaps with another configuration in it."""
    import torch

    data = (resources.files("stowplan.learned_guidance") / "checkpoints" / "mmap_muzero.pt").read_bytes()
    if config is None:
        return data
    values = torch.load(io.BytesIO(data), weights_only=True)
    stream = io.BytesIO()
    torch.save(values | {"config": config.decode(errors="replace")}, stream)
    return stream.getvalue()


def _policy_config() -> list[bytes]:
    import torch

    return [str(torch.load(io.BytesIO(_policy_file()), weights_only=True)["config"]).encode()]


def _read_policy(path: Path) -> Any:
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    return Policy.load(path)


def _files(*paths: Path) -> Callable[[], list[bytes]]:
    return lambda: [files.read_bytes(path) for path in paths]


def _shipped(package: str, *names: str) -> Callable[[], list[bytes]]:
    return lambda: [(resources.files(package) / f"{name}.toml").read_bytes() for name in names]


def _reading(target: str | None = None) -> Callable[[Path], Any]:
    """Reads a problem for a target."""
    return lambda path: _reread(stowplan.read(path, target))


def readers(*, policies: bool = False) -> list[Reader]:
    """Every reader there is here. Those of ONNX need onnx; those of policies need torch, which takes seconds to load."""
    calls, graph, links = INPUTS / "calls.hlo.txt", INPUTS / "graph.hlo.txt", INPUTS / "links.dfg.json"
    hlo = [DATA / "hlo" / f"{name}.hlo.txt" for name in ("branches", "cache", "loop", "transfers")]
    banks, tiers = _shipped("stowplan.hardware.inferentia", "inferentia"), _shipped("stowplan.hardware.nnp_i", "nnp-i")
    memories = _shipped("stowplan.hardware.memories", "stm32h743")
    known = [
        Reader("scheduled HLO", ".hlo.txt", _files(calls, *hlo, EXAMPLES / "alexnet_inf_b1.hlo.txt.gz"), _reading("tpu-v4")),
        Reader("unoptimised HLO", ".hlo.txt", _files(graph), _reading("inferentia")),
        Reader("XLA plan", ".plan.hlo.txt", _files(CHAIN_PLAN), partial(_xla_plan, offsets=False)),
        Reader("XLA offsets", ".fastmem.txt", _files(CHAIN_OFFSETS), partial(_xla_plan, offsets=True)),
        Reader(
            "cycles",
            ".hlo.txt",
            lambda: [_with_cycles(files.read_bytes(path)) for path in (CHAIN, CHAIN_PLAN)],
            partial(_cycles, planned=False),
        ),
        Reader("layer file", ".layers.json", _files(INPUTS / "small.layers.json"), _reading("nnp-i")),
        Reader("data-flow JSON", ".json", _files(EXAMPLES / "fir.dfg.json", links), _reading("se")),
        Reader("data-flow DOT", ".dot", _files(DATA / "kernel.dot"), _reading("se")),
        Reader(
            "fixed instructions",
            ".json",
            _files(INPUTS / "fixed.json"),
            lambda path: stowplan.read(EXAMPLES / "fir.dfg.json", "se", fixed=path),
        ),
        Reader("CSV", ".csv", _files(INPUTS / "buffers.csv", EXAMPLES / "buffers.csv"), _reading()),
        Reader("dsa-solver", ".json", _files(INPUTS / "small.dsa.json"), _reading()),
        Reader("graph of operators", ".graph.json", _files(EXAMPLES / "cells.graph.json"), _reading()),
        Reader("graph for banks", ".graph.json", _files(EXAMPLES / "cells.graph.json"), _reading("stm32h743")),
        Reader("graph to compute again", ".hlo.txt", _files(calls, graph, *hlo), _reading("rematerialization")),
        Reader("HLO to order", ".hlo.txt", _files(calls, graph, *hlo), _reading("order")),
        Reader("target TOML", ".toml", _shipped("stowplan.hardware.targets", "teaching", "tpu-v4"), load_target),
        Reader("tier target TOML", ".toml", tiers, partial(_as_target, source=INPUTS / "small.layers.json")),
        Reader("bank target TOML", ".toml", banks, partial(_as_target, source=graph)),
        Reader("machine TOML", ".toml", _files(INPUTS / "ring.toml"), partial(_as_target, source=links)),
        Reader("machine JSON", ".json", lambda: [files.encode(load_machine("mesh-2x2"))], load_machine),
        Reader("tier target alone", ".toml", tiers, load_tier_target),
        Reader("bank target alone", ".toml", banks, load_bank_target),
        Reader("memory target TOML", ".toml", memories, partial(_as_target, source=EXAMPLES / "branches.tflite")),
        Reader("memory target alone", ".toml", memories, load_memory_target),
    ]
    for kind in (registered.name for registered in kinds.registered()):
        name = kind.replace("_", " ")
        known += [
            Reader(f"{name} problem", ".json", partial(_encoded, _problem, kind), _reading()),
            Reader(f"{name} plan", ".json", partial(_encoded, _plan, kind), partial(_checked_plan, kind=kind)),
            Reader(f"{name} hint", ".json", partial(_encoded, _hint, kind), partial(_read_hint, kind=kind)),
        ]
    known += [
        Reader(
            "offsets as a plan",
            ".csv",
            lambda: [emit(_problem("packing"), _plan("packing"), "csv")],
            partial(_checked_plan, kind="packing"),
        ),
        Reader("TensorFlow Lite", ".tflite", _tflite_models, _reading("arena")),
        Reader("TensorFlow Lite to order", ".tflite", _tflite_models, _reading("order")),
        Reader("TensorFlow Lite for banks", ".tflite", _tflite_models, _reading("stm32h743")),
        Reader(
            "memory snapshot",
            ".pickle",
            lambda: [pickle.dumps(fuzz_inputs.snapshot(), protocol) for protocol in (2, 4, 5)],
            lambda path: _reread(_explained(path)),
        ),
        Reader(
            "values of a memory snapshot",
            ".pickle",
            lambda: [json.dumps(fuzz_inputs.snapshot()).encode()],
            lambda path: _reread(_explained(path)),
            _pickled,
        ),
        Reader("op table", ".toml", _shipped("stowplan.frontends.dfg", "own", "cgra"), load_op_table),
        Reader("learned guide", ".npz", lambda: [guide.SHIPPED.read_bytes()], guide.load),
        Reader("arrays of the guide", ".npz", _arrays, guide.load, _with_array),
        Reader("latency predictor", ".npz", lambda: [path.read_bytes() for path in SHIPPED.values()], Predictor.load),
        Reader("GGUF", ".gguf", _language_models, _placement),
        Reader("devices of a machine", ".toml", lambda: [DEVICES.encode()], read_machine),
        Reader(
            "output of llama-bench",
            ".json",
            lambda: [json.dumps(BENCH).encode()],
            lambda path: read_bench(files.read_bytes(path), str(path)),
        ),
        Reader("measurements", ".csv", _files(INPUTS / "measurements.csv"), read_measurements),
        Reader("plan cache", ".sqlite", lambda: [_first_cached()[0]], _cached),
        Reader("batch record", ".json", lambda: [_record()], _records),
        Reader("batch journal", ".jsonl", lambda: [_record(journal=True)], _journal),
    ]
    if importlib.util.find_spec("onnx") is not None:
        for target in ("nnp-i", "inferentia", "order", "stm32h743"):
            known.append(Reader(f"ONNX for {target}", ".onnx", _onnx_text, _reading(target), _onnx_bytes))
    if policies and importlib.util.find_spec("torch") is not None:
        known.append(Reader("policy file", ".pt", lambda: [_policy_file()], _read_policy))
        known.append(Reader("policy configuration", ".pt", _policy_config, _read_policy, _policy_file))
    return known


@dataclass
class Tally:
    """What became of the mutants of one reader."""

    mutants: int = 0
    refused: int = 0
    accepted: int = 0
    failures: int = 0
    slowest: float = 0.0

    def row(self, name: str) -> str:
        """As a row of the table."""
        counts = (self.mutants, self.refused, self.accepted, self.failures)
        return f"| {name} | {' | '.join(map(str, counts))} | {self.slowest:.2f} |"

    def add(self, other: Tally) -> None:
        """Count what became of another reader's mutants, too."""
        self.mutants += other.mutants
        self.refused += other.refused
        self.accepted += other.accepted
        self.failures += other.failures
        self.slowest = max(self.slowest, other.slowest)


@contextmanager
def _cpu_limit(seconds: float | None) -> Iterator[None]:
    """Raise TooSlowError after so many seconds of this process's own CPU time, whatever the load."""
    if seconds is None:
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def judge(reader: Reader, path: Path, seconds: float | None = None) -> str | None:
    """None where a reader accepts a file, ``""`` where it refuses it as it should, else what went wrong."""
    try:
        with _cpu_limit(seconds):
            reader.read(path)
    except (InputError, UsageError) as error:
        message = str(error)
        if "\n" in message or len(message.replace(str(path), "")) > LONGEST_MESSAGE:
            return f"a message of {len(message)} characters: {message[:300]!r}"
        return ""
    except TooSlowError:
        return f"more than {seconds} s of CPU time\n{traceback.format_exc()}"
    except BaseException as error:  # a panic of a native library is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return traceback.format_exc()
    return None


def fuzz(
    reader: Reader, seed: int, folder: Path, *, count: int, until: float, save: Path | None, seconds: float | None
) -> Tally:
    """Mutants of one reader's files, until there are enough or the time is over."""
    mutator, chance, tally = Mutator(seed), random.Random(f"{seed} {reader.name}"), Tally()
    originals = reader.originals()
    path = folder / f"mutant{reader.suffix}"
    for original in originals:
        path.write_bytes(reader.pack(original))
        if (reason := judge(reader, path)) is not None:
            raise AssertionError(f"{reader.name}: the file before any damage is not read: {reason}")
    while tally.mutants < count and time.monotonic() < until:
        text = mutator.mutant(chance.choice(originals))
        data = reader.pack(text)
        if chance.random() < 0.02:
            data = gzip.compress(data, mtime=0)[: chance.choice((10, 40, 10**9))]
        path.write_bytes(data)
        began = time.process_time()
        reason = judge(reader, path, seconds)
        tally.slowest = max(tally.slowest, time.process_time() - began)
        tally.mutants += 1
        tally.accepted += reason is None
        tally.refused += reason == ""
        if reason:
            tally.failures += 1
            if save is not None:
                save.mkdir(parents=True, exist_ok=True)
                stem = f"{reader.name.replace(' ', '_')}-{seed}-{tally.mutants}"
                (save / f"{stem}{reader.suffix}").write_bytes(data)
                (save / f"{stem}.reason.txt").write_text(reason, errors="backslashreplace")
    return tally


def main() -> None:
    """The table."""
    every = readers(policies=True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="in all, shared among the readers")
    parser.add_argument("--count", type=int, default=10**9, help="mutants of each reader, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", default="", help="some of these, by parts of their names, separated by commas: "
                        + "; ".join(reader.name for reader in every))  # fmt: skip
    parser.add_argument("--save", type=Path, help="folder for files that made a reader fail")
    arguments = parser.parse_args()
    wanted = [part.strip() for part in arguments.readers.split(",") if part.strip()]
    chosen = [reader for reader in every if not wanted or any(part in reader.name for part in wanted)]
    # A small file has no business with more memory than this.
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    print("| reader | mutants | refused | accepted | failures | slowest (CPU s) |\n|---|--:|--:|--:|--:|--:|")
    total = Tally()
    end = time.monotonic() + arguments.seconds
    with TemporaryDirectory() as folder:
        for at, reader in enumerate(chosen):
            share = (end - time.monotonic()) / (len(chosen) - at)
            tally = fuzz(
                reader,
                arguments.seed,
                Path(folder),
                count=arguments.count,
                until=time.monotonic() + max(0.1, share),
                save=arguments.save,
                seconds=MOST_SECONDS,
            )
            print(tally.row(reader.name), flush=True)
            total.add(tally)
    print(total.row("all"))
    sys.exit(1 if total.failures else 0)


if __name__ == "__main__":
    main()
