"""Published pairs of placements with the rates of generation that others measured, each with its source.

Only facts and figures were taken over. A *cell* is one model on one machine at one depth with two placements, called *arms*:
the default one, which is what ``--fit`` or the default split places, and another one that also fits. A *run* is one measured
placement; runs that are in no cell still tell the speeds of a machine. Left out were threads that do not say the quantization,
the placement of both arms or the devices, and pairs in which one arm holds more on the same device than the other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A device as its data sheet has it."""

    name: str
    free_mib: int
    """Memory that the source says is free, or all of it."""
    gbs: float
    """Bandwidth of its memory in GB/s, by the data sheet."""


@dataclass(frozen=True)
class Published:
    """A machine of a source."""

    name: str
    host_gbs: float
    """Bandwidth of the RAM in GB/s: of two channels of the kind that the processor takes, as no source says it in full."""
    cards: tuple[Card, ...]
    family: str = ""
    """Machines with the same host: they are calibrated together; the name where there is no other."""


@dataclass(frozen=True)
class Run:
    """One measured placement."""

    machine: str
    model: str
    words: tuple[str, ...]
    """Options of llama.cpp; empty for what ``--fit`` places."""
    depth: int
    """Tokens before."""
    rate: float
    """Tokens in a second. Only the ratio of the two rates of a cell is meant where ``is_exact`` is False."""
    generated: int = 128
    cache_type: str = "f16"
    context: int = 0
    """Tokens that the cache was allocated for; 0 for as many as are used."""
    is_exact: bool = True
    """Whether the rate is one of plain generation; False with speculative decoding, or where the source has a ratio alone."""


@dataclass(frozen=True)
class Cell:
    """Two placements of one model at one depth."""

    default: Run
    other: Run
    source: str
    """Thread or repository, author or file, date."""


def layers(count: int, *others: str) -> tuple[str, ...]:
    """The last layers on devices."""
    return ("-ngl", str(count), *others)


def spilled(count: int, experts: bool = False) -> tuple[str, ...]:
    """All layers on devices, the feed-forward weights of the first ones on the host: ``--n-cpu-ffn`` or ``--n-cpu-moe``."""
    numbers = "|".join(map(str, range(count)))
    suffix = "_exps" if experts else ""
    return ("-ngl", "99", "-ot", rf"blk\.({numbers})\.ffn_(up|down|gate){suffix}\.weight=CPU")


def blocks(count: int, numbers: str, *others: str) -> tuple[str, ...]:
    """The last layers on devices, but some of their blocks on the host."""
    return ("-ngl", str(count), *others, "-ot", rf"blk\.({numbers})\.=CPU")


MACHINES = {
    machine.name: machine
    for machine in (
        Published("i5-12400F, RTX 6000 Ada", 51.2, (Card("CUDA0", 38016, 960.0),)),
        Published("Ryzen 7 5800X, RX 6700 XT (Vulkan)", 51.2, (Card("Vulkan0", 12272, 384.0),)),
        # Dual-channel DDR5; the card's memory is overclocked to 13.8 Gbit/s on 192 bits.
        Published("Ryzen 5 7600X, GTX 1660 Ti", 83.2, (Card("CUDA0", 6144, 331.0),)),
        Published("i9-9900K, 7900 XTX and 2070 (Vulkan)", 42.7, (Card("Vulkan0", 24560, 960.0), Card("Vulkan1", 8192, 448.0))),
        Published("RTX 3090 and RTX 3070", 51.2, (Card("CUDA0", 24576, 936.0), Card("CUDA1", 8192, 448.0))),
        Published("RTX 5070 and RTX 3060", 51.2, (Card("CUDA0", 11300, 672.0), Card("CUDA1", 12270, 360.0))),
        Published("RTX 5090 and RTX 3080 (LM Studio)", 51.2, (Card("CUDA0", 32607, 1792.0), Card("CUDA1", 10240, 760.0))),
    )
}  # fmt: skip

ADA, RX6700, GTX1660, SYSTEM_A, RTX3090, RTX5070, RTX5090 = MACHINES


