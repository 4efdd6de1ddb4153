"""A live PyTorch model as a layer file: ``python examples/trace_network.py resnet50 examples/data/resnet50.layers.json``.

Needs torch. With your own model::

    from stowplan.frontends.network import read_torch, save_layers
    save_layers(read_torch(model.eval(), (example_input,)), "model.layers.json")

and then ``stowplan solve model.layers.json --target nnp-i``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python examples/trace_network.py resnet50|resnet101|bert_base FILE [SEQUENCE LENGTH]")
    try:
        import torch
        import torch_networks
    except ImportError as error:
        sys.exit(f"this example needs {error.name}: pip install '.[learned]'")

    from stowplan.frontends.network import read_torch, save_layers

    sequence = int(sys.argv[3]) if len(sys.argv) == 4 else 128
    model, arguments = torch_networks.build(sys.argv[1], sequence)
    name = f"{sys.argv[1]}_s{sequence}" if sys.argv[1] == "bert_base" else sys.argv[1]
    network = read_torch(model, arguments, name=name)
    save_layers(network, sys.argv[2], source=f"benchmarks/lib/torch_networks.py, torch {torch.__version__}")
    print(f"{sys.argv[2]}: {len(network.layers)} layers, {network.macs:,} MACs, {network.weight_elements:,} weights")


if __name__ == "__main__":
    main()
