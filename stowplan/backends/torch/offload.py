"""Values that go to the host's memory and come back: in a graph's problem, and as nodes of our own in its two passes.

``send`` begins a copy to the host, and ``wait`` waits for its end: up to there the value is needed. ``fetch`` begins a copy
back into new bytes, and ``arrive`` waits for its end, before the first who reads it. On CUDA either direction has a stream of
its own, and copies are of pinned memory; what waits is the stream that computes, not the program. Elsewhere copies are made at
once. A copy is one of the whole storage.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import torch

from stowplan.backends.torch.measure import name_host
from stowplan.backends.torch.private import no_dispatch
from stowplan.backends.torch.reader import Reading
from stowplan.frontends.torch_program import arguments, is_written
from stowplan.hardware.targets.toml_files import PS_PER_SECOND
from stowplan.models.rematerialization.plan import Move, Plan
from stowplan.models.rematerialization.problem import Host, Op, Tensor
from stowplan.models.rematerialization.structure import build


@dataclass(frozen=True)
class HostMemory:
    """Where values may be sent."""

    limit: int
    """Bytes."""
    bandwidth: float
    """Bytes per second in each direction."""


def with_host(reading: Reading, limit: int, bandwidth: float) -> Reading:
    """A reading of the same graph whose values may go to a host; costs of its problem are times.

    Tangents stay on the device whatever is sent, since the caller holds them: an operator of its own writes them right before
    the border, which reads them, and views that it writes of them stay. Of a graph that writes over what it made nothing is
    sent: it is as it was.

    Parameters
    ----------
    limit
        Bytes on the host.
    bandwidth
        Bytes per second in each direction.
    """
    problem = reading.problem
    written = (given for node in reading.nodes if node for argument, given in arguments(node) if is_written(argument))
    if any(isinstance(given, torch.fx.Node) and reading.root(given) in reading.number for given in written):
        return reading
    reading = copy.copy(reading)
    returned = {reading.root(node) for node in reading.backward_outputs if isinstance(node, torch.fx.Node)}
    tangents = [reading.tensor[node] for node in reading.tangents]
    held = [Tensor(id=f"{problem.tensors[tensor].id} held", size=0, alias_of=tensor) for tensor in tangents]
    numbers = range(len(problem.tensors), len(problem.tensors) + len(held))
    free = {reading.tensor[node] for node in reading.tangents if node not in returned}
    border = problem.ops[reading.border]
    stays = (tensor for tensor in border.writes if tensor not in tangents)
    both = msgspec.structs.replace(border, reads=(*border.reads, *tangents), writes=(*stays, *numbers))
    reading.arrival = (len(problem.ops),)
    reading.nodes = [*reading.nodes, None]
    reading.flops = [*reading.flops, 0]
    readers = [number for number, op in enumerate(problem.ops) if not set(tangents).isdisjoint(op.reads)]
    reading.problem = msgspec.structs.replace(
        problem,
        tensors=(*problem.tensors, *held),
        ops=(*problem.ops[:-1], both, Op(id="arrival", writes=tuple(tangents), once=True, kind="border")),
        outputs=(*(tensor for tensor in problem.outputs if tensor not in free), *numbers),
        precedences=(*problem.precedences, *((reading.border, number) for number in readers)),
        host=Host(bandwidth=bandwidth * reading.unit / PS_PER_SECOND, limit=limit),
    )
    return reading


def as_run(reading: Reading, plan: Plan) -> Plan:
    """A plan with a host as its passes run: what the forward pass sends is there when it ends.

    Without this it would say that more is kept than is.
    """
    border = plan.sequence.index(reading.border)
    early, ended, late = list[Move](), list[Move](), list[Move]()
    on_way: set[int] = set()
    for move in plan.moves or ():
        if move.before <= border:
            early.append(move)
            (on_way.add if move.action == "send" else on_way.discard)(move.tensor)
        elif move.action == "wait" and move.tensor in on_way:
            on_way.remove(move.tensor)
            ended.append(Move("wait", move.tensor, border))
        else:
            late.append(move)
    return build(reading.problem).made(plan.sequence, (*early, *ended, *late)) if ended else plan


def host_value(value: Any) -> Any:
    """What is known of a copy on the host while a graph is made: a fake tensor."""
    with value.fake_mode:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")


# ------------------------------------------------------------------------------------------------- what runs


@cache
def _stream(device: torch.device, direction: str) -> Any:
    """The stream of a device for one direction."""
    # Untyped.
    stream: Any = torch.cuda.Stream
    return stream(device)


def _flat(value: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor's storage."""
    return value.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)


def _copied(source: torch.Tensor, flat: torch.Tensor, device: torch.device, direction: str) -> tuple[torch.Tensor, Any]:
    """Begin a copy of a storage into new bytes: a tensor of theirs like that which it is of, and what its end is told by."""
    target = flat.as_strided(source.size(), source.stride(), source.storage_offset())
    if device.type != "cuda":
        flat.copy_(_flat(source))
        return target, None
    stream = _stream(device, direction)
    # What is copied has been computed, and who had these bytes before is done.
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        flat.copy_(_flat(source), non_blocking=True)
    return target, stream.record_event()


def send(value: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Begin the copy of a value to the host."""
    device = value.device
    with no_dispatch():
        flat = torch.empty_like(_flat(value), device="cpu", pin_memory=device.type == "cuda")
    name_host(flat)
    return _copied(value, flat, device, "send")


def wait(sent: tuple[torch.Tensor, Any], value: torch.Tensor) -> torch.Tensor:
    """The copy of a value on the host, once it is there; the value is needed up to here."""
    host, event = sent
    if event is not None:
        torch.cuda.current_stream(value.device).wait_event(event)
    return host


def fetch(host: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Any]:
    """Begin the copy of what is on the host into new bytes of a device."""
    return _copied(host, torch.empty_like(_flat(host), device=device), device, "fetch")


def arrive(fetched: tuple[torch.Tensor, Any]) -> torch.Tensor:
    """What is fetched, once it is there."""
    value, event = fetched
    if event is not None:
        torch.cuda.current_stream(value.device).wait_event(event)
    return value