def _unsloth() -> list[Cell]:
    """The feed-forward weights of some blocks on the host (A) against what ``--fit`` places (B), by the tables of two threads.

    Cells with less free memory, or with the other card of the machine, have a machine of their own here, of one family.
    """
    rows = (
        # Model, card, free MiB, blocks, depth, rates A and B, exact.
        ("9872", "llama-3-70b", "Ada", 38016, 38, 2339, 2.19, 2.43, True),
        ("9872", "llama-3-70b", "Ada", 38016, 38, 8051, 2.25, 1.77, True),
        ("9872", "llama-3-70b", "Ada", 38016, 38, 16202, 2.23, 0.92, True),
        ("9872", "llama-3-70b", "Ada", 38016, 38, 29540, 2.19, 0.56, True),
        ("9872", "qwen-3-32b", "Ada", 18560, 55, 2318, 0.47, 1.0, False),
        ("9872", "qwen-3-32b", "Ada", 18560, 55, 8039, 3.08, 2.24, True),
        ("9872", "qwen-3-32b", "Ada", 18560, 55, 16190, 3.08, 0.99, True),
        ("9872", "qwen-3-32b", "Ada", 18560, 55, 29528, 3.03, 0.57, True),
        ("9861", "llama-3-70b", "Ada", 38016, 38, 84, 14.01, 33.03, False),
        ("9861", "llama-3-70b", "Ada", 38016, 38, 4106, 15.95, 10.51, False),
        ("9861", "llama-3-70b", "Ada", 38016, 38, 29528, 25.10, 4.87, False),
        ("9861", "llama-3-70b", "Ada", 47360, 17, 1000, 34.28, 38.65, False),
        ("9861", "llama-3-70b", "3090", 24448, 73, 1000, 6.56, 5.96, False),
        ("9861", "qwen-3-32b", "3090", 24320, 26, 1000, 24.11, 28.61, False),
        ("9861", "qwen-3-32b", "3090", 24064, 27, 1000, 23.62, 29.77, False),
        ("9861", "qwen-3-32b", "Ada", 18560, 55, 1000, 20.60, 26.72, False),
    )
    found = []
    for thread, model, card, free, count, depth, other, default, is_exact in rows:
        machine = ADA
        if (card, free) != ("Ada", 38016):
            machine = f"i5-12400F, {'RTX 6000 Ada' if card == 'Ada' else 'RTX 3090'}, {free} MiB"
            MACHINES[machine] = Published(machine, 51.2, (Card("CUDA0", free, 960.0 if card == "Ada" else 936.0),), ADA)
        default_run, other_run = (
            Run(machine, model, words, depth, rate, 256, context=32768, is_exact=is_exact)
            for words, rate in (((), default), (spilled(count), other))
        )
        found.append(Cell(default_run, other_run, f"unslothai/unsloth #{thread}, table of the thread"))
    return found


def _rx6700() -> list[Cell]:
    """Experts of the first layers on the host, as ``--fit`` places a mixture, against whole layers.

    Both hold the same on the device but for the experts of one layer, which the default has more.
    """
    source = "markb-1/rx6700xt-local-ai, results/llamacpp/2026-09-30-qwen3-30b-a3b-ngl-sweep.csv, 2026-09-30"
    pairs = (
        (18, 32.997, 30, 34.121),
        (20, 31.418, 28, 32.480),
        (24, 28.512, 24, 28.861),
        (32, 24.869, 16, 23.935),
        (40, 21.083, 8, 20.265),
        # Nothing at all on the device: less memory than the default, but a placement that planning chooses from.
        (48, 18.516, 0, 20.630),
    )
    found = []
    for experts, default, count, other in pairs:
        words = layers(count) if count else layers(0, "-dev", "none")
        runs = [
            Run(RX6700, "qwen-3-30b-a3b", chosen, 0, rate)
            for chosen, rate in ((spilled(experts, True), default), (words, other))
        ]
        found.append(Cell(runs[0], runs[1], source))
    return found


