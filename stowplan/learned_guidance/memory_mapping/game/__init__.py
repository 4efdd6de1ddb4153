"""MMapGame: its rules, plainly and compiled, programs to play it on, and what is known of its best games."""
