"""Plans for TensorFlow Lite Micro: offsets, orders of operators, and what its runtime makes of them."""
