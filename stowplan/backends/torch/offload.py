"""Sends values to the host's memory and fetches them again: in the problem of a graph, and as functions that its passes call.

``send`` begins a copy to the host, and ``wait`` waits for its end; the value on the device is needed until then. ``fetch``
begins a copy into new bytes on the device, and ``arrive`` waits for its end before the first operator reads the value. On CUDA
each direction has its own stream and uses pinned memory. The stream that computes waits for copies, while the program on the
host goes on. On other devices copies are synchronous. The whole storage of a value is copied.

A *reading* is a graph of both passes with its problem of rematerialization, which asks for the values to save and those to
compute again (:class:`~stowplan.backends.torch.reader.Reading`). The *border* is the moment between the forward and the
backward pass of a graph, and the operator that stands for it in the problem. *Tangents* are the gradients of the results, with
which the backward pass is called.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import torch

from stowplan.backends.torch.measure import mark_host_copy
from stowplan.backends.torch.private import no_dispatch
from stowplan.backends.torch.reader import Reading
from stowplan.frontends.torch_program import arguments, is_written
from stowplan.hardware.targets.toml_files import PS_PER_SECOND
from stowplan.models.rematerialization.plan import Move, Plan
from stowplan.models.rematerialization.problem import Host, Op, Tensor
from stowplan.models.rematerialization.structure import build


@dataclass(frozen=True)
class HostMemory:
    """The memory of the host, to which values may be sent."""

    limit: int
    """Bytes that may be on the host at once."""
    bandwidth: float
    """Bytes per second in each direction."""


def with_host(reading: Reading, limit: int, bandwidth: float) -> Reading:
    """Returns a reading of the same graph whose problem allows sending values to the host; its costs are times.

    The caller holds the tangents, so they stay on the device even if copies of them are sent. To express that, a separate
    operator writes the tangents right before the border; the border reads them, and writes views of them that stay live.

    If an operator overwrites a value that another operator of the graph has computed, the reading is returned unchanged, and
    nothing is sent.

    Parameters
    ----------
    limit
        Bytes that may be on the host at once.
    bandwidth
        Bytes per second in each direction.
    """
    problem = reading.problem
    written = (operand for node in reading.nodes if node for argument, operand in arguments(node) if is_written(argument))
    if any(isinstance(operand, torch.fx.Node) and reading.root(operand) in reading.number for operand in written):
        return reading
    reading = copy.copy(reading)
    returned = {reading.root(node) for node in reading.backward_outputs if isinstance(node, torch.fx.Node)}
    tangents = [reading.tensor[node] for node in reading.tangents]
    held_tangents = [Tensor(id=f"{problem.tensors[tensor].id} held", size=0, alias_of=tensor) for tensor in tangents]
    numbers = range(len(problem.tensors), len(problem.tensors) + len(held_tangents))
    not_returned = {reading.tensor[node] for node in reading.tangents if node not in returned}
    border = problem.ops[reading.border]
    other_writes = (tensor for tensor in border.writes if tensor not in tangents)
    new_border = msgspec.structs.replace(border, reads=(*border.reads, *tangents), writes=(*other_writes, *numbers))
    reading.arrival = (len(problem.ops),)
    reading.nodes = [*reading.nodes, None]
    reading.flops = [*reading.flops, 0]
    readers = [number for number, op in enumerate(problem.ops) if not set(tangents).isdisjoint(op.reads)]
    reading.problem = msgspec.structs.replace(
        problem,
        tensors=(*problem.tensors, *held_tangents),
        ops=(*problem.ops[:-1], new_border, Op(id="arrival", writes=tuple(tangents), once=True, kind="border")),
        outputs=(*(tensor for tensor in problem.outputs if tensor not in not_returned), *numbers),
        precedences=(*problem.precedences, *((reading.border, number) for number in readers)),
        host=Host(bandwidth=bandwidth * reading.unit / PS_PER_SECOND, limit=limit),
    )
    return reading


def with_sends_ended(reading: Reading, plan: Plan) -> Plan:
    """Returns the plan as its two passes really run: all copies to the host that the forward pass begins end with it.

    The plan may say that such a copy ends in the backward pass. Then the original would count as live between the passes, which
    it is not. If there is no such copy, the plan itself is returned.
    """
    border = plan.sequence.index(reading.border)
    forward_moves, ending_waits, backward_moves = list[Move](), list[Move](), list[Move]()
    in_transit: set[int] = set()
    for move in plan.moves or ():
        if move.before <= border:
            forward_moves.append(move)
            (in_transit.add if move.action == "send" else in_transit.discard)(move.tensor)
        elif move.action == "wait" and move.tensor in in_transit:
            in_transit.remove(move.tensor)
            ending_waits.append(Move("wait", move.tensor, border))
        else:
            backward_moves.append(move)
    return (
        build(reading.problem).made(plan.sequence, (*forward_moves, *ending_waits, *backward_moves)) if ending_waits else plan
    )


def host_value(value: Any) -> Any:
    """Returns the fake tensor that describes the copy on the host of a value, itself a fake tensor, for ``meta["val"]``."""
    with value.fake_mode:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")


# ------------------------------------------------------------------------------------------------- what runs


@cache
def _stream(device: torch.device, direction: str) -> Any:
    """Returns the stream of a device for one direction, ``send`` or ``fetch``; it is created at the first call."""
    # Torch does not annotate this class.
    stream: Any = torch.cuda.Stream
    return stream(device)


def _flat(value: torch.Tensor) -> torch.Tensor:
    """Returns all elements of a tensor's storage."""
    return value.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)


def _copied(source: torch.Tensor, flat: torch.Tensor, device: torch.device, direction: str) -> tuple[torch.Tensor, Any]:
    """Begin a copy of a tensor's storage into the bytes of ``flat``.

    Returns
    -------
    (torch.Tensor, torch.cuda.Event or None)
        A tensor like ``source`` in the new bytes, and the event that marks the end of the copy; None if the copy was
        synchronous.
    """
    target = flat.as_strided(source.size(), source.stride(), source.storage_offset())
    if device.type != "cuda":
        flat.copy_(_flat(source))
        return target, None
    stream = _stream(device, direction)
    # The copy waits until the value has been computed, and until earlier readers of the target's bytes have finished.
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        flat.copy_(_flat(source), non_blocking=True)
    return target, stream.record_event()


def send(value: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Begin to copy a value to the host.

    Returns the copy, and the event that marks its end, None if it has ended already.
    """
    device = value.device
    with no_dispatch():
        flat = torch.empty_like(_flat(value), device="cpu", pin_memory=device.type == "cuda")
    mark_host_copy(flat)
    return _copied(value, flat, device, "send")


def wait(sent: tuple[torch.Tensor, Any], value: torch.Tensor) -> torch.Tensor:
    """Wait for the end of a copy to the host; returns the copy. The argument ``value`` keeps the original live until here."""
    host, event = sent
    if event is not None:
        torch.cuda.current_stream(value.device).wait_event(event)
    return host


def fetch(host: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Any]:
    """Begin to copy a tensor on the host into new bytes of a device.

    Returns the new tensor, and the event that marks the end of the copy, None if it has ended already.
    """
    return _copied(host, torch.empty_like(_flat(host), device=device), device, "fetch")


def arrive(fetched: tuple[torch.Tensor, Any]) -> torch.Tensor:
    """Wait for the end of a fetch; returns the tensor on the device."""
    value, event = fetched
    if event is not None:
        torch.cuda.current_stream(value.device).wait_event(event)
    return value
