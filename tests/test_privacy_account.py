"""A member's account of its privacy: kept by data, written before anything leaves, and never beyond the budget."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import crad
from crad.errors import ConfigError, RunError
from crad.federation.message import Manifest, Message, Statistics, encode, pack, read_state
from crad.federation.peer import new_model
from crad.federation.peer_evaluation import PrivateReleases
from crad.files import append_line
from crad.network.envelope import manifest_in
from crad.network.equivocation.signatures import SignatureRecord
from crad.network.member_exchange import SIGNED
from crad.privacy.accountant import PrivacyPlan, composed_epsilon, gaussian_epsilon, plan_of, training_epsilon
from crad.runs.records import records_fingerprint
from crad.site.accounted_exchange import AccountedExchange, LastPublished
from crad.site.doctor import Findings
from crad.site.doctor.privacy import check_privacy
from crad.site.local_peer import DIVISION, prepare_local_peer
from crad.site.privacy_account import ACCOUNT, PrivacyAccount, account_record, read_account, run_id
from crad.site.settings import read_site
from crad.site.state_folder import EXCHANGE
from crad.site.status import read_status, status_line
from tests.clinics import SETTINGS, Clinics, found_clinics
from tests.forked import import_before_forking

PLAN = PrivacyPlan(
    epsilon=4.0,
    delta=1e-5,
    accountant="rdp",
    noise_multiplier=2.63,
    max_grad_norm=1.0,
    sampling_rate=0.25,
    steps_per_round=4,
    statistics_releases=5,
    statistics_sigma=6.0,
)
PRIVATE: dict[str, Any] = {
    **SETTINGS,
    "private_training": 8.0,
    "delta": 1e-3,
    "sampling_rate": 0.5,
    "noise_multiplier": 1.0,
    "accountant": "rdp",
}


def account(folder: Path, **changed: Any) -> PrivacyAccount:
    about: dict[str, Any] = {
        "data": "d1",
        "source": "own.npz",
        "agreement": "a1",
        "run": "r1",
        "held_out": 0.2,
        "plan": PLAN,
        "budget": None,
    }
    return PrivacyAccount(folder / ACCOUNT, **{**about, **changed})


def spent_in(steps: int) -> float:
    return training_epsilon(2.63, rate=0.25, steps=steps, delta=1e-5, accountant="rdp")


def test_what_left_is_in_the_account_once(tmp_path):
    one = account(tmp_path)
    assert one.spent() == 0.0
    one.note(None, round_index=1)
    assert 0 < one.spent() < 1, "counts alone"
    one.note(PrivateReleases(steps=4, releases=1), round_index=2)
    one.note(PrivateReleases(steps=4, releases=1), round_index=2)  # the same message once more, after a restart
    one.note(PrivateReleases(steps=8, releases=1), round_index=3)
    assert one.spent() == pytest.approx(spent_in(8))
    assert [line.steps for line in read_account(tmp_path / ACCOUNT)] == [0, 4, 8]
    assert account(tmp_path).spent() == one.spent(), "read again"


def test_two_federations_on_the_same_data_spend_together(tmp_path):
    account(tmp_path).note(PrivateReleases(steps=80, releases=5), round_index=21)
    other = account(tmp_path, agreement="a2", run="r2")
    assert other.spent() == pytest.approx(spent_in(80))
    other.note(PrivateReleases(steps=80, releases=5), round_index=21)
    assert other.spent() == pytest.approx(spent_in(160), rel=0.01), "not twice, and not once"
    assert other.agreements == 2
    assert account(tmp_path, data="d2", source="other.npz").spent() == 0.0
    assert account(tmp_path, data="d2").spent() == other.spent(), "the same file with a row more"
    again = account(tmp_path, run="r3")  # its state was thrown away: other noise on the same records
    assert again.after(PrivateReleases(steps=80)) == pytest.approx(spent_in(240), rel=0.01)


def test_other_divisions_of_the_data_add_up(tmp_path):
    account(tmp_path).note(PrivateReleases(steps=8, releases=1), round_index=3)
    same = account(tmp_path, agreement="a2", run="r2").after(PrivateReleases(steps=8, releases=1))
    apart = account(tmp_path, agreement="a2", run="r2", held_out=0.3).after(PrivateReleases(steps=8, releases=1))
    assert apart > same


@pytest.mark.parametrize(
    "other", [{"data": "d2"}, {"division": "lost and made anew"}, {"held_out": 0.3}], ids=["columns", "secret", "share"]
)
def test_where_a_record_may_be_in_both_parts_they_add_up_and_share_delta(tmp_path, other):
    """Other columns or numbers of classes make other records of the same file: they fall into other parts."""
    account(tmp_path).note(PrivateReleases(steps=8, releases=1), round_index=3)
    apart = account(tmp_path, agreement="a2", run="r2", **other).after(PrivateReleases(steps=8, releases=1))
    training = composed_epsilon(((2.63, 0.25, 16),), delta=5e-6, accountant="rdp")
    assert apart == pytest.approx(training + gaussian_epsilon(6.0, releases=4, delta=5e-6))


def test_an_agreement_with_a_larger_delta_makes_nothing_look_smaller(tmp_path):
    account(tmp_path).note(PrivateReleases(steps=80, releases=5), round_index=21)
    other = account(tmp_path, agreement="a2", run="r2", plan=replace(PLAN, delta=0.4))
    assert other.spent() == account(tmp_path).spent() == pytest.approx(spent_in(80))
    assert account_record(other)["delta"] == 1e-5


def test_who_was_the_same_data_once_stays_in_the_account(tmp_path):
    """A file is copied, then rows are added to the copy: what was spent on the first is spent on its records."""
    account(tmp_path).note(PrivateReleases(steps=80), round_index=21)
    account(tmp_path, source="copy.npz", agreement="a2", run="r2").note(None, round_index=1)
    grown = account(tmp_path, source="copy.npz", data="d2", agreement="a3", run="r3")
    assert grown.agreements == 2
    assert grown.spent() >= spent_in(80)


def test_what_left_before_a_crash_is_spent_though_we_went_on_without_it(tmp_path):
    """Trained and published in round 3, stopped before it was saved, gone on in round 8 from what was saved after 2."""
    saved = PrivateReleases(steps=8, releases=1, parts=(("one", 4, 1), ("two", 4, 0)))
    lost = replace(saved, steps=12, releases=2, parts=(*saved.parts, ("three", 4, 1)))
    account(tmp_path).note(lost, round_index=3)
    again = account(tmp_path)
    again.note(lost, round_index=3)  # the same once more costs nothing
    assert len(read_account(tmp_path / ACCOUNT)) == 1
    other = replace(saved, steps=12, releases=2, parts=(*saved.parts, ("eight", 4, 1)))
    again.note(other, round_index=8)
    last = read_account(tmp_path / ACCOUNT)[-1]
    assert (last.steps, last.releases) == (16, 3)
    assert account(tmp_path).spent() == again.spent() >= spent_in(16)
    assert account(tmp_path).after(other) == again.spent()


class Published:
    """An exchange that takes down the round of every message, and of which round its weights are."""

    ledger = None

    def __init__(self):
        self.rounds, self.weights, self.manifests = [], [], []

    def publish(self, round_index, *, sender, kind, message):
        manifest = Manifest.model_validate_json(message.manifest)
        assert (manifest.round_index, manifest.kind) == (round_index, kind)
        self.rounds.append(round_index)
        self.weights.append(int(read_state(message.body)["w"]))
        self.manifests.append(manifest)


def snapshot(round_index: int) -> Message:
    statistics = Statistics(counts=(1.0 + round_index, 2.5), accuracies=(0.5, 0.25))
    return pack(
        {"w": torch.tensor(float(round_index))},
        kind="snapshot",
        peer=0,
        round_index=round_index,
        architecture="cnn6-gn",
        statistics=statistics,
    )


def test_two_members_at_once_on_the_same_data_share_the_budget(tmp_path):
    """Two agreements, two processes, one account: neither may look at what it read when it began."""
    budget = spent_in(20)
    both = [account(tmp_path, agreement=name, run=name, budget=budget) for name in ("a1", "a2")]
    lines: list[Any] = [Published(), Published()]
    state = {"private": PrivateReleases()}
    exchanges: list[Any] = [
        AccountedExchange(
            line,
            one,
            private=lambda: state["private"],
            notice=lambda text: None,
            last=LastPublished(tmp_path / one.agreement),
        )
        for line, one in zip(lines, both, strict=True)
    ]
    for round_index in range(1, 7):
        state["private"] = PrivateReleases(steps=4 * (round_index - 1))
        for exchange in exchanges:
            exchange.publish(round_index, sender=0, kind="snapshot", message=snapshot(round_index))
    assert all(one.is_stopped for one in both)
    assert account(tmp_path).spent() <= budget
    assert [line.weights for line in lines] == [[1, 2, 3, 4, 4, 4], [1, 2, 3, 3, 3, 3]], "12 and 8 steps"


def test_nobody_writes_while_another_process_does(tmp_path):
    first, second = account(tmp_path), account(tmp_path, run="r2")
    done = threading.Event()

    def wait_and_note() -> None:
        with second.alone():
            second.note(None, round_index=1)
        done.set()

    with first.alone():
        thread = threading.Thread(target=wait_and_note)
        thread.start()
        assert not done.wait(0.2)
        first.note(None, round_index=1)
    thread.join(5)
    assert done.is_set()
    assert second.agreements == 2


def test_who_hangs_with_the_account_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("crad.site.privacy_account.LOCK_TIMEOUT_S", 0.05)
    with (
        account(tmp_path).alone(),
        pytest.raises(RunError, match=r"another process has kept the privacy account .*: look for a crad peer join"),
        account(tmp_path, run="r2").alone(),
    ):
        pass


def test_the_same_records_are_the_same_data_in_any_order_and_number_of_parts():
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 255, (8, 8, 8, 1), dtype=np.uint8), np.arange(8) % 2
    first, test = crad.Dataset.from_arrays(x, y, x[:2], y[:2]), (x[:1], y[:1])
    order = rng.permutation(8)
    assert records_fingerprint(crad.Dataset.from_arrays(x[order], y[order], *test)) == records_fingerprint(first)
    assert records_fingerprint(crad.Dataset.from_arrays(x, 1 - y, *test)) != records_fingerprint(first)
    assert records_fingerprint(crad.Dataset.from_arrays(x[:7], y[:7], *test)) != records_fingerprint(first)


def test_composition_of_one_kind_is_that_of_so_many_steps():
    twice = composed_epsilon(((2.0, 0.25, 10), (2.0, 0.25, 10)), delta=1e-5, accountant="rdp")
    assert twice == pytest.approx(training_epsilon(2.0, rate=0.25, steps=20, delta=1e-5, accountant="rdp"))


class Watched(Published):
    """One that looks into the account before it lets anything new leave."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def publish(self, round_index, *, sender, kind, message):
        super().publish(round_index, sender=sender, kind=kind, message=message)
        assert read_account(self._folder / ACCOUNT)[-1].round == self.weights[-1], "written down before it leaves"


