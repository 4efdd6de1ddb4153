"""XLA: plans become compiler options, and what the compiler made of them comes back."""