def _gtx1660() -> list[Cell]:
    """Whole layers against attention on the device and layers with a recurrent state on the host; means of two passes."""
    source = "TheCascadian/Oddly-llama.cpp, local-tune/results/compare-s1-9b-place.csv, 2026-10-07"
    rows = (
        (0, (26.112, 24.410), (26.050, 25.563), (27.675, 27.697)),
        (8192, (21.850, 21.497), (24.811, 25.113), (26.307, 26.574)),
        (12288, (20.022, 20.396), (24.532, 24.596), (25.958, 26.025)),
        (15360, (18.324, 18.490), (23.461, 24.155), (24.227, 25.532)),
    )
    found = []
    for depth, *rates in rows:
        words = (layers(25), blocks(30, "4|5|6|8|9"), blocks(30, "4|5|6|8"))
        runs = [
            Run(GTX1660, "qwen-3.5-9b", chosen, depth, sum(pair) / 2, 32, "q8_0")
            for chosen, pair in zip(words, rates, strict=True)
        ]
        found += [Cell(runs[0], other, source) for other in runs[1:]]
    return found


def _system_a() -> list[Cell]:
    """All devices in shares of their memory, the default, against the fast one alone, or with less on the slow one."""
    folder = "ccarokh/AI-Model-Benchmark-Runs"
    both, alone = ("-ngl", "99", "-ts", "3,1"), ("-ngl", "99", "-dev", "Vulkan0")

    def cell(model: str, words: tuple[str, ...], default: float, other: float, file: str) -> Cell:
        return Cell(Run(SYSTEM_A, model, both, 0, default), Run(SYSTEM_A, model, words, 0, other), f"{folder}, {file}")

    return [
        cell("qwen-3.5-9b", alone, 69.93, 111.93, "data/vulkan_tensor_split.tsv, round 1, 2026-09-11"),
        cell("qwen-3.5-27b", alone, 24.70, 38.99, "data/vulkan_tensor_split.tsv, round 3, 2026-09-11"),
        cell("qwen-3.5-27b", ("-ngl", "99", "-ts", "7,1"), 24.52, 25.84, "hardware/multi-gpu.md, 2026-08"),
    ]


def _others() -> list[Cell]:
    """Machines with one model."""
    triton = "NighmareGit/atomic-llama-cpp-turboquant, baselines of layer and tensor splits, host triton, 2026-07-17"
    dual = "Vietnoirien/oaken-bench, examples/launch-dual.sh, preset oss20b, comments, 2026-09"
    studio = "lmstudio-ai/lmstudio-bug-tracker #1608, ndizazzo, 2026-03-05"
    whole = ("-ngl", "99")
    return [
        Cell(
            Run(RTX3090, "qwen-3.5-0.8b", (*whole, "-ts", "75,25"), 0, 437.2, 64),
            Run(RTX3090, "qwen-3.5-0.8b", (*whole, "-dev", "CUDA0"), 0, 456.8, 64),
            triton,
        ),
        *(
            Cell(
                Run(RTX5070, "gpt-oss-20b", (*whole, "-ts", "50,50"), 200, 113.7, 300, "q8_0", 131072),
                Run(RTX5070, "gpt-oss-20b", (*whole, "-ts", shares), 200, rate, 300, "q8_0", 131072),
                dual,
            )
            for shares, rate in (("65,35", 119.0), ("72,28", 120.5))
        ),
        Cell(
            Run(RTX5090, "qwen-3.5-27b", (*whole, "-ts", "32,10"), 200, 40.0),
            Run(RTX5090, "qwen-3.5-27b", (*whole, "-dev", "CUDA0"), 200, 55.0),
            studio,
        ),
    ]


CELLS: list[Cell] = [*_unsloth(), *_rx6700(), *_gtx1660(), *_system_a(), *_others()]

#: Runs that are in no cell: they tell the speeds of a machine.
RUNS: list[Run] = [
    Run(SYSTEM_A, "qwen-3.5-9b", ("-ngl", "99", "-dev", "Vulkan1"), 0, 49.83),
    Run(RTX3090, "qwen-3.5-0.8b", ("-ngl", "99", "-dev", "CUDA1"), 0, 317.4, 64),
]
