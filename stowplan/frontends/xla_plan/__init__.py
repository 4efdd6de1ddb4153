"""Import of a production compiler's own plan: what XLA decided about fast memory, as a plan of ours."""

from stowplan.frontends.xla_plan.importer import ImportedPlan, import_xla_plan
from stowplan.frontends.xla_plan.repair import Dropped
from stowplan.frontends.xla_plan.stays import Placement, find_offsets, read_offsets

__all__ = ["Dropped", "ImportedPlan", "Placement", "find_offsets", "import_xla_plan", "read_offsets"]
