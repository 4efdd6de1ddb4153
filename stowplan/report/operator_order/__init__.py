"""Text, pictures and report sections of operator orders."""
