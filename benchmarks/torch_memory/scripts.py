"""Training scripts as people write them, within limits of a step: what is measured beside what eager takes.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.scripts [--scripts foreach,two_models] [--parts 0.9 1.1] [--time-limit 5] [--host 2e9]

Peaks are bytes of storages on a CPU, of tensors that the script's models, optimizers and steps have. ``first`` is the most of
the first two steps, in which it is measured what lives beside the graphs, ``later`` of those behind; both are to be within the
limit. ``added`` is what plans made anew run again, in floating-point operations. An error says what would do. ``--host`` lets
values go to a host at so many bytes per second, with the rates of an H100: ``added`` is in picoseconds then, and ``sent`` what
is there at most.
"""

from __future__ import annotations

import argparse
import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.lib.tables import table
from stowplan.backends.torch import MemoryLimitError, backend, measure_peaks

WIDTH, CLASSES, BATCH = 32, 48, 64


def network(layers: int = 4, out: int = CLASSES) -> Any:
    torch.manual_seed(0)
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, out))


def batch(count: int = BATCH) -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(count, WIDTH), torch.randint(0, CLASSES, (count,))


class Script:
    """A training script; ``steps`` are functions, and each optimizer's state counts."""

    def __init__(self, models: list[Any], wrap: Callable[[Any], Any]):
        self.models = models
        self.optimizers: list[Any] = []
        self.made = [wrap(model) for model in models]

    def state(self) -> list[Any]:
        return [value for optimizer in self.optimizers for row in optimizer.state.values() for value in row.values()]


def criterion_outside(wrap: Any, make: Any = None, model: Any = None) -> tuple[Script, list[Any]]:
    script = Script([model or network()], wrap)
    (model,), (run,) = script.models, script.made
    script.optimizers = [make(model.parameters()) if make else torch.optim.SGD(model.parameters(), lr=0.1)]

    def step() -> None:
        x, y = batch()
        functional.cross_entropy(run(x), y).backward()
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 4


def foreach(wrap: Any) -> Any:
    return criterion_outside(wrap, lambda given: torch.optim.Adam(given, foreach=True))


def one_by_one(wrap: Any) -> Any:
    return criterion_outside(wrap, lambda given: torch.optim.AdamW(given, foreach=False))


def momentum(wrap: Any) -> Any:
    return criterion_outside(wrap, lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9))


def accumulation(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)
    (run,) = script.made

    def step() -> None:
        for _ in range(3):
            x, y = batch()
            (functional.cross_entropy(run(x), y) / 3).backward()
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 3


def two_models(wrap: Any) -> Any:
    script = Script([network(2, WIDTH), network(2)], wrap)
    script.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in script.models]

    def step() -> None:
        x, y = batch()
        functional.cross_entropy(script.made[1](script.made[0](x)), y).backward()
        for optimizer in script.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return script, [step] * 3


def evaluation_between(wrap: Any) -> Any:
    script, (step, *_) = criterion_outside(wrap)

    def evaluate() -> None:
        with torch.no_grad():
            x, y = batch(2 * BATCH)
            functional.cross_entropy(script.made[0](x), y)

    return script, [step, evaluate, step, evaluate, step]


