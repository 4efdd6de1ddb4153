"""llama.cpp: bytes and speeds of placements, by the runtime itself where it is built.

- ``gguf_files``: writes GGUF files with true headers, without data or with random data
- ``other_architectures``: those with latent attention, sinks, states or biases
- ``architectures``: the tensors and keys of each architecture, as llama.cpp loads them
- ``build``: llama.cpp with virtual devices, from its sources
- ``rig``: servers of llama.cpp as devices
- ``times``: how long plans take
- ``bytes``: bytes by our rules against those of the runtime
- ``published_models``: models of published measurements that ``architectures`` does not have
- ``published_cells``: published pairs of placements, with sources
- ``published``: predictions of them
- ``measurements``: how many measurements a calibration needs
- ``cases``: speeds of recommended placements against those of ``--fit`` and others
"""
