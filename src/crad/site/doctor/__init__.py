"""`crad peer doctor`: everything that would go wrong in round 1, found before it, and what a round will cost."""

from crad.site.doctor.examination import examine
from crad.site.doctor.findings import Finding, Findings

__all__ = ["Finding", "Findings", "examine"]