def larger_last_batch(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)

    def of(count: int) -> Callable[[], None]:
        def step() -> None:
            x, y = batch(count)
            script.made[0](x).gather(1, y[:, None]).mean().backward()
            script.optimizers[0].step()
            script.optimizers[0].zero_grad()

        return step

    return script, [of(BATCH), of(BATCH // 2), of(BATCH), of(6 * BATCH)]


def mixed_precision(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)

    def step() -> None:
        x, y = batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(script.made[0](x), y)
        loss.backward()
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 3


def scaled(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        x, y = batch()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.cross_entropy(script.made[0](x), y)
        scaler.scale(loss).backward()
        scaler.step(script.optimizers[0])
        scaler.update()
        script.optimizers[0].zero_grad()

    return script, [step] * 4


def without_backward(wrap: Any) -> Any:
    """Losses that are looked at, and no more."""
    script, (step, *_) = criterion_outside(wrap)

    def look() -> None:
        x, y = batch()
        functional.cross_entropy(script.made[0](x), y)

    return script, [look, step, look, step, look, step, step]


def layer_by_layer(wrap: Any) -> Any:
    """Each layer is compiled alone, and they share a graph."""
    torch.manual_seed(0)
    script = Script([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(6)], wrap)
    script.optimizers = [torch.optim.AdamW([each for layer in script.models for each in layer.parameters()])]

    def step() -> None:
        x, y = batch()
        for layer in script.made:
            x = x + layer(x)
        functional.cross_entropy(x, y % WIDTH).backward()
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 4


def clipped(wrap: Any) -> Any:
    script, _ = criterion_outside(wrap)

    def step() -> None:
        x, y = batch()
        functional.cross_entropy(script.made[0](x), y).backward()
        nn.utils.clip_grad_norm_(script.models[0].parameters(), 1.0)
        script.optimizers[0].step()
        script.optimizers[0].zero_grad()

    return script, [step] * 3


SCRIPTS = [
    criterion_outside,
    foreach,
    one_by_one,
    momentum,
    accumulation,
    two_models,
    evaluation_between,
    larger_last_batch,
    mixed_precision,
    clipped,
    scaled,
    without_backward,
    layer_by_layer,
]


def measured(script: Script, steps: list[Any]) -> list[int]:
    """Peak of each step, as far as none is an error."""
    return [measure_peaks(step, *script.models, script.state()).device for step in steps]


def weights(script: Script) -> list[Any]:
    return [each.detach().clone() for model in script.models for each in model.parameters()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", default=",".join(make.__name__ for make in SCRIPTS), help="names, separated by commas")
    parser.add_argument("--parts", type=float, nargs="+", default=[0.9, 1.0, 1.2], help="limits, in eager's peaks")
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds of planning for each graph")
    parser.add_argument("--host", type=float, help="bytes per second to a host, and back; none without")
    options = parser.parse_args()
    host = {} if options.host is None else {"host": "1 GiB", "host_bandwidth": options.host, "costs": "h100"}
    known = {make.__name__: make for make in SCRIPTS}
    rows = []
    for name in options.scripts.split(","):
        for part in options.parts:
            rows.append(run(known[name], part, options.time_limit, host))
            print("#", *rows[-1], flush=True)
    print(table(rows, ["script", "eager", "limit", "first", "later", "sent", "added", "gradients", "error"]))


def run(make: Any, part: float, time_limit: float, host: dict[str, Any]) -> tuple[Any, ...]:
    """A row of the table."""
    torch._dynamo.reset()
    gc.collect()
    eager, steps = make(lambda model: model)
    most = max(measured(eager, steps))
    limit = int(part * most)
    made: Any = backend(limit, time_limit=time_limit, **host)
    script, steps = make(lambda model: torch.compile(model, backend=made))
    taken, said = [], ""
    for step in steps:
        try:
            taken.append(measure_peaks(step, *script.models, script.state()))
        except (MemoryLimitError, torch._dynamo.exc.BackendCompilerFailed) as error:
            said = str(getattr(error, "inner_exception", error)).partition("\n")[0]
            break
    pairs = zip(weights(script), weights(eager), strict=True)
    same = "" if said else "eager's" if all(torch.equal(one, other) for one, other in pairs) else "others"
    peaks, sent = [step.device for step in taken], max((step.host for step in taken), default=0)
    above = " ABOVE" if max(peaks, default=0) > limit else ""
    later = f"{max(peaks[2:], default='-')}{above}"
    added = sum(report.added_cost for report in made.reports if report.source != "first steps")
    return make.__name__, most, limit, max(peaks[:2], default="-"), later, sent, added, same, said


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
