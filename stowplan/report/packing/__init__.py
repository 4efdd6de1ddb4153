"""Text, pictures and report sections of packings."""
