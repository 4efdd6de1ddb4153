"""Back end for llama.cpp: places the layers, experts and caches of a GGUF model on a machine, and writes llama.cpp's options.

:func:`plan` places a model for a request on the devices of a machine file. It compares the placement with that of llama.cpp's
own option ``--fit``, and recommends it only if it is expected to be faster. Only ``oracle`` and ``calibration`` start programs
of llama.cpp.

A *device* is a GPU or another accelerator with memory of its own, and the *host* is the CPU with its RAM. A *slot* is one of
the sequences that are generated side by side, and a *micro-batch* is the tokens of a prompt that are computed at once. Parts of
a layer that stay on the host although the layer is on a device, such as its experts, are *spilled*.

A file imports only files that come before it in this list:

- ``model``: layers of a GGUF file, and the bytes of their caches
- ``machine``: devices with their memory and speeds, as a TOML file
- ``lowering``: a model, a machine and a request as a problem of LLM placement
- ``flags``: a plan as options, and the placement that results from options
- ``oracle``: asks llama.cpp itself how many bytes it allocates
- ``calibration``: speeds of a machine from runs of ``llama-bench``
- ``planning``: finds a plan, and compares it with the placement of ``--fit``
- ``recheck``: a check of a placement in a JSON file against its model
- ``emit``: writes the options to files
"""

from stowplan.backends.llama.planning import Planned, Summary, plan

__all__ = ["Planned", "Summary", "plan"]
