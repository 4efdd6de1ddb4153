"""The toy kind: two numbers of a list are chosen, the smaller their sum the better."""