def test_nothing_new_leaves_beyond_the_budget_and_what_was_said_is_said_once(tmp_path):
    said = list[str]()
    state: dict[str, PrivateReleases | None] = {"private": None}
    limited = account(tmp_path, budget=(spent_in(8) + spent_in(12)) / 2)
    line = Watched(tmp_path)

    def exchange_of(one: PrivacyAccount) -> AccountedExchange:
        last = LastPublished(tmp_path / "last")
        inner: Any = line
        return AccountedExchange(inner, one, private=lambda: state["private"], notice=said.append, last=last)

    exchange = exchange_of(limited)
    for round_index in range(1, 7):
        state["private"] = PrivateReleases(steps=4 * (round_index - 1), releases=int(round_index > 1))
        exchange.publish(round_index, sender=0, kind="snapshot", message=snapshot(round_index))
    assert line.rounds == [1, 2, 3, 4, 5, 6], "nobody waits for us"
    assert line.weights == [1, 2, 3, 3, 3, 3], "what left before costs nothing more"
    assert {one.statistics for one in line.manifests[2:]} == {line.manifests[2].statistics}
    assert len(said) == 1
    assert "round 4 is not published: epsilon would be" in said[0]
    assert "our snapshot of round 3 stands in, and we go on learning from the others" in said[0]
    assert limited.spent() <= (spent_in(8) + spent_in(12)) / 2
    assert limited.is_stopped
    state["private"] = PrivateReleases(steps=24, releases=1)
    again = account(tmp_path, budget=limited.budget)
    exchange_of(again).publish(7, sender=0, kind="snapshot", message=snapshot(7))
    assert (line.rounds[-1], line.weights[-1]) == (7, 3), "after a restart as well"
    [body] = (tmp_path / "last").glob("*.safetensors")
    body.write_bytes(body.read_bytes()[:-1] + b"\1")
    exchange_of(again).publish(8, sender=0, kind="snapshot", message=snapshot(8))
    assert line.rounds[-1] == 7, "what is not what we kept does not leave"


