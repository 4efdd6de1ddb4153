"""Text, pictures and report sections of memory maps of networks."""
