"""Memory mapping: which tensors stand in fast memory, where and when (``docs/memory-mapping.md``)."""
