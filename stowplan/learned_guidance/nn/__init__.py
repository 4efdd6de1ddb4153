"""Parts of neural networks that any agent can use: layers, and categorical heads for numbers."""
