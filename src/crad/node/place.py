"""Where a member's part in a federation lies, and what its files are called."""

from __future__ import annotations

from pathlib import Path

from crad.network.agreement import Agreement
from crad.network.site import Site

LEDGER, REFUSALS, STATUS = "ledger.jsonl", "refused.jsonl", "status.json"
HASH_LETTERS = 12  # of the federation's hash in a folder's name


def state_folder(agreement: Agreement, site: Site) -> Path:
    """Where all of this member's part in this agreement lies."""
    return site.state / agreement.hash[:HASH_LETTERS]