def test_who_could_never_publish_has_nothing_to_stand_in(tmp_path):
    said, line, limited = list[str](), Published(), account(tmp_path, budget=1e-6)
    inner: Any = line
    exchange = AccountedExchange(
        inner, limited, private=lambda: None, notice=said.append, last=LastPublished(tmp_path / "last")
    )
    exchange.publish(1, sender=0, kind="snapshot", message=snapshot(1))
    assert line.rounds == []
    assert "the others have nothing of us, and we go on learning" in said[0]


def test_a_line_that_a_crash_cut_short_is_no_line_and_a_changed_one_is_refused(tmp_path):
    one, path = account(tmp_path), tmp_path / ACCOUNT
    one.note(PrivateReleases(steps=4, releases=1), round_index=2)
    with path.open("ab") as file:
        file.write(b'{"time": 1.0, "da')
    assert len(read_account(path)) == 1
    account(tmp_path).note(PrivateReleases(steps=8, releases=1), round_index=3)
    assert [line.steps for line in read_account(path)] == [4, 8]
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # as an editor leaves it
    assert [line.steps for line in read_account(path)] == [4, 8]
    account(tmp_path, run="r2").note(None, round_index=1)
    assert [line.steps for line in read_account(path)] == [4, 8, 0]
    append_line(path, b'{"nothing": 1}')
    with pytest.raises(RunError, match=r"line 4 is no entry of a privacy account.*nothing is published until"):
        account(tmp_path)


