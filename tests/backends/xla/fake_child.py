"""A compiling process of the tests: it speaks the protocol of ``stowplan.backends.xla.child`` and needs nothing but Python.

It knows one small program. Fast memory has places for three of its values, which are given in an order that options change;
``cycles_of`` says what comes of it. The option ``fake`` makes it misbehave, in every compile or, as ``fake=tuned:...``, in
those with other options of the tuning. What it compiles is written line by line to the file in ``FAKE_LOG``.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import signal
import sys
from pathlib import Path

ORDER = "xla_tpu_msa_sort_order_overrides"
ENABLE = "xla_msa_enable"
CAPACITY = "xla_tpu_max_cmem_used_by_memory_space_assignment"
OVERLAP = "xla_msa_preferred_overlap_to_async_copy_ratio"
#: A flag that makes another program, of a tenth fewer cycles.
FLAG = "xla_flag"
SCOPED = "xla_tpu_scoped_vmem_limit_kib"
KNOWN = {ORDER, ENABLE, CAPACITY, OVERLAP, FLAG, "fake", "fake_seed", "xla_own"}

SIZE = 1 << 20
SHAPE = "f32[256,1024]{1,0:T(8,128)}"
FAST = "f32[256,1024]{1,0:T(8,128)S(3)}"
#: Memory space of fast memory, by what is compiled for.
SPACE = {"v4": 3}
STEPS = (
    ("a", "add", ("x", "y")),
    ("b", "multiply", ("a", "x")),
    ("c", "subtract", ("b", "a")),
    ("d", "maximum", ("c", "b")),
    ("r", "minimum", ("d", "a")),
)
VALUES = ("a", "b", "c", "d")


def fast_values(options: dict[str, object]) -> list[str]:
    """Values that get a place: the first three in XLA's order, which is that of the program."""
    if str(options.get(ENABLE, "true")).lower() == "false":
        return []
    first: list[str] = []
    last: list[str] = []
    for names, word in re.findall(
        r'instruction_name_regex:"([^"]*)"[^{]*}override_options{(\w+):true}', str(options.get(ORDER, ""))
    ):
        (first if word == "assign_first" else last).extend(names.split("|"))
    order = sorted(VALUES, key=lambda name: (name not in first, name in last, name))
    places = min(3, int(str(options.get(CAPACITY, 3 << 10))) >> 10)
    return sorted(order[:places])


def cycles_of(name: str, operands: tuple[str, ...], fast: list[str], seed: int) -> int:
    """Fast memory saves 100 cycles for each array, but a result ``c`` in it costs 300; another seed has other numbers."""
    if seed:
        chance = random.Random(f"{seed} {name} {[each in fast for each in (*operands, name)]}")
        return chance.randrange(500, 1500)
    return 1000 - 100 * sum(each in fast for each in operands) + (300 if name == "c" else -100) * (name in fast)


def module(fast: list[str], seed: int | None, flag: str = "") -> str:
    title, tenths = (f"toy_{flag}", 9) if flag else ("toy", 10)
    lines = [
        f"HloModule {title}, is_scheduled=true",
        "",
        f"ENTRY %main (x: f32[256,1024], y: f32[256,1024]) -> {SHAPE[:13]} {{",
    ]
    lines += [f"  %{name} = {SHAPE} parameter({number})" for number, name in enumerate("xy")]
    for name, opcode, operands in STEPS:
        shape = FAST if name in fast else SHAPE
        estimate = ""
        if seed is not None:
            cycles = cycles_of(name, operands, fast, seed) * tenths // 10
            estimate = f', backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
        root = "ROOT " if name == "r" else ""
        lines.append(f"  {root}%{name} = {shape} {opcode}({', '.join(f'%{each}' for each in operands)}){estimate}")
    return "\n".join([*lines, "}", ""])


