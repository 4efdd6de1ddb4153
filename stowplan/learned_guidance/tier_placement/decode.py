"""Makes executable maps from the probabilities of a policy: its likeliest tiers, or tiers filled in its order.

A *map* gives the weights and the output of each layer a tier. No tensor makes a layer slower in a faster tier, so fast memory
should be full, and the policy decides which tensors take priority. The method *filled*, which is compiled, works as follows.
Tensors are considered in the order of their odds for the fastest tier. Each is placed there if there is room at every step of
its life; a *step* is the execution of one layer. The next tier takes the remaining tensors in the order of their odds for it or
a faster tier. Then tensors that save no time in their tier, because their layers wait for something else, are removed to make
room for others. The cost model evaluates a map in microseconds, so several maps are filled from one posterior, the
probabilities of a policy, and the best map is kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stowplan.compiled import Ints3D, njit, njit_inner
from stowplan.errors import UsageError
from stowplan.hardware.nnp_i import compiled
from stowplan.hardware.nnp_i.compiled import Arrays, Workspace
from stowplan.hardware.nnp_i.compiler import Rectifier, plan_of
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

#: Orders sort by the logarithm of odds, minus this factor times the logarithm of the tensor's bytes times steps.
SIZE_PARTS = (0.0, 0.25, 0.5)

#: Standard deviations of the noise on the logarithms of odds. The first orders have none, the other orders use these in turn.
NOISE = (0.5, 1.0, 2.0)

#: Largest number of orders of a posterior, and the number of tensors that all orders together should place. The least number of
#: orders is twice the length of :data:`SIZE_PARTS`; half of them have noise.
MOST_ORDERS, TENSORS = 64, 100_000

#: Rounds of filling tiers. Before each round but the first, tensors that save no time are removed.
ROUNDS = 2

#: Probabilities are clipped to this distance from 0 and 1.
_LEAST = 1e-9


class Decoder:
    """Computes maps from posteriors for one problem.

    Parameters
    ----------
    problem
        A problem with any number of tiers. If tiers are address spaces, the rectifier computes offsets and may move tensors.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self._arrays = compiled.arrays_of(problem)
        self._owner = np.repeat(np.arange(len(problem.layers)), np.diff(self._arrays.first_input))
        """The layer that reads each of the inputs."""
        self._readers, self._first_reader = self._find_readers()
        layers = len(problem.layers)
        steps = np.stack([np.full(layers, layers), self._arrays.last - np.arange(layers) + 1], axis=1)
        sizes = np.stack([self._arrays.weights, self._arrays.outputs], axis=1)
        self._log_room = np.log(np.maximum(1.0, sizes.astype(float) * steps))

    def likeliest(self, probabilities: Floats) -> Plan:
        """Place each tensor in its likeliest tier, and rectify the map like the chip's compiler. Take the same
        ``probabilities`` and raise the same errors as :meth:`filled`."""
        return self._plan(self._check_probabilities(probabilities).argmax(axis=-1))

    def filled(self, probabilities: Floats, *, seed: int = 0, orders: int | None = None) -> Plan:
        """Fill several maps in the order of a posterior, and return the one with the smallest latency; see the module.

        Parameters
        ----------
        probabilities
            Probabilities [N, 2, T] of tiers, for the weights and for the output of each layer. Equal odds keep the order of
            layers.
        seed
            Seed of the noise.
        orders
            Number of orders, at least 1; None for as many as take a few tenths of a second, see :data:`TENSORS`.

        Returns
        -------
        Plan
            The plan with its latency in ps, and offsets if tiers are address spaces.

        Raises
        ------
        UsageError
            If the probabilities have another shape.
        InputError
            If no tier has room for a tensor.
        """
        checked = self._check_probabilities(probabilities)
        if checked.shape[-1] == 1:
            return self._plan(np.zeros(checked.shape[:2], np.int64))
        layers = len(checked)
        if orders is None:
            orders = min(MOST_ORDERS, max(2 * len(SIZE_PARTS), TENSORS // (2 * layers)))
        maps = self._fill_maps(self._orders(checked, orders, seed), ROUNDS)
        weights, outputs = (np.ascontiguousarray(maps[..., part]) for part in range(2))
        # The slowest tier may be too small for the remaining tensors.
        moved = compiled.rectify(self._arrays, weights, outputs)
        latencies = compiled.latencies(self._arrays, weights, outputs)
        best = int(np.where(moved < 0, np.iinfo(np.int64).max, latencies).argmin())
        return self._plan(np.stack([weights[best], outputs[best]], axis=1))

    def _fill_maps(self, orders: Ints, rounds: int) -> Ints:
        """Return a map [K, N, 2] for each order, as :func:`filled_maps` fills it."""
        data = self._arrays
        moved = data.external + data.weight_moves[:, 0] + data.output_moves[:, 0]
        np.add.at(moved, self._owner, data.output_moves[data.inputs, 0])
        maps = np.empty((len(orders), len(moved), 2), np.int64)
        room, scratch = compiled.workspace_for(data), np.empty_like(moved)
        filled_maps(data, self._readers, self._first_reader, moved, orders, rounds, maps, room, scratch)
        return maps

    def _find_readers(self) -> tuple[Ints, Ints]:
        """Return the readers of all outputs, concatenated, and the start ``[n + 1]`` of the readers of each."""
        inputs = self._arrays.inputs
        order = np.argsort(inputs, kind="stable")
        begins = np.searchsorted(inputs[order], np.arange(len(self.problem.layers) + 1))
        return self._owner[order], begins.astype(np.int64)

    def _check_probabilities(self, probabilities: Floats) -> Floats:
        """Return the probabilities; raise UsageError if they have another shape than ``[N, 2, T]``."""
        expected = (len(self.problem.layers), 2, len(self.problem.tiers))
        if probabilities.shape != expected:
            raise UsageError(f"found probabilities of shape {probabilities.shape}, expected {expected}")
        return probabilities

    def _orders(self, probabilities: Floats, count: int, seed: int) -> Ints:
        """Return the tensors [K, T - 1, 2 N] by their odds for a tier or a faster one, from the second slowest tier on."""
        faster = np.cumsum(probabilities[..., ::-1].astype(float), axis=-1)[..., -2::-1]
        faster = np.clip(faster, _LEAST, 1 - _LEAST)
        odds = np.moveaxis(np.log(faster) - np.log1p(-faster), -1, 0)
        rng = np.random.default_rng(seed)
        orders = []
        for number in range(count):
            part = SIZE_PARTS[number % len(SIZE_PARTS)]
            scores = odds - part * self._log_room
            if number >= len(SIZE_PARTS):
                deviation = NOISE[number // len(SIZE_PARTS) % len(NOISE)]
                # The noise of a tensor is the same for all tiers, because it changes the priority of the tensor.
                scores = scores + deviation * rng.standard_normal(self._log_room.shape)
            orders.append(np.argsort(-scores.reshape(len(scores), -1), axis=-1, kind="stable"))
        return np.stack(orders).astype(np.int64)

    def _plan(self, tiers: Ints) -> Plan:
        """Return the plan of a map [N, 2] after the chip's compiler has rectified it."""
        memory_map = Rectifier(self.problem).rectify(tiers[:, 0].tolist(), tiers[:, 1].tolist()).map
        return plan_of(self.problem, memory_map)


@njit
def filled_maps(
    data: Arrays,
    readers: Ints,
    first_reader: Ints,
    slow: Ints,
    orders: Ints3D,
    rounds: int,
    maps: Ints3D,
    room: Workspace,
    moved: Ints,
) -> None:
    """Fill one map for each order. The maps may exceed the capacity of the slowest tier.

    Parameters
    ----------
    data
        The problem with n layers and T tiers as arrays.
    readers, first_reader
        Layers that read each output: ``readers[first_reader[i] : first_reader[i + 1]]``.
    slow
        [n] time in ps for which each layer moves bytes if all tensors are in the slowest tier.
    orders
        [K, T - 1, 2 n] tensors in the order in which they are placed in tier 1, 2 ... or a faster one. Tensor 2 i is the
        weights of layer i, 2 i + 1 its output.
    rounds
        Number of times that tiers are filled. Before each but the first, tensors that save no time are removed.
    maps
        [K, n, 2] output: tiers of weights and outputs.
    room, moved
        Work arrays; ``moved`` [n].
    """
    tiers = len(data.capacity)
    used, stored, peak = room
    for k in range(len(orders)):
        used[:] = 0
        stored[:] = 0
        peak[:] = 0
        for layer in range(len(slow)):
            moved[layer] = slow[layer]
        tier_of = maps[k]
        tier_of[:] = 0
        for turn in range(rounds):
            if turn:
                _remove_useless(data, readers, first_reader, orders[k], tier_of, used, stored, peak, moved)
            for t in range(tiers - 1, 0, -1):
                for tensor in orders[k, t - 1]:
                    i, part = tensor // 2, tensor % 2
                    if (
                        tier_of[i, part] >= t
                        or (part == 0 and data.weights[i] == 0)
                        or not _fits(data, used, stored, peak, tensor, t)
                    ):
                        continue
                    saved = _time_saved(data, tensor, tier_of[i, part], t)
                    # The first round takes all tensors that fit: one that saves no time alone may save time together with
                    # others.
                    if turn and _gain(data, readers, first_reader, moved, tensor, saved) == 0:
                        continue
                    if tier_of[i, part]:
                        _add_or_remove(data, used, stored, peak, tensor, tier_of[i, part], -1)
                    _add_or_remove(data, used, stored, peak, tensor, t, 1)
                    _move(readers, first_reader, moved, tensor, saved)
                    tier_of[i, part] = t


@njit_inner
def _remove_useless(
    data: Arrays,
    readers: Ints,
    first_reader: Ints,
    orders: Ints,
    tier_of: Ints,
    used: Ints,
    stored: Ints,
    peak: Ints,
    moved: Ints,
) -> None:
    """Remove tensors that save no time in their tier, the last of each order first. ``used`` [T, steps] are the bytes of
    outputs in each tier, ``peak`` [T] their maxima over steps, and ``stored`` [T] the bytes of weights."""
    for t in range(1, len(data.capacity)):
        for tensor in orders[t - 1, ::-1]:
            i, part = tensor // 2, tensor % 2
            if tier_of[i, part] != t:
                continue
            saved = _time_saved(data, tensor, t, 0)
            if _gain(data, readers, first_reader, moved, tensor, saved) == 0:
                _add_or_remove(data, used, stored, peak, tensor, t, -1)
                _move(readers, first_reader, moved, tensor, saved)
                tier_of[i, part] = 0


@njit_inner
def _time_saved(data: Arrays, tensor: int, was: int, to: int) -> int:
    """Return the time in ps that each move of a tensor saves in another tier."""
    i = tensor // 2
    if tensor % 2:
        return int(data.output_moves[i, was] - data.output_moves[i, to])
    return int(data.weight_moves[i, was] - data.weight_moves[i, to])


@njit_inner
def _fits(data: Arrays, used: Ints, stored: Ints, peak: Ints, tensor: int, t: int) -> bool:
    """Whether a tier has room for a tensor at every step of its life."""
    i = tensor // 2
    if tensor % 2 == 0:
        return bool(stored[t] + peak[t] + data.weights[i] <= data.capacity[t])
    room = data.capacity[t] - stored[t] - data.outputs[i]
    if room < 0:
        return False
    if peak[t] <= room:
        return True
    fits = True
    for step in range(i, data.last[i] + 1):
        if used[t, step] > room:
            fits = False
            break
    return fits


@njit_inner
def _add_or_remove(data: Arrays, used: Ints, stored: Ints, peak: Ints, tensor: int, t: int, sign: int) -> None:
    """Add a tensor to a tier (sign 1) or remove it (-1)."""
    i = tensor // 2
    if tensor % 2 == 0:
        stored[t] += sign * data.weights[i]
        return
    most = 0
    for step in range(i, data.last[i] + 1):
        most = max(most, used[t, step])
        used[t, step] += sign * data.outputs[i]
        peak[t] = max(peak[t], used[t, step])
    if sign < 0 and most == peak[t]:
        most = 0
        for step in range(used.shape[1]):
            most = max(most, used[t, step])
        peak[t] = most


@njit_inner
def _gain(data: Arrays, readers: Ints, first_reader: Ints, moved: Ints, tensor: int, saved: int) -> int:
    """Return the time in ps that the network saves if each move of a tensor saves ``saved``."""
    i = tensor // 2
    gain = max(data.compute[i], moved[i]) - max(data.compute[i], moved[i] - saved)
    if tensor % 2:
        for at in range(first_reader[i], first_reader[i + 1]):
            step = readers[at]
            gain += max(data.compute[step], moved[step]) - max(data.compute[step], moved[step] - saved)
    return int(gain)


@njit_inner
def _move(readers: Ints, first_reader: Ints, moved: Ints, tensor: int, saved: int) -> None:
    """Update the times for which layers move bytes, if each move of a tensor saves ``saved`` ps."""
    i = tensor // 2
    moved[i] -= saved
    if tensor % 2:
        for at in range(first_reader[i], first_reader[i + 1]):
            moved[readers[at]] -= saved
