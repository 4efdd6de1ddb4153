"""The problems of the published suite: small enough that optima are proven, and made here or shipped as examples.

No shipped policy has learned from any of them; the generators are those that EGRL and PPO learned from, with other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import stowplan
from benchmarks.lib.memory_mapping.small_programs import small_programs, small_windows
from benchmarks.lib.modulo_scheduling import generated_graphs, kernels
from benchmarks.lib.places import EXAMPLES
from benchmarks.lib.tier_placement import variants
from stowplan.frontends.dfg import lower
from stowplan.learned_guidance.memory_mapping.game.programs import as_played
from stowplan.models.modulo_scheduling.bounds import find_obstacle

#: Of generated problems; policies were trained with others.
SEED = 3801

#: Made-up programs, and windows of each example that MMap-MuZero has not seen.
MINIATURES, WINDOWS = 16, {"alexnet_inf_b1": 4, "lstm_scan_inf_b32": 4, "resnet50_inf_b1": 12}

NETWORKS = ("resnet50", "resnet101", "bert_base_s128")

#: Fast memory over the chip's, for ResNets at int8.
SCARCE = 0.5

#: Generated networks, and about how many layers they have.
GENERATED_NETWORKS, LAYERS = 24, (12, 80)

#: Generated loop bodies, and how many instructions they have, relays included.
BODIES, INSTRUCTIONS = 26, (6, 20)


def programs() -> Iterator[Any]:
    """Memory mapping under the game's rules, so that a policy can reach the optimum."""
    yield from map(as_played, small_programs(MINIATURES))
    for name, count in WINDOWS.items():
        yield from map(as_played, small_windows([EXAMPLES / f"{name}.hlo.txt.gz"], count, "tpu-v4"))


def networks() -> Iterator[Any]:
    """Tier placement: the paper's networks, with half of the fast memory too, and generated ones."""
    for name in NETWORKS:
        for precision in ("int8", "fp16"):
            problem = stowplan.read(EXAMPLES / f"{name}.layers.json", "nnp-i", precision=precision)
            yield msgspec.structs.replace(problem, name=f"{name} {precision}")
            if precision == "int8" and name.startswith("resnet"):
                yield msgspec.structs.replace(variants.with_fast_memory(problem, SCARCE), name=f"{name} {precision} scarce")
    chance = np.random.default_rng(SEED)
    for _ in range(GENERATED_NETWORKS):
        yield variants.generated(chance, layers=int(chance.integers(*LAYERS)))


def loops() -> Iterator[Any]:
    """Modulo scheduling: kernels of the paper, examples, and generated loop bodies."""
    for graph in (kernels.distance(), kernels.vector_add(), kernels.multiply_add(), kernels.fft(4)):
        yield lower(graph)
    for name in ("fir", "saxpy"):
        yield stowplan.read(EXAMPLES / f"{name}.dfg.json", "se")
    chance = np.random.default_rng(SEED)
    for number in range(BODIES):
        problem = generated_graphs.generated(chance, instructions=INSTRUCTIONS)
        if find_obstacle(problem) is None and len(problem.instructions) <= INSTRUCTIONS[1]:
            yield msgspec.structs.replace(problem, name=f"generated {number}, {len(problem.instructions)} instructions")


#: By agent.
PROBLEMS: dict[str, Callable[[], Iterator[Any]]] = {"muzero": programs, "egrl": networks, "ppo": loops}


def write(agent: str, folder: Path) -> None:
    """The problems of an agent as files, each once."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    # Two windows may be one.
    for number, problem in enumerate({each.digest: each for each in PROBLEMS[agent]()}.values()):
        name = "".join(letter if letter.isalnum() else "_" for letter in problem.name)[:60]
        problem.save(folder / f"{number:02}_{name}.json")
