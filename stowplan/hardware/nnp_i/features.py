"""The 19 node features of a network's graph: Khadka et al., ICLR 2021, appendix A, table 1."""

from __future__ import annotations

from stowplan.hardware.network import ELEMENT_BYTES, OPS, Network, Precision

#: Names of the columns, in the order of the table.
FEATURES = (
    "op_id",
    "weight_size",
    "ifm_x",
    "ifm_y",
    "ifm_z",
    "ofm_x",
    "ofm_y",
    "ofm_z",
    "ifm_size",
    "ofm_size",
    "n_ops_left",
    "n_w_left",
    "groups",
    "kernel_x",
    "kernel_y",
    "stride",
    "pad",
    "dilation",
    "batch",
)


def node_features(network: Network, precision: Precision) -> tuple[tuple[int, ...], ...]:
    """Raw features, ``[layers][19]``, unscaled.

    Sizes of feature maps are elements, the weights' size is bytes. ``n_w_left`` is the bytes of weights from the node to the
    last, its own included; ``n_ops_left`` the layers after it.
    """
    width = ELEMENT_BYTES[precision]
    rows: list[tuple[int, ...]] = []
    weights_left = network.weight_elements * width
    for number, layer in enumerate(network.layers):
        weights = layer.weight_elements * width
        x, y, z = layer.input_shape
        rows.append(
            (
                OPS.index(layer.op),
                weights,
                *layer.input_shape,
                *layer.output_shape,
                x * y * z,
                layer.output_shape[0] * layer.output_shape[1] * layer.output_shape[2],
                len(network.layers) - 1 - number,
                weights_left,
                layer.groups,
                layer.kernel_x,
                layer.kernel_y,
                layer.stride,
                layer.pad,
                layer.dilation,
                layer.batch,
            )
        )
        weights_left -= weights
    return tuple(rows)
