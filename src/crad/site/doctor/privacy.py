"""Whether our budget of privacy lasts for what was agreed on, and what has been spent on this data before."""

from __future__ import annotations

from crad.config import Experiment
from crad.federation.peer_evaluation import PrivateReleases
from crad.privacy.accountant import statistics_every
from crad.site.doctor.findings import Findings
from crad.site.local_peer import LocalPeer
from crad.site.privacy_account import PrivacyAccount


def check_privacy(local_peer: LocalPeer, findings: Findings) -> None:
    """Compare the whole agreement's epsilon, with what was spent before, to the budget in peer.toml."""
    account = local_peer.account
    if account is None:
        return
    findings.on_step("adding up the privacy account")
    experiment, before = local_peer.context.experiment, account.spent()
    planned = _after_rounds(account, experiment, experiment.rounds)
    text = (
        f"private training: epsilon {planned:.3g} of our records after all {experiment.rounds} rounds, delta "
        f"{account.delta:g}" + (f", with the {before:.3g} spent on this data already" if before else "")
    )
    values = {"epsilon": planned, "spent": before, "budget": account.budget, "delta": account.delta}
    if account.budget is None:
        advice = "write budget = ... into peer.toml: nothing would leave beyond it, whatever else is agreed on later"
        findings.warn("privacy", f"{text}; no budget", advice, **values)
    elif planned <= account.budget or (last := _last_round_within(account, experiment)) == experiment.rounds:
        findings.ok("privacy", f"{text}; the budget is {account.budget:g}", **values)
    else:
        until = f"we would publish until round {last}" if last else "we could publish nothing"
        advice = "raise the budget, or agree on fewer rounds or a smaller private_training"
        findings.warn(
            "privacy", f"{text}; the budget is {account.budget:g}: {until}", advice, last_round=last, **values
        )


def _after_rounds(account: PrivacyAccount, experiment: Experiment, trained: int) -> float:
    """Return what will have been spent once a model that has trained for so many rounds has left."""
    releases = 1 + (trained - 1) // statistics_every(experiment) if trained else 0
    steps = account.plan.steps_per_round * trained
    return account.after(PrivateReleases(steps=steps, releases=releases, parts=account.noted))


def _last_round_within(account: PrivacyAccount, experiment: Experiment) -> int:
    """Return the last round whose snapshot the budget lets out, which has trained in those before it; 0: none."""
    assert account.budget is not None, "asked of a budget"
    low, high = 0, experiment.rounds
    while low < high:
        middle = (low + high + 1) // 2
        if _after_rounds(account, experiment, middle - 1) <= account.budget:
            low = middle
        else:
            high = middle - 1
    return low
