"""Memory mapping: which tensors stand in fast memory, where and when (``docs/reference/memory-mapping.md``)."""
