"""What the ops of graphs mean, and what they cost: tables in TOML, those of the package and one's own over them."""

from stowplan.frontends.dfg.op_tables.table import OpTable, Resolved, load_op_table, read_number

__all__ = ["OpTable", "Resolved", "load_op_table", "read_number"]
