"""Reads PyTorch models as networks: ``torch.export`` traces them, and their ATen operators become a :class:`~.coarsen.Trace`.

Parameters, and other stored floating-point arrays of several elements, are weights. Views of weights are weights as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stowplan.errors import InputError, first_line
from stowplan.frontends import load_facts, torch_program
from stowplan.frontends.network.coarsen import FREE, Dims, Granularity, Operation, Trace, Window, coarsen, elements
from stowplan.frontends.torch_program import import_torch, is_higher_order, schema_of, static_shape, stored_inputs
from stowplan.hardware.network import Network

if TYPE_CHECKING:
    import torch

#: The operation of a trace for each ATen operator.
_OP_OF = {name: op for op, names in load_facts("torch")["network"].items() for name in names.split()}


def read_torch(
    model: torch.nn.Module,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    granularity: Granularity = "auto",
) -> Network:
    """Makes a network from a PyTorch model, which is traced with ``torch.export``.

    Parameters
    ----------
    model
        The model in ``eval()`` mode.
    arguments, keywords
        Example arguments of a call; only their shapes matter.
    name
        Name of the network; by default that of the model's class.
    granularity
        See :func:`~stowplan.frontends.network.onnx_model.read_onnx`.

    Raises
    ------
    MissingDependencyError
        The package torch is not installed.
    InputError
        ``torch.export`` cannot trace the model, or the traced program cannot be read (:func:`read_exported`).
    UsageError
        The granularity is unknown.
    """
    torch = import_torch("a PyTorch model")
    title = name or type(model).__name__
    try:
        with torch.no_grad():
            program = torch.export.export(model, tuple(arguments), dict(keywords or {}))
    except Exception as error:
        # Torch raises errors of many types here.
        raise InputError(f"torch.export cannot trace {title}: {first_line(error)}") from error
    return read_exported(program, name=title, granularity=granularity)


def read_exported(program: Any, *, name: str = "network", granularity: Granularity = "auto") -> Network:
    """Makes a network from a ``torch.export.ExportedProgram`` with static shapes.

    A program that runs inner graphs, or that overwrites views, is made *functional* first: torch replaces operators that
    overwrite their operands by operators that do not. Otherwise a layer that reads an overwritten value would not list the
    operator that overwrites it among its inputs.

    Parameters
    ----------
    program
        The program.
    name
        Name of the network.
    granularity
        See :func:`~stowplan.frontends.network.onnx_model.read_onnx`.

    Raises
    ------
    InputError
        A shape is not static, there are branches or loops, or no layer is left to run; the message names the operator.
    UsageError
        The granularity is unknown.
    """
    if any(is_higher_order(node) or _writes_over_view(node) for node in program.graph.nodes):
        try:
            program = program.run_decompositions({})
        except Exception as error:
            raise InputError(f"torch cannot make the program functional: {first_line(error)}") from error
    for node in program.graph.nodes:
        if is_higher_order(node):
            raise InputError(
                f"found the higher-order operator {node.target}, expected layers alone", place=f"operator {node.name}"
            )
    return coarsen(_Tracer(program, name).trace(), granularity)


def _writes_over_view(node: Any) -> bool:
    """Whether an operator overwrites an operand that is a view of another value."""
    written = [given for argument, given in torch_program.arguments(node) if torch_program.is_written(argument)]
    returns = [result for given in written if hasattr(given, "meta") for result in getattr(schema_of(given), "returns", ())]
    return any(result.alias_info is not None and not result.alias_info.is_write for result in returns)


class _Tracer:
    """Traces the graph of an exported program."""

    def __init__(self, program: Any, name: str):
        self._stored = stored_inputs(program)
        self._parameters = set(program.graph_signature.inputs_to_parameters)
        self._program, self._name = program, name
        self._weights: dict[str, int] = {}
        """Number of elements of each weight, by the name of its node."""
        self._operations: list[Operation] = []
        self._names: set[str] = set()

    def trace(self) -> Trace:
        """The operations of the graph."""
        inputs: dict[str, Dims] = {}
        integers: set[str] = set()
        outputs: list[str] = []
        for node in self._program.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder":
                stored = node.name in self._stored
                if stored and _is_float(value) and (node.name in self._parameters or elements(_shape(node)) > 1):
                    self._weights[node.name] = elements(_shape(node))
                elif hasattr(value, "shape"):
                    inputs[node.name] = _shape(node)
                    # Stored values that are no weights, such as single numbers, are no feature maps either.
                    if stored or not _is_float(value):
                        integers.add(node.name)
            elif node.op == "output":
                outputs = [used.name for used in node.all_input_nodes]
            elif _tensor(value) is not None:
                self._add_node(node)
        return Trace(
            name=self._name,
            inputs=inputs,
            integer_inputs=frozenset(integers),
            operations=tuple(self._operations),
            outputs=tuple(outputs),
        )

    def _add_node(self, node: Any) -> None:
        """Adds the operations of a node, or its value to the weights if it is a view of a weight."""
        target = _target_name(node)
        op = _OP_OF.get(target) or ("elementwise" if _is_pointwise(node.target) else "other")
        weights = [used for used in node.all_input_nodes if used.name in self._weights]
        if op == "linear":
            self._linear(node, target)
        elif op == "matmul":
            self._matmul(node)
        elif op == "conv":
            self._convolution(node)
        elif op == "attention":
            self._attention(node)
        elif op == "embedding":
            self._add(node, "embedding", weights=self._size(weights), gathered=elements(_shape(node)))
        else:
            activations = self._activations(node)
            if op == FREE and (not activations or weights):
                # A view of a weight is a weight; a value without operands comes from the host.
                self._add_view(node, weights, activations)
                return
            if weights and not activations and op in ("view", "reshape", "transpose"):
                self._add_view(node, weights, activations)
                return
            if op == "add" and weights and elements(_shape(weights[0])) == _shape(node)[-1]:
                op = "bias_add"
            window = _pool_window(node) if op in ("maxpool", "avgpool") else Window()
            # A batch norm at inference needs one scale and one shift for each channel, although it stores more.
            size = 2 * _shape(node)[1] if op == "batchnorm" else self._size(weights)
            self._add(node, op, weights=size, window=window, label=target)

    def _add_view(self, node: Any, weights: list[Any], activations: tuple[str, ...]) -> None:
        """Adds the value of a node that only changes a view, to the weights if it depends on weights alone."""
        if weights and not activations:
            self._weights[node.name] = elements(_shape(node))
        else:
            self._add(node, FREE)

    def _activations(self, node: Any) -> tuple[str, ...]:
        """Names of the tensors that a node reads and that are no weights."""
        return tuple(used.name for used in node.all_input_nodes if used.name not in self._weights and _has_tensor(used))

    def _size(self, weights: list[Any]) -> int:
        """Number of elements of several weights."""
        return sum(self._weights[weight.name] for weight in weights)

    def _add(self, node: Any, op: str, name: str | None = None, **more: Any) -> None:
        """Adds an operation; ``more`` are further fields. Inputs and shape are those of the node unless ``more`` has them."""
        more.setdefault("inputs", self._activations(node))
        more.setdefault("shape", _shape(node))
        self._operations.append(Operation(name=name or node.name, op=op, **more))

    def _add_with_bias(self, node: Any, op: str, data: Any, weight: Any, bias: Any, **more: Any) -> None:
        """Adds an operation with data and a weight; a bias becomes a separate operation."""
        product = f"{node.name}_product" if bias is not None else node.name
        self._add(node, op, product, inputs=(data.name,), weights=self._weights.get(weight.name, 0), **more)
        if bias is not None:
            self._add(node, "bias_add", inputs=(product,), weights=self._weights.get(bias.name, 0), label="bias")

    def _product(self, node: Any, data: Any, weight: Any, bias: Any, depth: int, target: str) -> None:
        """Adds a product with a weight matrix; ``depth`` is the size of the dimension that is summed over."""
        self._add_with_bias(node, "matmul_w", data, weight, bias, macs=elements(_shape(node)) * depth, label=target)

    def _linear(self, node: Any, target: str) -> None:
        """Adds a linear layer, or a matrix product if its matrix is no weight."""
        if target == "addmm":
            bias, data, weight = node.args[:3]
        else:
            data, weight = node.args[:2]
            bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
        if weight.name not in self._weights or data.name in self._weights:
            macs = elements(_shape(node)) * _shape(data)[-1]
            self._add(
                node, "matmul", macs=macs, weights=self._size([used for used in node.all_input_nodes if self._is_weight(used)])
            )
            return
        self._product(node, data, weight, bias, _shape(data)[-1], target)

    def _is_weight(self, node: Any) -> bool:
        """Whether the value of a node is a weight."""
        return node.name in self._weights

    def _matmul(self, node: Any) -> None:
        """Adds a matrix product, with a weight matrix if the right operand is a weight."""
        left, right = node.args[-2:] if _target_name(node) != "baddbmm" else node.args[1:3]
        depth = _shape(left)[-1]
        if self._is_weight(right) and not self._is_weight(left):
            self._product(node, left, right, None, depth, "matmul")
            return
        weights = [operand for operand in (left, right) if self._is_weight(operand)]
        self._add(node, "matmul", weights=self._size(weights), macs=elements(_shape(node)) * depth, label="matmul")

    def _convolution(self, node: Any) -> None:
        """Adds a convolution or a transposed one."""
        data, weight, *rest = node.args
        bias = rest[0] if rest else node.kwargs.get("bias")
        options = _options(node)
        kernel = _shape(weight)[2:]
        transposed = _target_name(node).startswith("conv_transpose") or bool(options.get("transposed", False))
        groups = int(options.get("groups", 1))
        # The kernel is [out, in / groups, kernel ...], or [in, out / groups, kernel ...] for a transposed convolution. Each
        # element of the result, or of the data for a transposed convolution, meets the kernel once for each channel.
        products = elements(_shape(data)) * _shape(weight)[1] if transposed else elements(_shape(node)) * _shape(weight)[1]
        self._add_with_bias(
            node,
            "conv",
            data,
            weight,
            bias,
            macs=products * elements(kernel),
            window=Window(
                groups,
                kernel[-1],
                kernel[-2] if len(kernel) > 1 else 1,
                _last(options.get("stride"), 1),
                _last(options.get("padding"), 0),
                _last(options.get("dilation"), 1),
            ),
            label=_target_name(node),
        )

    def _attention(self, node: Any) -> None:
        """Adds scaled dot-product attention: two matrix products and a softmax, and the addition of a mask if there is one."""
        query, key, value = node.args[:3]
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        scores = (*_shape(query)[:-1], _shape(key)[-2])
        macs = elements(scores) * _shape(query)[-1]
        inputs = (query.name, key.name)
        self._add(node, "matmul", f"{node.name}_scores", inputs=inputs, shape=scores, macs=macs, label="matmul")
        before = f"{node.name}_scores"
        if mask is not None and not self._is_weight(mask):
            self._add(node, "add", f"{node.name}_mask", inputs=(before, mask.name), shape=scores, label="mask")
            before = f"{node.name}_mask"
        self._add(node, "softmax", f"{node.name}_softmax", inputs=(before,), shape=scores, label="softmax")
        macs = elements(_shape(node)) * scores[-1]
        self._add(node, "matmul", inputs=(f"{node.name}_softmax", value.name), macs=macs, label="matmul")


def _target_name(node: Any) -> str:
    """The name of an operator, such as ``conv2d`` for ``aten.conv2d.default``, or of a function that is no ATen operator."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet).rpartition(".")[2] if packet is not None else getattr(node.target, "__name__", str(node.target))


