"""The policy that the package brings for tier placement, made: ``python -m benchmarks.egrl.train_policy --output egrl.pt``.

A graph network learns from the linear relaxations of generated networks by cross entropy; no network of ``examples/data`` is
among them. Takes some ten minutes on one core: two for the relaxations, the rest for training. The same seed gives
the same policy on one machine.

``--evaluate FILE`` prints how far the policy's maps are above the bound of the linear relaxation, for the networks of
``examples/data`` and for copies of them, 5,000 layers in all. Beside it the chip's compiler, and the same decoding of two
posteriors that learned nothing: an untrained network's, and tensors ranked by the time that they save a byte.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.lib.tier_placement.imitation import Example, imitate
from benchmarks.lib.tier_placement.stacked import stacked
from benchmarks.lib.tier_placement.variants import generated
from benchmarks.tier_placement.networks import read
from stowplan.errors import InputError
from stowplan.hardware.nnp_i import compiled
from stowplan.hardware.nnp_i.compiler import compiler_plan
from stowplan.learned_guidance.tier_placement.decode import Decoder, Floats
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import POLICY, policy_values
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.network import Actor, Shape
from stowplan.learned_guidance.tier_placement.egrl.policy import Policy
from stowplan.learned_guidance.training import checkpoint
from stowplan.models.tier_placement.milp import relaxation
from stowplan.models.tier_placement.problem import Problem

NAMES = ("resnet50", "resnet101", "bert_base_s128", "bert_base_s384")

#: Networks on which the compiler's map is within this of the bound teach nothing.
LEAST_GAP = 0.003

#: Part of the networks that are stacked, and of those the part with as many times the memory; copies, and layers at most.
STACKED, SCALED, COPIES, MOST_LAYERS = 0.2, 0.7, 8, 1_200

#: Layers of the large networks.
LAYERS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, help="the policy file to write")
    parser.add_argument("--networks", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="a policy file to try")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.output is not None:
        train(arguments)
    if arguments.evaluate is not None:
        evaluate(Policy.load(arguments.evaluate))


def train(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    config = EgrlConfig.cpu(hidden=arguments.hidden, features="chip")
    examples, digests = [], hashlib.sha256()
    for problem, example in networks(arguments.networks, arguments.seed, config):
        examples.append(example)
        digests.update(problem.digest.encode())
        if len(examples) % 100 == 0:
            print(f"{len(examples)} networks, {time.monotonic() - began:.0f} s", flush=True)
    first = examples[0].inputs
    shape = Shape(first.state.shape[-1], config.hidden, config.heads, config.depth, first.tiers)
    torch.manual_seed(arguments.seed)
    actor = Actor(shape)
    losses: list[float] = []

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 1_000 == 0:
            print(f"step {step}: {np.mean(losses[-1_000:]):.4f} nats, {time.monotonic() - began:.0f} s", flush=True)

    steps = imitate(actor, examples, steps=arguments.steps, seed=arguments.seed, on_progress=report)
    provenance = checkpoint.Provenance(
        programs=(f"{len(examples)} generated networks of seed {arguments.seed}",),
        digests=(digests.hexdigest(),),
        seed=arguments.seed,
        training_steps=steps,
        games=0,
        moves=0,
        seconds=round(time.monotonic() - began, 1),
    )
    digest = checkpoint.save(arguments.output, POLICY, config, provenance, policy_values(actor))
    print(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes, sha256 {digest}")


def networks(count: int, seed: int, config: EgrlConfig):  # type: ignore[no-untyped-def]
    """Generated networks that fit and have something to gain, with their relaxations."""
    chance = np.random.default_rng(seed)
    while count:
        problem = generated(chance)
        if chance.random() < STACKED:
            copies, scaled = int(chance.integers(2, COPIES)), bool(chance.random() < SCALED)
            problem = stacked(problem, min(MOST_LAYERS, copies * len(problem.layers)), scaled=scaled)
        plan = compiler_plan(problem)
        if plan is None:
            continue
        try:
            example = Example.of(problem, config)
        except InputError as error:
            print(error)
            continue
        if plan.objective >= (1 + LEAST_GAP) * example.bound_ps:
            count -= 1
            yield problem, example


def evaluate(policy: Policy) -> None:
    shape = Shape(**policy.file.values["shape"])
    torch.manual_seed(0)
    untrained = Policy(policy.file, Actor(shape))
    print("| network | layers | compiler | saved time a byte | untrained | likeliest | one order | policy | seconds |")
    print(f"|---|{'--:|' * 8}")
    for name, problem, bound in held_out():
        decoder = Decoder(problem)
        began = time.perf_counter()
        plan = policy.place(problem)
        seconds = time.perf_counter() - began
        compiled = compiler_plan(problem)
        assert compiled is not None
        known = policy.posterior(problem)
        found = [
            compiled.objective,
            decoder.filled(density(problem)).objective,
            untrained.place(problem).objective,
            decoder.likeliest(known).objective,
            decoder.filled(known, orders=1).objective,
            plan.objective,
        ]
        gaps = " | ".join(f"{latency / bound - 1:.2%}" for latency in found)
        print(f"| {name} | {len(problem.layers):,} | {gaps} | {seconds:.2f} |", flush=True)


def held_out():  # type: ignore[no-untyped-def]
    """Networks that no policy of this file was trained on, with the bound of the linear relaxation."""
    small = [(name, precision, read(name, precision)) for name in NAMES for precision in ("int8", "fp16")]
    for name, precision, problem in small:
        yield f"{name} {precision}", problem, relaxation(problem, time_limit=60.0)[1]
    for name, precision, problem in small:
        for scaled in (False, True) if precision == "int8" and not name.endswith("s384") else ():
            large = stacked(problem, LAYERS, scaled=scaled)
            yield f"{name}, stacked{', more memory' if scaled else ''}", large, relaxation(large, time_limit=300)[1]


def density(problem: Problem) -> Floats:
    """A posterior that ranks tensors by the time that the fastest tier saves over the slowest, for each byte."""
    data = compiled.arrays_of(problem)
    reads = np.bincount(data.inputs, minlength=len(problem.layers))
    saved = [
        data.weight_moves[:, 0] - data.weight_moves[:, -1],
        (data.output_moves[:, 0] - data.output_moves[:, -1]) * (1 + reads),
    ]
    each = np.stack(saved, axis=1) / np.maximum(1, np.stack([data.weights, data.outputs], axis=1))
    rank = np.empty(each.size)
    rank[np.argsort(each, axis=None, kind="stable")] = (np.arange(each.size) + 0.5) / each.size
    fast = rank.reshape(each.shape)
    tiers = len(problem.tiers)
    return np.stack([1 - fast, *[fast / (tiers - 1)] * (tiers - 1)], axis=-1)


if __name__ == "__main__":
    main()
