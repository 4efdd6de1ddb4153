"""Random PyTorch programs of views, copies, casts and writes in place, and what a run of an exported one holds."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

#: Operators on a tensor; each is tried, and taken where torch allows it.
ONE: dict[str, Callable[[Any], Any]] = {
    "sin": lambda x: x.sin(),
    "relu": lambda x: x.relu(),
    "sum": lambda x: x.sum(0),
    "cumsum": lambda x: x.cumsum(0),
    "max": lambda x: list(x.max(0)),
    "topk": lambda x: list(x.topk(2)),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.reshape(1, 2, 2, -1).contiguous(memory_format=torch.channels_last),
    "reshape": lambda x: x.reshape(-1),
    "reshape to rows": lambda x: x.reshape(2, -1),
    "flatten": lambda x: x.flatten(),
    "view": lambda x: x.view(-1),
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, -1),
    "transpose, reshape": lambda x: x.transpose(0, -1).reshape(2, -1),
    "t, contiguous": lambda x: x.t().contiguous(),
    "movedim": lambda x: x.movedim(0, -1),
    "permute": lambda x: x.permute(*reversed(range(x.dim()))),
    "every other": lambda x: x[::2],
    "narrow": lambda x: x.narrow(0, 1, 2),
    "select": lambda x: x[1],
    "split": lambda x: list(x.split(2)),
    "chunk": lambda x: list(x.chunk(2, dim=-1)),
    "unbind": lambda x: list(x.unbind(0)),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.squeeze(),
    "expand": lambda x: x.unsqueeze(0).expand(3, *x.shape),
    "expand, contiguous": lambda x: x.unsqueeze(0).expand(3, *x.shape).contiguous(),
    "repeat": lambda x: x.repeat(2, *(1 for _ in x.shape[1:])),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "flip": lambda x: x.flip(0),
    "detach": lambda x: x.detach(),
    "to float64": lambda x: x.to(torch.float64),
    "to float32": lambda x: x.to(torch.float32),
    "to int32": lambda x: x.to(torch.int32),
    "to a copy": lambda x: x.to(x.dtype, copy=True),
    "bool": lambda x: x > 0,
    "view as int32": lambda x: x.view(torch.int32),
    "view as complex": lambda x: torch.view_as_complex(x.reshape(-1, 2)),
    "conj": lambda x: x.conj(),
    "resolve_conj": lambda x: x.resolve_conj(),
    "real": lambda x: torch.view_as_real(x.resolve_conj()),
    "imag": lambda x: x.imag,
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 1)),
    "identity": lambda x: torch.ops.aten.alias(x),
    "zeros": lambda x: torch.zeros_like(x),
    "add 1 in place": lambda x: x.add_(1),
    "relu in place": lambda x: x.relu_(),
    "fill in place": lambda x: x.fill_(2),
    "first row in place": lambda x: x[0].mul_(2),
    "column in place": lambda x: x.select(-1, 0).zero_(),
    "item set": lambda x: x.__setitem__(0, 1) or x,
    "unsqueeze in place": lambda x: x.clone().unsqueeze_(0),
}

#: Operators on two.
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "matmul": lambda x, y: x @ y,
    "view as": lambda x, y: x.view_as(y),
    "reshape as": lambda x, y: x.reshape(y.shape),
    "type as": lambda x, y: x.type_as(y),
    "expand as": lambda x, y: x.expand_as(y),
    "copy in place": lambda x, y: x.copy_(y),
    "add in place": lambda x, y: x.add_(y),
    "row of another in place": lambda x, y: x[1].copy_(y[0]),
    "index put in place": lambda x, y: x.index_put_((torch.tensor([0]),), y[:1]),
    "masked fill in place": lambda x, y: x.masked_fill_(y > 0, 0.0),
}

_OPERATORS: dict[str, tuple[int, Callable[..., Any]]] = {
    **{name: (1, function) for name, function in ONE.items()},
    **{name: (2, function) for name, function in TWO.items()},
}


class RandomModule(torch.nn.Module):  # type: ignore[misc]
    """Of two inputs and a buffer; each step takes tensors that are there, the newest most of all.

    Parameters
    ----------
    seed
        Of the program.
    steps
        Operators, about.
    in_place
        Whether some write over what is there.
    """

    def __init__(self, seed: int, steps: int, *, in_place: bool = True):
        super().__init__()
        self.register_buffer("state", torch.zeros(4, 4))
        self.steps: list[tuple[str, tuple[int, ...]]] = []
        rng = random.Random(seed)
        tensors = [*self.inputs(), self.state]
        for _ in range(steps):
            name = rng.choice(sorted(_OPERATORS))
            if not in_place and ("in place" in name or name == "item set"):
                continue
            taken = tuple(self._pick(rng, len(tensors)) for _ in range(_OPERATORS[name][0]))
            try:
                made = self._made(name, [tensors[each] for each in taken])
            except (RuntimeError, IndexError, TypeError):
                continue
            self.steps.append((name, taken))
            tensors += made
        self.returned = sorted({self._pick(rng, len(tensors)) for _ in range(3)})

    @staticmethod
    def inputs() -> tuple[Any, Any]:
        """What it is called with."""
        return torch.arange(16.0).reshape(4, 4), torch.ones(4, 4)

    def forward(self, x: Any, y: Any) -> Any:
        """Run the steps."""
        tensors = [x, y, self.state]
        for name, taken in self.steps:
            tensors += self._made(name, [tensors[each] for each in taken])
        return [tensors[each] for each in self.returned]

    @staticmethod
    def _pick(rng: random.Random, count: int) -> int:
        return max(rng.randrange(count), rng.randrange(count))

    @staticmethod
    def _made(name: str, tensors: list[Any]) -> list[Any]:
        made = _OPERATORS[name][1](*tensors)
        return made if isinstance(made, list) else [made]


def held(program: Any, inputs: tuple[Any, ...]) -> dict[str, int]:
    """Bytes of storages that a run of an exported program holds at each operator, by its name.

    Those of parameters, buffers and constants do not count. A value goes after the last operator that needs it. Results stay,
    and inputs that are written over.
    """
    signature, nodes = program.graph_signature, list(program.graph.nodes)
    last = {used: at for at, node in enumerate(nodes) for used in node.all_input_nodes}
    values, outside = _given(program, inputs)
    # A first run says which inputs are written over.
    versions = {node: value._version for node, value in values.items()}
    ran = dict(values)
    for node in nodes:
        if node.op == "call_function":
            ran[node] = _value(node, ran)
    changed = set(signature.user_inputs_to_mutate.values())
    stays = {node for node, version in versions.items() if node.name in changed or ran[node]._version != version}
    keep = list(values.values())
    del ran
    live = {node: value for node, value in values.items() if node in last}
    values.clear()
    held_at: dict[str, int] = {}
    for at, node in enumerate(nodes):
        if node.op != "call_function":
            continue
        live[node] = _value(node, live)
        if node.target is not operator.getitem:
            held_at[node.name] = _bytes(live, outside)
        live = {each: value for each, value in live.items() if last.get(each, at) > at or each in stays}
    assert keep
    return held_at


def returned(program: Any, inputs: tuple[Any, ...]) -> list[tuple[int | None, int, int]]:
    """Where the results of a run are: the storage, None where it is stored, and the first byte and the end of each in it."""
    values, outside = _given(program, inputs)
    for node in program.graph.nodes:
        if node.op == "call_function":
            values[node] = _value(node, values)
    (results,) = next(node.args for node in program.graph.nodes if node.op == "output")
    found = []
    for node in results[len(results) - len(program.graph_signature.user_outputs) :]:
        tensor = values[node]
        key, start = tensor.untyped_storage()._cdata, tensor.storage_offset() * tensor.element_size()
        steps = [(extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        end = start + (sum(steps) + 1) * tensor.element_size() * (tensor.numel() > 0)
        found.append((None if key in outside else key, start, end))
    return found


def _given(program: Any, inputs: tuple[Any, ...]) -> tuple[dict[Any, Any], set[int]]:
    """Values of placeholders, and keys of the storages of those that are stored."""
    signature = program.graph_signature
    stored = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    state, given = {**program.state_dict, **program.constants}, iter(inputs)
    values = {
        node: (state[stored[node.name]] if node.name in stored else next(given)).clone()
        for node in program.graph.nodes
        if node.op == "placeholder"
    }
    return values, {value.untyped_storage()._cdata for node, value in values.items() if node.name in stored}


def _value(node: Any, values: dict[Any, Any]) -> Any:
    if node.target is torch.ops.aten._assert_tensor_metadata.default:
        # Decompositions change types of writes, and leave what was asserted of them before (2.13).
        return None
    args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    with torch.no_grad():
        return node.target(*args, **keywords)


def _bytes(live: dict[Any, Any], outside: set[int]) -> int:
    found = {
        each.untyped_storage()._cdata: each.untyped_storage().nbytes()
        for value in live.values()
        for each in torch.utils._pytree.tree_leaves(value)
        if isinstance(each, torch.Tensor)
    }
    return sum(size for key, size in found.items() if key not in outside)