def _is_pointwise(target: Any) -> bool:
    """Whether torch tags an operator as pointwise."""
    return any(getattr(tag, "name", "") == "pointwise" for tag in getattr(target, "tags", ()))


def _tensor(value: Any) -> Any:
    """The first tensor in a node's value; None if there is none."""
    if isinstance(value, (tuple, list)):
        return next((result for result in value if hasattr(result, "shape")), None)
    return value if hasattr(value, "shape") else None


def _has_tensor(node: Any) -> bool:
    """Whether the value of a node is a tensor, or contains one."""
    return _tensor(node.meta.get("val")) is not None


def _is_float(value: Any) -> bool:
    """Whether the first tensor in a value has a floating-point type; False if there is none."""
    tensor = _tensor(value)
    return tensor is not None and bool(tensor.dtype.is_floating_point)


def _shape(node: Any) -> Dims:
    """The shape of the first tensor in a node's value; raises InputError if there is none or a size is not static."""
    tensor = _tensor(node.meta.get("val"))
    if tensor is None:
        raise InputError("expected a tensor", place=node.name)
    return static_shape(tensor, node.name)


def _options(node: Any) -> dict[str, Any]:
    """The arguments of an operator that are not None, by name."""
    return {argument.name: given for argument, given in torch_program.arguments(node) if given is not None}


def _last(value: Any, default: int) -> int:
    """The number of an option for the last axis, which is x; ``default`` for an empty list and for a word such as ``same``.

    The option may be one number for all axes, or a list with a number for each axis.
    """
    if isinstance(value, int):
        return value
    return int(value[-1]) if isinstance(value, (tuple, list)) and value else default


def _pool_window(node: Any) -> Window:
    """The window of a pool."""
    options = _options(node)
    if "kernel_size" not in options:
        # The window of an adaptive pool is as large as needed for its output.
        before, after = _shape(node.args[0]), _shape(node)
        kernel = (before[-2] // max(1, after[-2]), before[-1] // max(1, after[-1]))
        return Window(1, kernel[1], kernel[0], kernel[1], 0, 1)
    size = options["kernel_size"]
    kernel = (size, size) if isinstance(size, int) else tuple(size)
    return Window(
        1,
        kernel[-1],
        kernel[-2] if len(kernel) > 1 else 1,
        _last(options.get("stride"), kernel[-1]),
        _last(options.get("padding"), 0),
        # Only a maximum has dilations.
        _last(options.get("dilation"), 1),
    )
