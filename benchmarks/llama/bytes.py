"""Bytes of weights and caches by our rules against those of the runtime, for random placements.

    python -m benchmarks.llama.bytes BUILD ORACLE [--placements N] [--seed N] [--record FILE] [--models NAME ...]

BUILD is a build folder of llama.cpp with ggml-rpc-server, ORACLE the program built from stowplan/backends/llama/oracle.cpp.
For each model of ``benchmarks.llama.architectures``, placements are drawn at random: layers on devices, shares, spilled
parts, context, slots, micro-batch and types of the cache. Prints how many bytes of which device differ, and how the buffers
of intermediate results compare with what is set aside where they are not measured.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.lib.tables import table
from benchmarks.llama.architectures import MAKERS, write_model
from benchmarks.llama.rig import Rig
from stowplan.backends.llama.flags import placement_of
from stowplan.backends.llama.lowering import estimated_compute
from stowplan.backends.llama.model import ARCHITECTURES, LanguageModel, read_model, spilled_parts
from stowplan.backends.llama.oracle import Oracle, device_of

#: Types of caches that are drawn, the usual one most often.
CACHE_TYPES = ("f16", "f16", "f16", "q8_0", "q4_0", "f32")


def drawn(model: LanguageModel, names: list[str], chance: random.Random) -> list[str]:
    """Options of a random placement."""
    count = len(model.layers)
    layers = chance.choice([count, chance.randint(0, count)])
    shares = [chance.choice([0, chance.randint(1, 20)]) for _ in names]
    if not any(shares):
        shares[chance.randrange(len(names))] = 1
    slots = chance.choice([1, 1, 2, 4])
    words = ["-ngl", str(layers), "-ts", ",".join(map(str, shares)), "-c", str(slots * chance.choice([300, 2048, 5000]))]
    words += ["-ub", str(chance.choice([128, 512, 1024])), "-np", str(slots)]
    keys, values = chance.choice(CACHE_TYPES), chance.choice(CACHE_TYPES)
    words += ["-ctk", keys, "-ctv", keys if ARCHITECTURES[model.architecture].latent else values]
    spilled = [number for number, layer in enumerate(model.layers) if spilled_parts(layer, model.experts)]
    if spilled and chance.random() < 0.7:
        some = chance.sample(spilled, chance.randint(1, len(spilled)))
        parts = chance.choice(["down", "down|gate", "down|gate|up|gate_up"])
        suffix = "_exps" if model.experts else ""
        words += ["-ot", rf"blk\.({'|'.join(map(str, some))})\.ffn_({parts}){suffix}\.weight=CPU"]
    return words


def compare(
    model: LanguageModel, oracle: Oracle, rig: Rig, placements: int, seed: int
) -> tuple[list[str], list[dict[str, object]]]:
    """A row of the table, and the placements with the runtime's bytes."""
    chance = random.Random(seed)
    every = [drawn(model, rig.names, chance) for _ in range(placements)]
    differ, worst, above, ratio, records = 0, 0, 0, 0.0, list[dict[str, object]]()
    for words, answer in zip(every, oracle.ask(every), strict=True):
        said: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for buffer, sizes in answer.items():
            for at, size in enumerate(sizes):
                said[device_of(rig.named(buffer))][at] += size
        meant = placement_of(model, words, rig.names, [1] * len(rig.names))
        for device in ("CPU", *rig.names):
            for ours, theirs in ((meant.weights[device], said[device][0]), (meant.caches[device], said[device][1])):
                differ += ours != theirs
                worst = max(worst, abs(ours - theirs))
        set_aside = estimated_compute(model, meant.context.micro_batch)
        most = max(sizes[2] for sizes in said.values())
        above += most > set_aside
        ratio = max(ratio, most / set_aside)
        records.append({"options": words, "bytes": {device: said[device][:2] for device in ("CPU", *rig.names)}})
    row = [model.name, model.architecture, str(placements), str(differ), f"{worst:,}", str(above), f"{ratio:.2f}"]
    return row, records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="Build folder of llama.cpp.")
    parser.add_argument("oracle", type=Path, help="Program built from oracle.cpp.")
    parser.add_argument("--models", nargs="+", default=[*MAKERS], help="Names of models.")
    parser.add_argument("--placements", type=int, default=100, help="Placements of each model.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="Write placements with the runtime's bytes as JSON.")
    arguments = parser.parse_args()
    rows, recorded = [], {}
    with tempfile.TemporaryDirectory() as folder, Rig(arguments.build, [{}, {}, {}]) as rig:
        for name in arguments.models:
            path = write_model(name, Path(folder))
            model = read_model(path)
            oracle = Oracle(arguments.oracle, path, rig.servers)
            row, records = compare(model, oracle, rig, arguments.placements, arguments.seed)
            rows.append(row)
            recorded[name] = records
            print(*row, file=sys.stderr, flush=True)
    head = [
        "model",
        "architecture",
        "placements",
        "sizes that differ",
        "largest difference, bytes",
        "placements above the estimate",
        "largest buffer / estimate",
    ]
    print(table(rows, head))
    if arguments.record:
        arguments.record.write_text(json.dumps(recorded, indent=None))
    return 1 if any(row[3] != "0" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