def compile_module(options: dict[str, object], folder: Path) -> None:
    fast = fast_values(options)
    places = [f" value: <{number} {name} @3> (size={SIZE},offset={number * SIZE}): {FAST}" for number, name in enumerate(fast)]
    flag = str(options.get(SCOPED, "")) or "flagged" * (options.get(FLAG) == "1")
    texts = {
        "program": module([], None, flag),
        # Copies that begin earlier are another schedule.
        "assigned": module(fast, None, flag).replace("=true", f"=true, overlap={options.get(OVERLAP, 2)}", 1),
        "assigned.fastmem": "\n".join([f"allocation 1: size {4 * SIZE}, color 3, preallocated-temp:", *places, ""])
        if fast
        else "",
        "compiled": module(fast, int(str(options.get("fake_seed", 0))), flag),
    }
    if misbehaves(options) == "unreadable":
        texts["compiled"] = module(fast, None)
    for name, text in texts.items():
        text = (
            text.replace("S(3)", f"S({SPACE['now']})")
            .replace("@3>", f"@{SPACE['now']}>")
            .replace("color 3", f"color {SPACE['now']}")
        )
        ending = ".txt.gz" if name.endswith("fastmem") else ".hlo.txt.gz"
        (folder / f"{name}{ending}").write_bytes(gzip.compress(text.encode(), mtime=0))


def misbehaves(options: dict[str, object]) -> str:
    kind, _, rest = str(options.get("fake", "")).rpartition("tuned:")
    return rest if not kind and (rest == options.get("fake") or options.keys() - {"fake", "fake_seed", "xla_own"}) else ""


def answer(request: dict[str, object]) -> dict[str, object]:
    if request["type"] == "lower":
        SPACE["now"] = SPACE.get(str(request["topology"]).partition(":")[0], 1)
        workload = request["workload"]
        assert isinstance(workload, dict)
        if workload["reference"] == "fake:untraceable":
            return {"type": "failed", "stage": "trace", "message": "here.py:3: TypeError: cannot reshape\n  (4,) into (3, 7)"}
        if workload["reference"] == "fake:crowded":
            return {
                "type": "failed",
                "stage": "place",
                "message": f"found a mesh of {workload['mesh']['sizes']}, expected fewer",
            }
        if workload["reference"] == "fake:chance":
            return {"type": "done", "digest": os.urandom(8).hex()}
        return {"type": "done", "digest": hashlib.sha256(workload["reference"].encode()).hexdigest(), "resident_bytes": 1}
    if request["type"] == "preview":
        lower, asked = request["lower"], request["asked"]
        assert isinstance(lower, dict)
        assert isinstance(asked, list)
        digest = answer(lower)["digest"]
        return {"type": "previewed", "answers": [previewed({**each, "type": "compile"}, digest) for each in asked]}
    return compiled(request, os.environ["FAKE_LOG"])


def previewed(request: dict[str, object], digest: object) -> dict[str, object]:
    """As a compile, but without the compiled module; where that process would die, this one does not."""
    options = request["options"]
    assert isinstance(options, dict)
    if misbehaves(options) in ("die", "check", "grow"):
        return {"type": "failed", "stage": "end", "message": "the compiling process ended"}
    found = compiled(request, os.environ["FAKE_LOG"] + ".previews")
    if found["type"] == "done":
        (Path(str(request["folder"])) / "compiled.hlo.txt.gz").unlink()
        found |= {"digest": digest, "processor_seconds": 0.1, "seconds": 0.1}
    return found


def compiled(request: dict[str, object], place: str) -> dict[str, object]:
    options = request["options"]
    assert isinstance(options, dict)
    with open(place, "a") as log:
        log.write(json.dumps(options, sort_keys=True) + "\n")
    how = misbehaves(options)
    if how == "hang":
        with open(os.environ["FAKE_LOG"] + ".hangs", "a") as log:
            log.write(".")
        signal.pause()
    if how == "die":
        print("F0000 segmentation fault in pass msa")
        sys.stdout.flush()
        os._exit(11)
    if how == "check":
        print("F0000 00:00:00 1 overrides.cc:42] Check failed: found != nullptr there is no instruction b")
        sys.stdout.flush()
        os._exit(134)
    if how == "grow":
        filled = b"x" * (300 << 20)
        signal.pause()
        del filled
    for name in options:
        # With the option fake=scoped it knows this one, and makes another program of it.
        if how == "refuse" or (name not in KNOWN and (name, options.get("fake")) != (SCOPED, "scoped")):
            return {"type": "failed", "stage": "compile", "message": f"INVALID_ARGUMENT: No such compile option: '{name}'"}
    folder = Path(str(request["folder"]))
    compile_module(options, folder)
    size = 1 << 40 if how == "fat" else 1
    return {"type": "done", "processor_seconds": 1.5, "seconds": 1.0, "resident_bytes": size}


def main() -> None:
    with os.fdopen(int(sys.argv[1]), "rb") as requests, os.fdopen(int(sys.argv[2]), "wb") as answers:
        for line in requests:
            said = answer(json.loads(line))
            answers.write(json.dumps(said).encode() + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
