"""Where a member's part in a federation lies, and what its files are called."""

from __future__ import annotations

from pathlib import Path

from crad.network.agreement import Agreement
from crad.runs.directory import ROUNDS_FILE
from crad.site.settings import Site

LEDGER, REFUSALS, STATUS = "ledger.jsonl", "refused.jsonl", "status.json"
EXCHANGE = "exchange"  # own and others' snapshots of the last two rounds, what we signed, proofs
LAST_PUBLISHED = "last-published"  # under private training: what stands in for us once the budget is spent
KEPT, COMMITTEE = "committee", "committee.safetensors"  # everybody's newest snapshot, and all of them as one predictor
HASH_LETTERS = 12  # of the federation's hash in a folder's name


def state_folder(agreement: Agreement, site: Site) -> Path:
    """Return where all of this member's part in this agreement lies."""
    return site.state / agreement.hash[:HASH_LETTERS]


def stale_state_warning(agreement: Agreement, site: Site) -> str | None:
    """Return what to tell a member whose state is of other agreements alone: nothing of it is lost or used."""
    if state_folder(agreement, site).exists():
        return None
    others = sorted(path.parent.name for path in site.state.glob(f"*/{ROUNDS_FILE}"))
    if not others:
        return None
    return (
        f"{site.state} holds our part in another agreement ({', '.join(others)}), which stays as it is; this one is "
        f"{agreement.hash[:HASH_LETTERS]}, and training starts over: to go on with the old one, stop and put its "
        "federation.toml back"
    )
