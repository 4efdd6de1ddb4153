"""Training loops as people write them, each within limits: does it run, does it stay within, are its gradients eager's?

    pip install '.[learned]'
    python -m benchmarks.torch_memory.loops [--only NAME ...] [--parts 0.85,0.95] [--host] [--bare] [-o FILE]

Each loop runs as eager first, and a meter that shares no code with the back end takes the most bytes of each step. Then it runs
with strict limits of parts of the largest of these, and with ``--host`` a second time with host memory. ``--bare`` adds a run
without the meter, at the largest part, whose own count is to be the meter's. A loop that is refused runs once more with what
the error says. Each run is a process of its own with a time limit.

Columns: ``eager`` is its largest step, ``limit`` a part of it, ``largest`` the most of a step that ended within the limit,
``first`` the most of the first two. ``values`` says whose losses, parameters and gradients it has to the bit, ``added`` what
the last plans add to the work of their graphs, and ``outcome`` is one of ``runs``, ``refused``, ``ABOVE``, ``CRASH``, ``HANG``
and ``WRONG``, of which the last four are faults.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import multiprocessing
import pkgutil
import re
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # in the parent: its import takes seconds

import stowplan.backends.torch.entry
import stowplan.backends.torch.scopes  # noqa: F401  in the parent, likewise
from benchmarks.lib.tables import table
from benchmarks.torch_memory.loops import scripts
from benchmarks.torch_memory.loops.log import log
from benchmarks.torch_memory.loops.meter import LiveBytes
from benchmarks.torch_memory.loops.run import AOT, EAGER, Run, cause
from stowplan.backends.torch import MemoryLimitError, TrainingMemory

NAMES = sorted(each.name for each in pkgutil.iter_modules(scripts.__path__))

#: Seconds after which a process hangs, on a machine that is busy with others.
PATIENCE = 400

#: Bytes that no loop takes.
NO_LIMIT = 1 << 40

#: Bytes per second to the host, and costs of an H100, which host memory needs.
HOST = {"host_bandwidth": "25 GB/s", "costs": "h100"}


def of_process(pipe: Any, name: str, backend: Any, options: dict[str, Any]) -> None:
    """A run, in its own process."""
    warnings.simplefilter("always")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    began, module = time.monotonic(), importlib.import_module(f"{scripts.__name__}.{name}")
    is_metered, is_least = options.pop("is_metered", True), options.pop("is_least", False)
    found: dict[str, Any] = {"error": None, "least": None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        meter = LiveBytes() if is_metered else None
        if meter is not None:
            meter.__enter__()
        if not isinstance(backend, str):
            backend = TrainingMemory(backend, workers=1, **options)
        run = Run(backend, meter, opens_steps=not getattr(module, "ONE_LINE", False) and not is_least)
        try:
            values = module.loop(run)
            if is_least:
                found["least"] = backend.least(lambda: next(values))
            else:
                for each in values:
                    run.record(each)
                    del each
        except Exception as error:
            origin = cause(error)
            kind = "MemoryLimitError" if isinstance(origin, MemoryLimitError) else type(origin).__name__
            found |= {"error": kind, "text": " ".join(str(origin).split())[:600]}
            found["where"] = traceback.format_exception(origin)[-6:]
        if meter is not None:
            meter.__exit__(None, None, None)
    found |= {"peaks": run.peaks, "host_peaks": run.host_peaks, "digests": run.digests}
    found["seconds"] = round(time.monotonic() - began, 1)
    found["warnings"] = sorted({str(each.message)[:300] for each in caught if "Planning" in each.category.__name__})
    if not isinstance(backend, str):
        steps, last = backend.report.steps, {}
        for report in backend.reports:
            last[report.operators] = f"{report.added_share:.0%}"
        found |= {"reported": steps.largest, "steps": [steps.count, steps.checked], "added": " ".join(last.values())}
    pipe.send(found)
    pipe.close()


def run(name: str, backend: Any, **options: Any) -> dict[str, Any]:
    """A run of a loop in its own process, and what came of it."""
    context = multiprocessing.get_context("fork")
    end, other = context.Pipe(duplex=False)
    process = context.Process(target=of_process, args=(other, name, backend, options))
    process.start()
    other.close()
    found: dict[str, Any] = {"error": "HANG", "text": f"no end in {PATIENCE} s", "peaks": [], "digests": [], "host_peaks": []}
    try:
        if end.poll(PATIENCE):
            found = end.recv()
    except EOFError:
        found |= {"error": "DIED", "text": "the process ended without a result"}
    if process.is_alive():
        process.join(2)
        process.kill()
    process.join()
    return found


def judged(name: str, limit: int, eager: dict[str, Any], found: dict[str, Any], most_on_host: int | None) -> dict[str, Any]:
    """A run within a limit, with its outcome."""
    done, values = len(found["digests"]), "eager"
    if found["digests"] != eager["digests"][:done]:
        aot = run(name, AOT)
        found["aot_eager"] = max(aot["peaks"], default=0)
        values = AOT if found["digests"] == aot["digests"][:done] else "OTHERS"
    largest = max(found["peaks"], default=0)
    is_above = largest > limit or (most_on_host is not None and max(found["host_peaks"], default=0) > most_on_host)
    outcome = "ABOVE" if is_above else "WRONG" if values == "OTHERS" else "runs"
    if found["error"] == "MemoryLimitError" and outcome == "runs":
        outcome = "refused"
    elif found["error"] == "HANG":
        outcome = "HANG"
    elif found["error"] != eager["error"] and found["error"] != "MemoryLimitError":
        outcome = "CRASH"
    expected = getattr(importlib.import_module(f"{scripts.__name__}.{name}"), "EXPECTED", None)
    if outcome == "CRASH" and expected is not None and re.search(expected, found["text"]):
        outcome = "torch's"
    return found | {"values": values, "largest": largest, "outcome": outcome, "limit": limit}


def suggested(name: str, found: dict[str, Any], limit: int, options: dict[str, Any]) -> str:
    """What the error of a refusal says to do, and whether a run that does it runs."""
    memory, margin = (re.search(rf"pass {word}=(\d+)", found["text"]) for word in ("memory", "margin"))
    if memory:
        said, options = int(memory[1]), options | {}
    elif margin:
        said, options = limit, options | {"margin": int(margin[1])}
    else:
        said = run(name, NO_LIMIT, is_least=True, **options)["least"] or 0
    if not said:
        return "no limit is said"
    again = run(name, said, **options)
    largest, text = max(again["peaks"], default=0), f"{found['text'].rpartition(': ')[2][:60]!r}: {said:,}"
    if again["error"] is None and largest <= said:
        return f"{text} runs"
    return f"{text} does not run: {again['error'] or 'ABOVE'} {again.get('text', '')[:120]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES, metavar="NAME", help="loops to run")
    parser.add_argument("--parts", default="0.85,0.95", help="limits, in eager's largest steps")
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds of planning for each graph")
    parser.add_argument("--host", action="store_true", help="run a second time, with as much host memory as the limit")
    parser.add_argument("--bare", action="store_true", help="run the largest part once more, without the meter")
    parser.add_argument("-o", "--output", type=Path, help="JSON lines of all runs are appended to this file")
    parser.add_argument("--table", type=Path, help="run nothing, and print the table of such a file: the last of equal lines")
    parser.add_argument("--log", type=Path, help="the same with one row for each loop, as in README.md")
    parser.add_argument("--resume", action="store_true", help="leave out what the file of --output has already")
    options = parser.parse_args()
    if options.table:
        show([row(line) for _, line in sorted(known(options.table).items())])
    elif options.log:
        print(log(known(options.log), options.only))
    else:
        measure(options)


def known(path: Path) -> dict[Any, dict[str, Any]]:
    """Runs of a file, by loop, part, and whether there is host memory."""
    lines = [json.loads(each) for each in path.read_text().splitlines()] if path.exists() else []
    return {(each["loop"], each["part"], each["host"]): each for each in lines}


def measure(options: Any) -> None:
    """Run loops, and print what came of them."""
    # What was imported is not looked through whenever a step collects what is unused.
    gc.collect()
    gc.freeze()
    parts, rows = sorted(float(part) for part in options.parts.split(",")), []
    had = known(options.output) if options.resume else {}
    hosts = (False, True) if options.host else (False,)
    for name in options.only:
        if all((name, part, has_host) in had for part in parts for has_host in hosts):
            continue
        eager = run(name, EAGER)
        most = max(eager["peaks"], default=0)
        if not most:
            print("#", name, "does not run as eager:", eager["error"], eager.get("text"), *eager.get("where", ()), flush=True)
            continue
        for part in parts:
            limit = int(part * most)
            for has_host in hosts:
                if (name, part, has_host) in had:
                    continue
                chosen: dict[str, Any] = {"time_limit": options.time_limit} | ({"host": limit} | HOST if has_host else {})
                found = judged(name, limit, eager, run(name, limit, **chosen), limit if has_host else None)
                note = f"{found['error']}: {found['text']}" if found["error"] else "; ".join(found.get("warnings", ()))
                if found["outcome"] == "refused":
                    found["follow"] = suggested(name, found, limit, chosen)
                    note = f"{found['text'].partition(':')[0]}; {found['follow']}"
                if options.bare and part == parts[-1] and not has_host:
                    bare = run(name, limit, is_metered=False, **chosen)
                    found["bare"] = {each: bare.get(each) for each in ("error", "text", "reported", "seconds")}
                    is_same = bare["digests"] == found["digests"] and bare["error"] == found["error"]
                    text = "the same" if is_same else "OTHERWISE"
                    note += f"; without the meter {text}, {bare.get('reported', 0):,} reported"
                line = {"loop": name, "part": part, "host": has_host, "eager": most, "note": note} | found
                rows.append(row(line))
                print("#", *rows[-1].values(), flush=True)
                if found["outcome"] in ("CRASH", "WRONG", "ABOVE"):
                    print(found["peaks"], *found.get("where", ()), sep="\n", flush=True)
                if options.output:
                    with options.output.open("a") as file:
                        file.write(json.dumps(line) + "\n")
    show(rows)


def row(line: dict[str, Any]) -> dict[str, Any]:
    """A run as a row of the table."""
    peaks, sent = line["peaks"], max(line["host_peaks"], default=0) if line["host"] else ""
    return {
        "loop": line["loop"],
        "eager": line["eager"],
        "part": line["part"],
        "host": "yes" if line["host"] else "no",
        "limit": line["limit"],
        "first": max(peaks[:2], default=0),
        "largest": line["largest"],
        "sent": sent,
        "added": line.get("added", ""),
        "values": line["values"],
        "outcome": line["outcome"],
        "s": line.get("seconds", ""),
        "note": line["note"],
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table, and how often each outcome came."""
    if rows:
        print(table([tuple(each.values()) for each in rows], [*rows[0]]))
    print(*(f"{count} {outcome}" for outcome, count in Counter(each["outcome"] for each in rows).items()), sep=", ")


if __name__ == "__main__":
    main()
