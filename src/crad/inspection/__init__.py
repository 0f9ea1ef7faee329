"""Looking into a finished run: who said what about an image, and what the rule made of it."""

from crad.inspection.cases import FAILURE_RULE, SUCCESS_RULE
from crad.inspection.inspector import RunInspector, write_inspection
from crad.inspection.panel import is_inspectable

__all__ = ["FAILURE_RULE", "SUCCESS_RULE", "RunInspector", "is_inspectable", "write_inspection"]
