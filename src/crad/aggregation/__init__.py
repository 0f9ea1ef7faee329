"""How teachers are combined: statistics, filters, weights, rules, explanation. Pure: tensors in, tensors out.

The paper's equations: Eqs. 6-7 in `statistics.py`, Eqs. 4-5 in `filters.py`, Eqs. 3 and 7 in `weights.py`,
Eq. 8 in `combine.py`. The table of rules is in `rules.py`. What goes beyond the paper: `correction.py`,
`verification.py`, `member_evidence.py`, `confusion.py` and the other filters in `filters.py`.
"""

from crad.aggregation.combine import Combination, Trace, aggregate, combine, explain, trace
from crad.aggregation.confusion import Confusion, Confusions, find_confusions
from crad.aggregation.correction import correct, log_shares_of, remove_prior
from crad.aggregation.evidence import Evidence, check_evidence
from crad.aggregation.filters import Selection
from crad.aggregation.judge import TeacherFindings, TeacherJudge, known_stats
from crad.aggregation.rules import RULES, Rule, resolve_rule
from crad.aggregation.statistics import ClassHits, TeacherStats
from crad.aggregation.verification import Tally, credibility, verify

__all__ = [
    "RULES",
    "ClassHits",
    "Combination",
    "Confusion",
    "Confusions",
    "Evidence",
    "Rule",
    "Selection",
    "Tally",
    "TeacherFindings",
    "TeacherJudge",
    "TeacherStats",
    "Trace",
    "aggregate",
    "check_evidence",
    "combine",
    "correct",
    "credibility",
    "explain",
    "find_confusions",
    "known_stats",
    "log_shares_of",
    "remove_prior",
    "resolve_rule",
    "trace",
    "verify",
]
