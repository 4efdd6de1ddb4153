"""Text, pictures and report sections of compiled programs."""