# --- real members


def write_budget(clinics: Clinics, number: int, budget: float) -> None:
    path = clinics.site(number)
    path.write_text(path.read_text().replace("# budget = 4.0", f"budget = {budget}"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three members through a folder; the budget of the last one allows the first two messages."""
    folder = tmp_path_factory.mktemp("private")
    import_before_forking("opacus.accountants")  # which all three need, a second and a half each
    clinics = found_clinics(folder, exchange=(folder / "store").as_uri(), settings=PRIVATE, deadline_s=5.0, quorum=1)
    plan = plan_of(clinics.agreement.experiment(dataset="own.npz", device="cpu"))
    assert plan is not None
    write_budget(clinics, 2, (plan.spent(steps=2, releases=1) + plan.spent(steps=4, releases=2)) / 2)
    log = folder / "log.txt"
    try:
        for process in [clinics.join_forked(number, log=log) for number in range(3)]:
            assert process.wait() == 0, log.read_text()
        yield clinics, log.read_text()
    finally:
        clinics.end()


def outcome(clinics: Clinics, number: int) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((clinics.state(number) / "participant.json").read_text())
    return record


def test_a_member_is_told_what_it_has_spent(federation):
    clinics, log = federation
    said = outcome(clinics, 0)["privacy"]
    plan = plan_of(clinics.agreement.experiment(dataset="own.npz", device="cpu"))
    assert plan is not None
    # The last message left before the last round's steps: two rounds of two steps and two releases are in it.
    assert said["epsilon"] == pytest.approx(plan.spent(steps=4, releases=2))
    assert plan.training_epsilon(4) < plan.statistics_epsilon(2) == pytest.approx(6.75, abs=0.01)
    assert (said["budget"], said["is_stopped"], said["agreements"]) == (None, False, 1)
    told = re.findall(r"clinic-(\d) in trial  round (\d)/3 .* epsilon ([\d.]+)", log)
    assert ("0", "3", f"{plan.spent(steps=4, releases=2):.3f}") in told, "what left, not what the model has in it"
    assert ("2", "3", f"{plan.spent(steps=2, releases=1):.3f}") in told
    page = (clinics.state(0) / "report.html").read_text()
    assert "were differentially private: epsilon" in page
    assert "of 8 (agreed) spent, delta 0.001, per record" in page
    site = read_site(clinics.site(0))
    assert "of 8 (agreed) spent, delta 0.001, per record" in status_line(read_status(clinics.agreement, site))


def test_who_has_spent_its_budget_stops_publishing_and_the_federation_goes_on(federation):
    clinics, log = federation
    said = outcome(clinics, 2)["privacy"]
    assert said["is_stopped"]
    assert said["epsilon"] <= said["budget"]
    assert "round 3 is not published: epsilon would be" in log
    lines = read_account(clinics.site(2).parent / "state" / ACCOUNT)
    assert [line.round for line in lines] == [1, 2]
    for number in range(3):
        assert outcome(clinics, number)["rounds_taken_part"] == SETTINGS["rounds"]
        assert outcome(clinics, number)["missing"] == {}, "its last snapshot stands in: nobody waits for it"
    signed = SignatureRecord(clinics.state(2) / EXCHANGE / SIGNED)
    envelopes = [signed.find(number, "snapshot") or b"" for number in (2, 3)]
    second, third = (Manifest.model_validate_json(manifest_in(one)) for one in envelopes)
    assert third == second.model_copy(update={"round_index": 3})


def test_noise_and_division_follow_a_secret_of_the_member(federation, monkeypatch):
    clinics, _ = federation
    site = read_site(clinics.site(0))
    part = prepare_local_peer(clinics.agreement, site)
    assert part.context.noise_seed == part.context.secret != clinics.agreement.seed
    assert part.account is not None
    assert part.context.secret is not None
    assert part.account.run == run_id(part.context.secret)
    state = clinics.site(0).parent / "state"
    for path in (state / DIVISION, clinics.state(0) / "secret"):
        assert path.stat().st_mode & 0o077 == 0
        secret = path.read_bytes()
        leaving = [one for one in (clinics.folder / "store").rglob("*") if one.is_file()]
        assert leaving
        assert not any(secret in one.read_bytes() for one in leaving)


def test_noise_is_other_noise_as_soon_as_a_record_or_its_part_is_another(tmp_path):
    """Who deletes a part of the state to begin again, with a corrected file, must not draw the same noise on it."""
    clinics = found_clinics(tmp_path, exchange=(tmp_path / "store").as_uri(), settings=PRIVATE)
    site = read_site(clinics.site(0))

    def seed_and_run() -> tuple[int, str]:
        part = prepare_local_peer(clinics.agreement, site)
        assert part.account is not None
        return part.context.noise_seed, part.account.run

    first = seed_and_run()
    assert seed_and_run() == first
    with np.load(site.data) as kept:
        arrays = dict(kept)
    arrays["train_images"][0] = 255 - arrays["train_images"][0]
    np.savez(site.data, **arrays)
    second = seed_and_run()
    (clinics.site(0).parent / "state" / DIVISION).unlink()
    third = seed_and_run()
    assert len({first[0], second[0], third[0]}) == len({first[1], second[1], third[1]}) == 3


@pytest.mark.parametrize(
    ("trained", "state", "words"),
    [
        (None, "warning", "no budget"),
        (3, "ok", "the budget is"),
        (2, "ok", "the budget is"),  # the last snapshot leaves before the last round's steps
        (1, "warning", "we would publish until round 2"),
        (-1, "warning", "we could publish nothing"),
    ],
)
def test_the_doctor_says_how_far_a_budget_lasts(federation, tmp_path, trained, state, words):
    clinics, _ = federation
    part = prepare_local_peer(clinics.agreement, read_site(clinics.site(0)))
    assert part.account is not None
    fresh = account(tmp_path, plan=part.account.plan)
    steps, releases = (0, -1) if trained == -1 else (2 * (trained or 0), trained or 0)
    budget = None if trained is None else 1.001 * fresh.plan.spent(steps=steps, releases=releases)
    fresh.budget = 1e-3 if trained == -1 else budget
    findings = Findings()
    check_privacy(replace(part, account=fresh), findings)
    (found,) = findings.all
    assert (found.check, found.state) == ("privacy", state)
    assert words in found.text
    assert f"epsilon {fresh.plan.spent(steps=6, releases=3):.3g} of our records after all 3 rounds" in found.text
    assert found.details["budget"] == fresh.budget


def test_the_doctor_adds_what_was_spent_before(federation):
    clinics, _ = federation
    part = prepare_local_peer(clinics.agreement, read_site(clinics.site(0)))
    findings = Findings()
    check_privacy(part, findings)
    assert part.account is not None
    assert f"with the {part.account.spent():.3g} spent on this data already" in findings.all[0].text
    whole = part.account.plan.spent(steps=6, releases=3)
    assert findings.all[0].details["epsilon"] == pytest.approx(whole), "this agreement's own part of it counts once"


def test_a_budget_for_training_that_is_not_private_is_refused(tmp_path):
    clinics = found_clinics(tmp_path, exchange=(tmp_path / "store").as_uri())
    write_budget(clinics, 0, 4.0)
    with pytest.raises(ConfigError, match=r"budget = 4 in peer.toml, but this agreement's training is not private"):
        prepare_local_peer(clinics.agreement, read_site(clinics.site(0)))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"noise_multiplier": 0.4}, r"noise_multiplier = 0.4 spends epsilon .* and private_training is 8"),
        ({"delta": 0.2}, r"delta = 0.2, and we hold \d+ records: with that chance any of them may be published whole"),
    ],
)
def test_an_agreement_whose_claim_is_none_is_refused(tmp_path, settings, line):
    clinics = found_clinics(tmp_path, exchange=(tmp_path / "store").as_uri(), settings={**PRIVATE, **settings})
    with pytest.raises(ConfigError, match=line):
        prepare_local_peer(clinics.agreement, read_site(clinics.site(0)))


def test_a_file_is_the_same_however_its_path_is_spelled(tmp_path):
    clinics = found_clinics(tmp_path, exchange=(tmp_path / "store").as_uri(), settings=PRIVATE)
    site = read_site(clinics.site(0))
    roundabout = site.data.parent / "." / ".." / site.data.parent.name / site.data.name
    parts = [
        prepare_local_peer(clinics.agreement, site.model_copy(update={"data": path}))
        for path in (site.data, roundabout)
    ]
    sources = {part.account.source for part in parts if part.account is not None}
    assert sources == {str(site.data.resolve())}


def test_a_member_is_reminded_that_first_weights_from_a_file_are_not_covered(tmp_path):
    clinics = found_clinics(tmp_path, exchange=(tmp_path / "store").as_uri(), settings=PRIVATE)
    part, site_file = prepare_local_peer(clinics.agreement, read_site(clinics.site(0))), clinics.site(0)
    model = new_model(part.context, part.context.architecture_of(0), seed=3)
    (site_file.parent / "mine.safetensors").write_bytes(encode(model.state_dict()))
    site_file.write_text(f'weights = "mine.safetensors"\n{site_file.read_text()}')
    word = prepare_local_peer(clinics.agreement, read_site(site_file)).word_about_weights
    assert "no account covers the records that they were trained on before" in str(word)
