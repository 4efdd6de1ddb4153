"""Reads ONNX models as networks: their nodes become a :class:`~.coarsen.Trace`, which is merged into layers.

Only the shapes of weights are needed, not their values. In a model from which weights were stripped, they are inputs of the
graph. Such an input counts as a weight if it is an operand that is usually a weight: the kernel of a convolution, the table of
a Gather, or the right side of a MatMul.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stowplan.errors import InputError, naming
from stowplan.frontends import load_facts
from stowplan.frontends.network.coarsen import FREE, Dims, Granularity, Operation, Trace, Window, coarsen, elements
from stowplan.frontends.onnx_file import OnnxFile, read_onnx_file
from stowplan.frontends.options import NO_USER_SIZES, UserSizes
from stowplan.hardware.network import Network

#: The operation of a trace for each operator of ONNX.
_OP_OF = {name: op for op, names in load_facts("onnx")["network"].items() for name in names.split()}
#: For each operator, the positions of its operands that are weights if they are inputs of the graph.
_WEIGHT_SLOTS: dict[str, list[int]] = load_facts("onnx")["network_weights"]


def is_onnx(path: str | Path) -> bool:
    """Whether a file is an ONNX model, judging by its name, or by its first byte, with which no text begins.

    A file that has another name and cannot be read is no ONNX model.
    """
    if Path(path).name.removesuffix(".gz").endswith(".onnx"):
        return True
    try:
        with open(path, "rb") as stream:
            return stream.read(1) == b"\x08"
    except OSError:
        return False


def read_onnx(path: str | Path, user_sizes: UserSizes = NO_USER_SIZES, *, granularity: Granularity = "auto") -> Network:
    """Reads the network of an ONNX file.

    Parameters
    ----------
    path
        Path of a plain or gzip file; external files with weights need not exist.
    user_sizes
        Values that the user gives for sizes that the model does not fix.
    granularity
        ``layer``: operations are merged with earlier ones. ``fine``: each operation is a layer. ``auto``: ``layer`` if there is
        a convolution, otherwise ``fine``.

    Raises
    ------
    MissingDependencyError
        The package onnx is not installed.
    InputError
        The file cannot be read or is no ONNX model, the model has control flow or shapes that are not fixed, an operator has
        too few operands or dimensions, or no layer is left to run.
    UsageError
        The granularity is unknown.
    """
    with naming(path):
        return coarsen(_Tracer(read_onnx_file(path, user_sizes)).trace(), granularity)


def _operands(node: Any) -> list[str]:
    """Names of the operands of a product or a convolution; raises InputError if there are fewer than two."""
    names = [name for name in node.input if name]
    if len(names) < 2:
        message = f"found a {node.op_type} with {len(names)} inputs, expected two or more: data, and what it is multiplied with"
        raise InputError(message, place=node.output[0])
    return names


class _Tracer:
    """Traces a graph whose shapes have been inferred."""

    def __init__(self, file: OnnxFile):
        types = file.onnx.TensorProto
        self._file, self._graph, self._shape = file, file.graph, file.shape
        self._floats = {types.FLOAT, types.FLOAT16, types.BFLOAT16, types.DOUBLE}
        self._weights: set[str] = set()
        """Names of the values that count as weights."""
        self._constants: set[str] = set()
        """Names of the numbers and indices in the graph, which need not be read from memory."""
        for name in file.stored:
            self._classify_stored(name)
        self._operations: list[Operation] = []

    def _is_float(self, name: str) -> bool:
        """Whether a value has a floating-point type."""
        return self._file.types.get(name) in self._floats

    def _classify_stored(self, name: str) -> None:
        """Adds a stored tensor to the weights, or to the constants if it is a single number or not of floating-point type."""
        (self._weights if self._is_float(name) and elements(self._shape(name)) > 1 else self._constants).add(name)

    def trace(self) -> Trace:
        """The operations of the graph."""
        input_names = self._file.inputs
        self._weights |= self._stripped(input_names)
        inputs = {name: self._shape(name) for name in input_names if name not in self._weights}
        for node in self._graph.node:
            self._add_node(node)
        return Trace(
            name=self._file.name,
            inputs=inputs,
            integer_inputs=frozenset(name for name in inputs if not self._is_float(name)),
            operations=tuple(self._operations),
            outputs=tuple(output.name for output in self._graph.output),
        )

    def _stripped(self, input_names: list[str]) -> set[str]:
        """Inputs of the graph that are weights whose values were stripped."""
        candidates = {name for name in input_names[1:] if self._is_float(name)}
        weights = set()
        for node in self._graph.node:
            slots = _WEIGHT_SLOTS.get(node.op_type, ())
            weights |= {name for slot, name in enumerate(node.input) if slot in slots and name in candidates}
            if node.op_type in ("Add", "Mul"):
                weights |= {name for name in node.input if name in candidates and len(self._file.shapes[name] or ()) == 1}
        return weights

    def _size(self, name: str, dimension: int) -> int:
        """The size of a dimension of a value; raises InputError if there is none. A negative number counts from the end."""
        shape = self._shape(name)
        if not -len(shape) <= dimension < len(shape):
            expected = dimension + 1 if dimension >= 0 else -dimension
            raise InputError(f"found the shape {list(shape)}, expected {expected} dimensions or more", place=name)
        return shape[dimension]

    def _add_node(self, node: Any) -> None:
        """Adds the operations of a node. If all its operands are weights and constants, so are its results, and no operation is
        added."""
        kind = node.op_type
        options = {attribute.name: attribute for attribute in node.attribute}
        if kind == "Constant":
            if "value" in options:
                self._file.store(node.output[0], options["value"].t)
                self._classify_stored(node.output[0])
            else:
                self._constants.add(node.output[0])
            return
        names = [name for name in node.input if name]
        weights = [name for name in names if name in self._weights]
        activations = [name for name in names if name not in self._weights and name not in self._constants]
        if not activations:
            # A value that is computed from stored values alone counts as stored.
            self._fold(node, weights)
            return
        op = _OP_OF.get(kind, "other")
        output = node.output[0]
        if op == "conv":
            self._convolution(node, options)
        elif op == "gemm" or (op == "matmul" and _operands(node)[1] in self._weights and names[0] not in self._weights):
            self._product(node, options)
        elif op == "matmul":
            depth = self._size(names[0], -1)
            self._add(output, "matmul", activations, weights, kind, macs=elements(self._shape(output)) * depth)
        elif op == "gather" and names[0] in self._weights:
            self._add(output, "embedding", activations, weights, kind, gathered=elements(self._shape(output)))
        else:
            if op == "add" and weights and len(self._shape(weights[0])) == 1:
                op = "bias_add"
            if op == "reduce" and kind == "ReduceMean" and len(self._shape(names[0])) == 4:
                # Some exporters write a global average pool as this mean.
                op = "avgpool"
            window = self._window(node, options) if op in ("maxpool", "avgpool") else Window()
            operation_weights = weights[:2] if op == "batchnorm" else weights
            self._add(output, op, activations, operation_weights, kind, window=window)
            for other in node.output[1:]:
                # Further outputs are parts of a split, or values that only training needs.
                if other and self._file.shapes.get(other) is not None:
                    self._add(other, FREE, activations[:1] if op == FREE else [output], [], kind)

    def _fold(self, node: Any, weights: list[str]) -> None:
        """Adds the results of a node, all of whose operands are stored, to the weights or to the constants."""
        for name in node.output:
            if name:
                stored = bool(weights) and self._is_float(name)
                (self._weights if stored else self._constants).add(name)

    def _add(self, name: str, op: str, inputs: list[str], weights: list[str], label: str, **more: Any) -> None:
        """Adds an operation; ``more`` are further fields of it. The shape is that of the value ``name`` unless ``more`` has
        one."""
        size = sum(elements(self._shape(weight)) for weight in weights)
        if "shape" not in more:
            more["shape"] = self._shape(name)
        self._operations.append(Operation(name=name, op=op, inputs=tuple(inputs), weights=size, label=label.lower(), **more))

    def _product(self, node: Any, options: dict[str, Any]) -> None:
        """Adds a product with a weight matrix."""
        transposed = bool(options["transA"].i) if "transA" in options else False
        depth = self._size(_operands(node)[0], 0 if transposed else -1)
        self._add_with_bias(node, "matmul_w", macs=elements(self._shape(node.output[0])) * depth)

    def _convolution(self, node: Any, options: dict[str, Any]) -> None:
        """Adds a convolution or a transposed one."""
        data, weight, *_ = _operands(node)
        kernel = self._shape(weight)
        # The kernel is [out, in / groups, kernel ...], or [in, out / groups, kernel ...] for a transposed convolution. Each
        # element of the result, or of the data for a transposed convolution, meets all elements of kernel[1:] once.
        positions = self._shape(data if node.op_type == "ConvTranspose" else node.output[0])
        macs = elements(positions) * elements(kernel[1:])
        self._add_with_bias(node, "conv", macs=macs, window=self._window(node, options, kernel[2:]))

    def _add_with_bias(self, node: Any, op: str, **more: Any) -> None:
        """Adds an operation with data and a weight; a bias becomes a separate operation."""
        data, weight, *rest = _operands(node)
        output = node.output[0]
        name = f"{output}/product" if rest else output
        self._add(name, op, [data], [weight], node.op_type, shape=self._shape(output), **more)
        if rest:
            self._add(output, "bias_add", [name], [operand for operand in rest if operand in self._weights], "bias")

    def _window(self, node: Any, options: dict[str, Any], kernel: Dims = ()) -> Window:
        """The window of a convolution or pool; ``kernel`` has its extents if the attributes do not."""

        def last(name: str, default: int) -> int:
            return int(options[name].ints[-1]) if name in options and options[name].ints else default

        if not kernel and "kernel_shape" in options:
            kernel = tuple(options["kernel_shape"].ints)
        if not kernel:
            # The window of a global pool is as large as the feature map.
            self._size(node.input[0], 2)
            kernel = self._shape(node.input[0])[2:]
        groups = int(options["group"].i) if "group" in options else 1
        stride = last("strides", 1 if node.op_type in ("Conv", "ConvTranspose", "MaxPool", "AveragePool") else kernel[-1])
        return Window(
            groups,
            kernel[-1] if kernel else 0,
            kernel[-2] if len(kernel) > 1 else 1,
            stride,
            last("pads", 0),
            last("dilations", 1),
        )
