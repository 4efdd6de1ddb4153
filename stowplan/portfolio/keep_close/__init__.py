"""A new plan that changes as little as asked from an earlier one."""
