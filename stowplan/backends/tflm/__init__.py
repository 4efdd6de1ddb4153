"""TensorFlow Lite Micro."""
