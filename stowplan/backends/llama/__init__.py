"""llama.cpp: where the layers, experts and caches of a GGUF model go on a machine, as llama.cpp's options.

:func:`plan` places a model for a request on the devices of a machine file, and says whether that is worth more than
llama.cpp's own ``--fit``. Only ``oracle`` and ``calibration`` start programs of llama.cpp. Each file knows only those above
it in this list:

- ``model``: layers of a GGUF file, and the bytes of their caches
- ``machine``: devices with memory and speeds, as a TOML file
- ``lowering``: a model, a machine and a request as a problem of LLM placement
- ``flags``: a plan as options, and what options mean
- ``oracle``: what the runtime itself says of its bytes
- ``calibration``: speeds of a machine from runs of ``llama-bench``
- ``planning``: the plan, beside ``--fit``
- ``emit``: the options in files
"""

from stowplan.backends.llama.planning import Planned, Summary, plan

__all__ = ["Planned", "Summary", "plan"]
