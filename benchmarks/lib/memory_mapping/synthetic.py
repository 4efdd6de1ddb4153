"""Random programs in the manner of compiled neural networks, to train policies without anybody's files.

Three forms: *inference* (layers with weights, branches, residual links), *training* (the same, then backwards: activations
saved on the way, gradients gathered in place, weights and momenta updated in place), and *recurrent* (a loop with weights from
outside, a state carried along, and slices of long sequences). Latencies are a roofline's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace

from stowplan.learned_guidance.memory_mapping.game.programs import peak_live_bytes, with_capacity
from stowplan.models.memory_mapping.problem import Loop, Piece, Problem, Step, Tensor, Use

Form = Literal["inference", "training", "recurrent"]

FORMS: tuple[Form, ...] = ("inference", "training", "recurrent")

#: Bytes of a tensor of middling size, for activations and weights of one program, and how much single ones differ (log scale).
MIDDLING_BYTES, SPREAD = (2**18, 2**23), 0.6

#: Fast memory, as part of the most bytes that are live in one step.
CAPACITIES = 0.08, 0.7

ALIGNMENT = 4096

#: Parts of the moves that the forward pass of a training step takes, and the loop of a recurrent program.
FORWARD, IN_LOOP = 0.24, 0.8


@dataclass(frozen=True)
class _Machine:
    """Speeds in bytes per picosecond, times in picoseconds; those of accelerators, more or less."""

    slow_read: float
    slow_write: float
    fast_read: float
    fast_write: float
    copy: float
    overhead_ps: int
    copy_latency_ps: int

    @staticmethod
    def random(rng: np.random.Generator) -> _Machine:
        slow = _log_uniform(rng, (0.2, 0.8))
        fast = slow * float(rng.uniform(3.0, 8.0))
        return _Machine(
            slow_read=slow,
            slow_write=slow * float(rng.uniform(0.6, 1.0)),
            fast_read=fast,
            fast_write=fast * float(rng.uniform(0.2, 1.0)),
            copy=slow * float(rng.uniform(1.0, 3.0)),
            overhead_ps=int(rng.uniform(2e5, 1e6)),
            copy_latency_ps=int(rng.uniform(2e5, 1e6)),
        )


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    return math.exp(rng.uniform(math.log(limits[0]), math.log(limits[1])))


def synthetic(rng: np.random.Generator, *, moves: int = 300, form: Form | None = None) -> Problem:
    """A random program of about so many moves, of a random form where none is given; the same for the same ``rng``."""
    form = FORMS[int(rng.integers(len(FORMS)))] if form is None else form
    network = _Network(rng, moves)
    {"inference": network.inference, "training": network.training, "recurrent": network.recurrent}[form]()
    return network.problem(f"synthetic-{form}-{int(rng.integers(2**31))}")


@dataclass
class _Layer:
    """What the backward pass needs to know of a layer: ``output = f(inputs, weight)``."""

    inputs: list[int]
    weight: int | None
    output: int


class _Network:
    """A program under construction."""

    def __init__(self, rng: np.random.Generator, moves: int):
        self._rng = rng
        self._moves = moves
        self._machine = _Machine.random(rng)
        self._activation_bytes, self._weight_bytes = _log_uniform(rng, MIDDLING_BYTES), _log_uniform(rng, MIDDLING_BYTES)
        self._compute_bound = float(rng.uniform(0.0, 0.6))
        self._tensors: list[Tensor] = []
        self._steps: list[Step] = []
        self._loops: list[Loop] = []
        self._uses = 0
        self._weight = 1
        self._layers: list[_Layer] = []

    # Forms

    def inference(self) -> None:
        """Layer after layer; the last activation is the output."""
        last = self._forward(self._input("input"), self._moves)
        self._mark_output(last)

    def training(self) -> None:
        """Forward, backward, and an update of every weight."""
        last = self._forward(self._input("input"), FORWARD * self._moves)
        loss = self._tensor("loss", 4, is_output=True)
        gradient = self._like("gradient", last)
        self._step("loss", [last], [loss, gradient])
        self._backward(last, gradient)

    def recurrent(self) -> None:
        """A loop over a sequence between some layers before and after."""
        trips = int(self._rng.integers(4, 65))
        before = self._forward(self._input("input"), self._rng.uniform(0.0, 1.0 - IN_LOOP) * self._moves)
        source, made = self._tensor("sequence", self._bytes(False) * 4, is_input=True), None
        if self._rng.random() < 0.7:
            made = self._tensor("results", self._bytes(False) * 4)
            self._step("broadcast", [], [made])
        state = self._like("state", before)
        self._step("copy", [before], [state])
        with self._loop(trips):
            piece = self._tensor("piece", max(4, self._tensors[source].size // trips))
            self._step("dynamic-slice", [source], [piece], parts={source: trips})
            weights = [self._weights() for _ in range(int(self._rng.integers(1, 5)))]
            current, share = piece, self._uses + 0.5 * IN_LOOP * self._moves
            while True:
                weight = weights[int(self._rng.integers(len(weights)))]
                following = self._like("activation", current)
                self._step("dot", [current, state, weight], [following], has_matrix=True)
                current = following
                if self._uses >= share:
                    break
            self._step("update", [current, state], [state])
            if made is not None:
                self._step("dynamic-update-slice", [current, made], [made], parts={made: trips})
        self._mark_output(self._forward(state if made is None else made, self._moves))

    # Passes

    def _forward(self, current: int, until: float) -> int:
        """Layers until the program has so many uses; the last activation."""
        rng, skip = self._rng, current
        while self._uses < until:
            kind = rng.random()
            if kind < 0.5:
                current = self._layer("convolution", [current], self._weights())
            elif kind < 0.65:
                current = self._layer("normalise", [current], None)
            elif kind < 0.85:
                current = self._layer("add", [current, skip] if skip != current else [current], None, size_of=current)
                skip = current
            else:
                branches = [self._layer("dot", [current], self._weights()) for _ in range(int(rng.integers(2, 4)))]
                current = self._layer("attention", branches, None)
        return current

    def _layer(self, opcode: str, inputs: list[int], weight: int | None, size_of: int | None = None) -> int:
        output = self._like("activation", size_of) if size_of is not None else self._tensor("activation", self._bytes(False))
        reads = inputs if weight is None else [*inputs, weight]
        self._step(opcode, reads, [output], has_matrix=weight is not None)
        self._layers.append(_Layer(inputs, weight, output))
        return output

    def _backward(self, last: int, gradient: int) -> None:
        """Gradients of all layers, the last first; each weight is updated as soon as its gradient is known."""
        gradients = {last: gradient}
        for layer in reversed(self._layers):
            # A branch that nothing used has no gradient.
            above = gradients.pop(layer.output, None)
            if above is None:
                continue
            if layer.weight is not None:
                self._update(layer.weight, [above, *layer.inputs])
            for source in layer.inputs:
                if self._tensors[source].is_input:
                    continue
                if layer.weight is not None:
                    below = [above, layer.weight]
                else:
                    # A sum passes its gradient on; what bends activations needs to know what it made of them.
                    below = [above, layer.output] if len(layer.inputs) == 1 else [above]
                if source in gradients:
                    self._step("add-gradient", [*below, gradients[source]], [gradients[source]])
                else:
                    gradients[source] = self._like("gradient", source)
                    self._step("gradient", below, [gradients[source]], has_matrix=layer.weight is not None)

    def _update(self, weight: int, reads: list[int]) -> None:
        change = self._like("weight-gradient", weight)
        self._step("weight-gradient", reads, [change], has_matrix=True)
        momentum = self._like("momentum", weight, is_input=True, is_output=True)
        self._mark_output(weight)
        self._step("update", [change, weight, momentum], [weight, momentum])

    # Parts

    def _bytes(self, is_weight: bool) -> int:
        middle = self._weight_bytes if is_weight else self._activation_bytes
        # Whole tiles, so that sizes repeat as they do in compiled programs.
        return max(1, round(float(middle * np.exp(self._rng.normal(0.0, SPREAD))) / ALIGNMENT)) * ALIGNMENT

    def _tensor(self, name: str, size: int, *, is_input: bool = False, is_output: bool = False) -> int:
        copy_ps = self._machine.copy_latency_ps + round(size / self._machine.copy)
        number = len(self._tensors)
        self._tensors.append(Tensor(f"{name}.{number}", size, copy_ps, copy_ps, is_input=is_input, is_output=is_output))
        return number

    def _like(self, name: str, other: int, *, is_input: bool = False, is_output: bool = False) -> int:
        return self._tensor(name, self._tensors[other].size, is_input=is_input, is_output=is_output)

    def _input(self, name: str) -> int:
        return self._tensor(name, self._bytes(False), is_input=True)

    def _weights(self) -> int:
        return self._tensor("weight", self._bytes(True), is_input=True)

    def _mark_output(self, tensor: int) -> None:
        self._tensors[tensor] = replace(self._tensors[tensor], is_output=True)

    @contextmanager
    def _loop(self, trips: int) -> Iterator[None]:
        start, self._weight = len(self._steps), trips
        yield
        self._weight = 1
        self._loops.append(Loop(start, len(self._steps), trips))

    def _step(
        self,
        opcode: str,
        reads: Sequence[int],
        writes: Sequence[int],
        *,
        has_matrix: bool = False,
        parts: dict[int, int] | None = None,
    ) -> None:
        """A step that moves all bytes of its tensors, or one of so many ``parts`` of them."""
        parts = parts or {}
        listed = [(tensor, False) for tensor in dict.fromkeys(reads)] + [(tensor, True) for tensor in writes]
        uses = tuple(Use(tensor, out, self._tensors[tensor].size // parts.get(tensor, 1)) for tensor, out in listed)
        machine = self._machine
        slow = tuple(round(use.bytes / (machine.slow_write if use.is_output else machine.slow_read)) for use in uses)
        fast = tuple(round(use.bytes / (machine.fast_write if use.is_output else machine.fast_read)) for use in uses)
        pieces = [Piece(machine.overhead_ps, slow, fast)]
        if has_matrix:
            # Between none and all of the traffic hides behind the computation.
            is_bound = self._rng.random() < self._compute_bound
            hidden = self._rng.uniform(0.6, 1.2) if is_bound else self._rng.uniform(0.0, 0.6)
            none = (0,) * len(uses)
            pieces.append(Piece(machine.overhead_ps + round(hidden * sum(slow)), none, none))
        self._steps.append(Step(f"{opcode}.{len(self._steps)}", opcode, self._weight, uses, tuple(pieces)))
        self._uses += len(uses)

    def problem(self, name: str) -> Problem:
        """The program, with fast memory that is too small for all of it."""
        whole = Problem(
            name=name,
            target="synthetic",
            cost_model="roofline",
            capacity=max(tensor.size for tensor in self._tensors),
            steps=tuple(self._steps),
            tensors=tuple(self._tensors),
            loops=tuple(self._loops),
            alignment=ALIGNMENT,
        )
        wanted = int(self._rng.uniform(*CAPACITIES) * peak_live_bytes(whole))
        return replace(with_capacity(whole, max(ALIGNMENT, wanted // ALIGNMENT * ALIGNMENT)), name=name)
