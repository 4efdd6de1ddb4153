"""Text, pictures and report sections of bank mappings."""
