"""Text, pictures and report sections of banked packings."""
