"""llama.cpp: bytes and speeds of placements, by the runtime itself where it is built.

- ``gguf_files``: writes GGUF files with true headers and no data
- ``other_architectures``: those with latent attention, sinks, states or biases
- ``architectures``: the tensors and keys of each architecture, as llama.cpp loads them
- ``rig``: servers of llama.cpp as devices
- ``times``: how long plans take
- ``bytes``: bytes by our rules against those of the runtime
"""
