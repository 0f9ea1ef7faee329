"""`crad peer doctor`: everything that would go wrong in round 1, found before it, and what a round will cost."""

from crad.doctoring.examination import examine
from crad.doctoring.findings import Finding, Findings

__all__ = ["Finding", "Findings", "examine"]
