"""Families of instances: functions that make a problem from sizes and a seed, and the instances that the library has of them.

A family is never changed once an instance of it is in the library; a new family gets a new name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

import stowplan
from benchmarks.bank_mapping.programs import blocks, mapped_on
from benchmarks.lib.memory_mapping.small_programs import small_program
from benchmarks.lib.memory_mapping.synthetic import Form as ProgramForm
from benchmarks.lib.memory_mapping.synthetic import synthetic
from benchmarks.lib.modulo_scheduling import generated_graphs, kernels
from benchmarks.lib.places import EXAMPLES
from benchmarks.lib.tier_placement import variants
from benchmarks.lib.tier_placement.networks import Form as NetworkForm
from benchmarks.operator_order.graphs import made
from benchmarks.packing.instances import make
from stowplan.frontends.dfg import lower
from stowplan.hardware.se import load_machine
from stowplan.learned_guidance.memory_mapping.game.programs import peak_live_bytes
from stowplan.models.bank_mapping.problem import Problem as BankMapping
from stowplan.models.banked_packing.problem import Bank
from stowplan.models.banked_packing.problem import Buffer as BankedBuffer
from stowplan.models.banked_packing.problem import Problem as BankedPacking
from stowplan.models.llm_placement.problem import Device, Layer, MicroBatch, Part
from stowplan.models.llm_placement.problem import Problem as LlmPlacement
from stowplan.models.memory_mapping.problem import Problem as MemoryMapping
from stowplan.models.modulo_scheduling.problem import Problem as ModuloScheduling
from stowplan.models.operator_order.problem import Problem as OperatorOrder
from stowplan.models.packing.problem import Buffer
from stowplan.models.packing.problem import Problem as Packing
from stowplan.models.rematerialization.problem import Problem as Rematerialization
from stowplan.models.rematerialization.problem import of_graph
from stowplan.models.rematerialization.structure import build
from stowplan.models.tier_placement.problem import Problem as TierPlacement
from stowplan.transforms.eliminate import eliminate
from tests.models.bank_mapping import cases as bank_mapping_cases
from tests.models.memory_mapping import cases as memory_mapping_cases
from tests.models.operator_order import cases as operator_order_cases
from tests.models.packing import overlaps as packing_overlaps

MIB = 1 << 20


def packing_lives(form: str, buffers: int, seed: int) -> Packing:
    """Random lives and sizes of a form of :mod:`benchmarks.packing.instances`."""
    rows = zip(*(each.tolist() for each in make(form, buffers, seed)), strict=True)
    made_buffers = tuple(Buffer(id=f"b{at}", lower=low, upper=high, size=size) for at, (low, high, size) in enumerate(rows))
    return Packing(buffers=made_buffers)


def packing_aligned(form: str, buffers: int, seed: int) -> Packing:
    """The same with offsets that are multiples of 64, 128 or 256 bytes."""
    chance = random.Random(seed)
    problem = packing_lives(form, buffers, seed)
    aligned = (msgspec.structs.replace(buffer, alignment=chance.choice((64, 128, 256))) for buffer in problem.buffers)
    return msgspec.structs.replace(problem, buffers=tuple(aligned))


def packing_cut(buffers: int, seed: int) -> Packing:
    """A rectangle of time and bytes that is cut into buffers, again and again: a plan without any hole exists."""
    chance = random.Random(seed)
    pieces = [(0, 10 * buffers, 1000 * buffers)]
    while len(pieces) < buffers:
        pieces.sort(key=lambda piece: (piece[1] - piece[0]) * piece[2])
        start, end, size = pieces.pop(chance.randrange(len(pieces) * 2 // 3, len(pieces)))
        if chance.random() < 0.5 and end - start > 1:
            middle = chance.randint(start + 1, end - 1)
            pieces += [(start, middle, size), (middle, end, size)]
        else:
            part = chance.randint(1, size - 1)
            pieces += [(start, end, part), (start, end, size - part)]
    chance.shuffle(pieces)
    return Packing(
        buffers=tuple(Buffer(id=f"b{at}", lower=low, upper=up, size=size) for at, (low, up, size) in enumerate(pieces))
    )


def packing_operators(operators: int, longest: int, seed: int) -> Packing:
    """Results of operators that may overwrite operands that die."""
    return packing_overlaps.random_graph(seed, operators, longest)


def order_training(operators: int, seed: int) -> OperatorOrder:
    """A training step of a network whose blocks have branches."""
    return made(operators, seed)


def order_random(operators: int, seed: int) -> OperatorOrder:
    """Operators that read tensors drawn among all before them, with views and results in place by seed."""
    return operator_order_cases.random_problem(seed, operators)


def order_ladder(rows: int, columns: int, seed: int) -> OperatorOrder:
    """A lattice: each operator reads the results above it and to its left; sizes are drawn."""
    from stowplan.models.operator_order.problem import Op, Tensor

    chance = random.Random(seed)
    tensors, ops = [], []
    for at in range(rows * columns):
        row, column = divmod(at, columns)
        tensors.append(Tensor(id=f"t{row}_{column}", size=chance.choice((1, 2, 3, 5, 8, 13)) << 10))
        reads = tuple(at - step for step, is_there in ((columns, row > 0), (1, column > 0)) if is_there)
        ops.append(Op(id=f"o{row}_{column}", reads=reads, writes=(at,)))
    return OperatorOrder(tensors=tuple(tensors), ops=tuple(ops), outputs=(len(tensors) - 1,))


def order_layers(layers: int, width: int, seed: int) -> OperatorOrder:
    """Layers of as many operators, each of which reads two or three results of the layer before; sizes are drawn."""
    from stowplan.models.operator_order.problem import Op, Tensor

    chance = random.Random(seed)
    tensors, ops = [], []
    for at in range(layers * width):
        layer = at // width
        tensors.append(Tensor(id=f"t{at}", size=chance.randint(1, 64) << 10))
        before = range((layer - 1) * width, layer * width) if layer else range(0)
        reads = tuple(sorted(chance.sample(before, min(len(before), chance.choice((2, 2, 3))))))
        ops.append(Op(id=f"o{at}", reads=reads, writes=(at,)))
    return OperatorOrder(tensors=tuple(tensors), ops=tuple(ops), outputs=tuple(range((layers - 1) * width, layers * width)))


def remat_training(operators: int, percent: int, seed: int) -> Rematerialization:
    """A training step within a percentage of the peak of the given order; an operator costs the bytes that it writes."""
    problem = of_graph(made(operators, seed))
    structure = build(problem)
    return msgspec.structs.replace(problem, limit=structure.ordering.peak(structure.order) * percent // 100)


def remat_chain(layers: int, percent: int, seed: int) -> Rematerialization:
    """A chain of layers and their gradients, within a percentage of the peak; costs and sizes are drawn."""
    from stowplan.models.rematerialization.problem import Op, Tensor

    chance = random.Random(seed)
    tensors, ops, kept = [Tensor(id="x", size=chance.randint(1, 16) << 16)], [], [0]

    def run(name: str, reads: tuple[int, ...], size: int, cost: int) -> int:
        tensors.append(Tensor(id=f"t{len(tensors)}", size=size))
        ops.append(Op(id=name, reads=reads, writes=(len(tensors) - 1,), cost=cost))
        return len(tensors) - 1

    for layer in range(layers):
        kept.append(run(f"forward{layer}", (kept[-1],), chance.randint(1, 16) << 16, chance.randint(1, 100)))
    gradient = run("loss", (kept[-1],), tensors[kept[-1]].size, 1)
    for layer in reversed(range(layers)):
        gradient = run(f"backward{layer}", (kept[layer], gradient), tensors[kept[layer]].size, chance.randint(1, 200))
    problem = Rematerialization(tensors=tuple(tensors), ops=tuple(ops), inputs=(0,), outputs=(gradient,))
    structure = build(problem)
    return msgspec.structs.replace(problem, limit=structure.ordering.peak(structure.order) * percent // 100)


def banked_lives(form: str, buffers: int, percent: int, seed: int) -> BankedPacking:
    """Random lives in three banks: the first has a percentage of the bytes that live at most, the second twice as much.

    Costs are those of the memories of a microcontroller: 1, 6 and 30 for a byte.
    """
    chance = random.Random(seed)
    rows = [*zip(*(each.tolist() for each in make(form, buffers, seed)), strict=True)]
    events = sorted({low for low, _, _ in rows})
    most = max(sum(size for low, high, size in rows if low <= at < high) for at in events)
    first = max(1, most * percent // 100) // 32 * 32 + 32
    banks = (
        Bank(name="tcm", capacity=first, cost=1, alignment=8),
        Bank(name="sram", capacity=2 * first, cost=6, alignment=32),
        Bank(name="psram", capacity=64 * most, cost=30, alignment=32),
    )
    made_buffers = tuple(
        BankedBuffer(id=f"b{at}", lower=low, upper=high, size=size, uses=chance.randint(1, 9))
        for at, (low, high, size) in enumerate(rows)
    )
    return BankedPacking(buffers=made_buffers, banks=banks)


def tier_generated(form: NetworkForm, layers: int, seed: int) -> TierPlacement:
    """A network of a form on the chip NNP-I, or with more or less of its fast memory."""
    return variants.generated(np.random.default_rng(seed), layers=layers, form=form)


def tier_network(name: str, precision: str, percent: int) -> TierPlacement:
    """A layer file of ``examples/data`` on the chip NNP-I, with a percentage of its fast memory."""
    problem: TierPlacement = stowplan.read(EXAMPLES / f"{name}.layers.json", "nnp-i", precision=precision)
    return problem if percent == 100 else variants.with_fast_memory(problem, percent / 100)


def bank_random(operators: int, seed: int) -> BankMapping:
    """Operators with one to three options each, tensors with views, and a capacity that may be small."""
    return bank_mapping_cases.random_problem(seed, operators)


def bank_blocks(operators: int, percent: int, seed: int) -> BankMapping:
    """Blocks with heads that are split, transposed and joined, after elimination of data movement, on the chip Inferentia.

    The scratchpad has a percentage of the bytes of all tensors.
    """
    program, _ = eliminate(blocks(operators, seed))
    problem = mapped_on(program, "inferentia").problem
    return msgspec.structs.replace(problem, capacity=sum(tensor.bytes for tensor in problem.tensors) * percent // 100)


def modulo_generated(instructions: int, machine: str, seed: int) -> ModuloScheduling:
    """A random loop body in the manner of those of the literature."""
    return generated_graphs.generated(np.random.default_rng(seed), load_machine(machine), instructions=instructions)


def modulo_kernel(name: str, machine: str, unroll: int = 1) -> ModuloScheduling:
    """A kernel, unrolled by a number of iterations."""
    simple = {"distance": kernels.distance, "multiply-add": kernels.multiply_add}
    graph = simple[name]() if name in simple else kernels.fft(int(name.removeprefix("fft")))
    return lower(kernels.unrolled(graph, unroll) if unroll > 1 else graph, load_machine(machine))


def memory_miniature(form: str, seed: int) -> MemoryMapping:
    """A miniature of a training step, of inference, decoding, or a recurrent network."""
    return small_program(form, seed)


def memory_random(steps: int, tensors: int, seed: int) -> MemoryMapping:
    """A few steps with random uses, small numbers and all rules."""
    return memory_mapping_cases.random_problem(random.Random(seed), steps=steps, tensors=tensors)


def memory_synthetic(form: ProgramForm, moves: int, seed: int) -> MemoryMapping:
    """A random program in the manner of compiled neural networks."""
    return synthetic(np.random.default_rng(seed), moves=moves, form=form)


def memory_program(name: str, target: str, percent: int) -> MemoryMapping:
    """A compiled program of ``examples/data`` with fast memory of a percentage of what it could use at once."""
    problem: MemoryMapping = stowplan.read(EXAMPLES / f"{name}.hlo.txt.gz", target)
    unit = problem.alignment
    largest = max(tensor.size for tensor in problem.tensors)
    wanted = peak_live_bytes(problem) * percent // 100
    return msgspec.structs.replace(problem, capacity=-(-max(wanted, min(largest, wanted)) // unit) * unit)


#: A byte of weights of a quantized model has about this many weights, in tenths.
WEIGHTS_PER_BYTE = 18


def llm_decoder(layers: int, width: int, devices: tuple[int, ...], seed: int, experts: int = 0) -> LlmPlacement:
    """A decoder of so many layers and features, on devices with so many MiB each beside a host.

    Layers have attention of grouped queries and a feed-forward part in three matrices, of a few different sizes; with
    ``experts``, a mixture of which two are used for a token. Speeds of devices are drawn between those of old and new GPUs.
    """
    chance = random.Random(seed)
    batches, prompt, context = (128, 512), 512, 4096

    def part(name: str, weights: int, used: float = 1.0) -> Part:
        size = weights * 10 // WEIGHTS_PER_BYTE
        read = tuple(round(size * (1.0 if used == 1.0 else min(1.0, used * batch / 8))) for batch in batches)
        flops = tuple(round(2 * weights * used * min(batch, prompt)) for batch in batches)
        return Part(name=name, bytes=size, step_bytes=round(size * used), batch_bytes=read, batch_flops=flops)

    used = 2 / experts if experts else 1.0
    count = experts or 1
    rows = []
    for number in range(layers):
        hidden = width * chance.choice((7, 7, 8)) // 2
        cache = 2 * 2 * context * width // 4
        names = ("down", "gate", "up")
        rows.append(
            Layer(
                name=f"blk.{number}",
                fixed=part("", 2 * width * width + width * width // 2),
                spillable=tuple(part(name, count * width * hidden, used) for name in names),
                cache_bytes=cache,
                step_cache_bytes=cache // 6,
                batch_cache_bytes=tuple(cache // 12 for _ in batches),
                batch_cache_flops=tuple(4 * width * batch * prompt // 2 for batch in batches),
            )
        )
    rows.append(Layer(name="output", fixed=part("", 32_000 * width)))

    def device(name: str, mib: int) -> Device:
        return Device(
            name=name,
            capacity=mib * MIB,
            margin=0,
            compute_bytes=tuple(batch * width * 40 for batch in batches),
            weight_rate=chance.randint(150, 900) * 10**9,
            cache_rate=chance.randint(50, 400) * 10**9,
            compute_rate=chance.randint(8, 80) * 10**12,
            link_rate=chance.choice((6, 12, 25)) * 10**9,
            link_ps=chance.randint(5, 30) * 10**6,
            layer_ps=chance.randint(5, 60) * 10**6,
            copies_weights=True,
        )

    host = msgspec.structs.replace(
        device("host", 1 << 20), weight_rate=50 * 10**9, cache_rate=20 * 10**9, compute_rate=10**12, copies_weights=False
    )
    return LlmPlacement(
        layers=tuple(rows),
        host=host,
        devices=tuple(device(f"gpu{number}", mib) for number, mib in enumerate(devices)),
        micro_batches=tuple(MicroBatch(size=batch, tokens=batch, batches=prompt // batch) for batch in batches),
        steps=256,
        host_bytes=32_000 * width,
        hidden_bytes=4 * width,
        experts=experts,
    )


class Instance(NamedTuple):
    """An instance of the library: its id, the kind, and the call that makes it."""

    id: str
    kind: str
    family: Callable[..., Any]
    arguments: dict[str, Any]

    @property
    def source(self) -> str:
        """The call, for the table."""
        return f"{self.family.__name__}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"

    def problem(self) -> Any:
        """Makes the problem, whose name is the id."""
        return msgspec.structs.replace(self.family(**self.arguments), name=self.id)


def _named(kind: str, prefix: str, family: Callable[..., Any], **lists: list[Any]) -> Iterator[Instance]:
    """Instances of a family, one for each position of the lists of arguments."""
    for values in zip(*lists.values(), strict=True):
        arguments = dict(zip(lists, values, strict=True))
        words = ("-".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values)
        yield Instance("-".join((prefix, *words)), kind, family, arguments)


def instances() -> Iterator[Instance]:
    """All instances, the simple ones of a kind first."""
    names, counts = ["mixed", "training", "short", "level", "mixed", "level"], [20, 40, 60, 25, 400, 150]
    yield from _named("packing", "pack", packing_lives, form=names, buffers=counts, seed=[*range(1, 7)])
    yield from _named("packing", "pack-cut", packing_cut, buffers=[40, 120, 500, 1000, 2000], seed=[*range(1, 6)])
    names, counts = ["mixed", "level", "level", "level", "training", "level"], [60, 25, 50, 120, 200, 400]
    yield from _named("packing", "pack-aligned", packing_aligned, form=names, buffers=counts, seed=[*range(1, 7)])
    counts, spans = [30, 60, 120, 200, 400, 800], [8, 12, 20, 40, 60, 60]
    yield from _named("packing", "pack-ops", packing_operators, operators=counts, longest=spans, seed=[*range(1, 7)])
    yield from _named("operator_order", "order-random", order_random, operators=[15, 25, 40], seed=[1, 2, 8])
    sides = [4, 6, 8, 12, 16, 20]
    yield from _named("operator_order", "order-ladder", order_ladder, rows=sides, columns=sides, seed=[*range(1, 7)])
    counts, widths = [4, 6, 8, 12], [5, 8, 12, 20]
    yield from _named("operator_order", "order-layers", order_layers, layers=counts, width=widths, seed=[1, 2, 3, 4])
    counts = [30, 60, 120, 250, 500, 1000]
    yield from _named("operator_order", "order-training", order_training, operators=counts, seed=[1, 2, 3, 4, 5, 6])
    parts = [90, 70, 60, 50, 45, 20]
    counts = [8, 16, 32, 64, 100, 12]
    yield from _named("rematerialization", "remat-chain", remat_chain, layers=counts, percent=parts, seed=[1, 2, 3, 4, 5, 6])
    parts, counts = [95, 90, 90, 80, 70, 80, 60], [10, 20, 30, 60, 60, 150, 400]
    yield from _named(
        "rematerialization", "remat-training", remat_training, operators=counts, percent=parts, seed=[*range(1, 8)]
    )
    names = ["mixed", "short", "training", "level", "mixed", "training", "level", "short", "level", "mixed", "level"]
    counts, parts = [15, 30, 40, 20, 60, 80, 40, 150, 80, 300, 200], [20, 20, 30, 20, 20, 15, 20, 15, 20, 15, 20]
    yield from _named("banked_packing", "banks", banked_lives, form=names, buffers=counts, percent=parts, seed=[*range(1, 12)])
    names = ["residual", "transformer", "mlp", "branches", "unet", "transformer", "branches", "residual", "transformer"]
    counts = [12, 16, 20, 30, 40, 80, 120, 250, 400]
    yield from _named("tier_placement", "tiers", tier_generated, form=names, layers=counts, seed=[*range(1, 10)])
    names, types, parts = ["resnet50", "resnet50", "bert_base_s128"], ["int8", "fp16", "int8"], [100, 50, 100]
    for name, precision, percent in zip(names, types, parts, strict=True):
        arguments = {"name": name, "precision": precision, "percent": percent}
        identity = f"tiers-{name.replace('_', '-')}-{precision}-{percent}"
        yield Instance(identity, "tier_placement", tier_network, arguments)
    counts = [6, 10, 20, 40, 80, 160]
    yield from _named("bank_mapping", "layouts-random", bank_random, operators=counts, seed=[1, 2, 3, 4, 5, 6])
    counts, parts = [30, 60, 120, 250, 500], [60, 40, 30, 25, 20]
    yield from _named("bank_mapping", "layouts-blocks", bank_blocks, operators=counts, percent=parts, seed=[1, 2, 3, 4, 5])
    names, machines, times = ["distance", "fft4", "fft8", "fft16", "distance", "multiply-add"], ["se"] * 6, [1, 1, 1, 1, 4, 8]
    yield from _named("modulo_scheduling", "loop", modulo_kernel, name=names, machine=machines, unroll=times)
    counts = [8, 12, 18, 26, 36, 48, 64, 24, 40, 5, 6, 10]
    machines = ["se", "se", "se", "se", "se", "se", "se", "mesh-4x4", "torus-4x4", "se", "mesh-3x3", "torus-3x3"]
    yield from _named(
        "modulo_scheduling", "loop", modulo_generated, instructions=counts, machine=machines, seed=[*range(1, 13)]
    )
    counts, widths = [4, 6, 10], [3, 4, 6]
    yield from _named("memory_mapping", "memory-random", memory_random, steps=counts, tensors=widths, seed=[1, 2, 3])
    names = ["training", "inference", "decoding", "recurrent"]
    yield from _named("memory_mapping", "memory-small", memory_miniature, form=names, seed=[1, 2, 3, 4])
    names, counts = ["inference", "training", "recurrent", "training"], [60, 120, 200, 400]
    yield from _named("memory_mapping", "memory", memory_synthetic, form=names, moves=counts, seed=[1, 2, 3, 4])
    names = ["alexnet_inf_b1", "lstm_scan_inf_b32", "alexnet_train_b32", "resnet50_inf_b1"]
    names, parts = [*names, "alexnet_inf_b1", "lstm_scan_inf_b32"], [40, 40, 35, 35, 100, 90]
    for name, percent in zip(names, parts, strict=True):
        arguments = {"name": name, "target": "tpu-v4", "percent": percent}
        yield Instance(f"memory-{name.replace('_', '-')}-{percent}", "memory_mapping", memory_program, arguments)
    counts, widths = [8, 16, 24, 32, 32, 40, 60, 80], [512, 1024, 2048, 4096, 4096, 5120, 6656, 8192]
    rooms: list[tuple[int, ...]] = [(60,), (200,), (600, 400), (2000,), (1500, 1000), (3000, 2000), (6000, 8000, 4000)]
    rooms.append((12000, 8000, 8000, 6000))
    counts, widths, rooms = [*counts, 16, 24], [*widths, 1024, 2048], [*rooms, (4000,), (3000, 2000)]
    yield from _named("llm_placement", "llm", llm_decoder, layers=counts, width=widths, devices=rooms, seed=[*range(1, 11)])
    mixtures: dict[str, list[Any]] = {"layers": [24, 32], "width": [2048, 4096], "devices": [(3000,), (6000, 4000)]}
    yield from _named("llm_placement", "llm-moe", llm_decoder, **mixtures, seed=[1, 2], experts=[8, 8])
