"""Text, pictures and report sections of modulo schedules."""
