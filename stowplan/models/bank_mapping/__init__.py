"""Bank mapping: along which dimension every tensor is spread over the banks, and which copies between banks that costs."""
