"""Back ends: what hands plans to compilers and runtimes, and brings back what those made of them."""
