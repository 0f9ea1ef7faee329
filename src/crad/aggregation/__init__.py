"""How teachers are combined: statistics, filters, weights, rules, explanation. Pure: tensors in, tensors out.

The paper's equations: Eq. 6 in `statistics.py`, Eqs. 4-5 in `filters.py`, Eqs. 3 and 7 in `weights.py`,
Eq. 8 in `combine.py`. The table of rules is in `rules.py`.
"""

from crad.aggregation.combine import Combination, Trace, aggregate, combine, explain
from crad.aggregation.filters import Selection
from crad.aggregation.inputs import Evidence, check_evidence
from crad.aggregation.rules import RULES, Rule, resolve_rule

__all__ = [
    "RULES",
    "Combination",
    "Evidence",
    "Rule",
    "Selection",
    "Trace",
    "aggregate",
    "check_evidence",
    "combine",
    "explain",
    "resolve_rule",
]
