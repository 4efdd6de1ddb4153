"""Operator order in the report: live bytes over the order, the layout, and the order itself."""
