"""Loop bodies as graphs: read from JSON or Graphviz DOT, or written in Python; and lowered to problems on a machine."""

from stowplan.frontends.dfg.dot import read_dot
from stowplan.frontends.dfg.expression import carried, maximum, minimum, select, trace
from stowplan.frontends.dfg.graph import Dfg, read_json
from stowplan.frontends.dfg.lower import lower

__all__ = ["Dfg", "carried", "lower", "maximum", "minimum", "read_dot", "read_json", "select", "trace"]
