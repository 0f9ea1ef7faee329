"""Two signatures of one member for one round: a proof that anybody can check, and that nobody else can make."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from crad.cli import make_app
from crad.errors import CradError, SnapshotError
from crad.network.arrivals import check_announced
from crad.network.envelope import seal
from crad.network.equivocation.proof import make_proof, verify_proof
from crad.network.equivocation.witness import Witness
from crad.network.identity import create_identity, fingerprint, key_fingerprint
from tests.organisations import Authority, agreed, make_identities
from tests.town import snapshot

B = 1


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture(scope="module")
def agreement(identities):
    return agreed(identities)


def envelope(identity, agreement, *, seed=0, round_index=1, kind="snapshot", peer=B) -> bytes:
    message = snapshot(peer, round_index, seed=seed, kind=kind)
    return seal(message.manifest, kind=kind, identity=identity, agreement=agreement)


@pytest.fixture(scope="module")
def two(identities, agreement):
    return envelope(identities[B], agreement, seed=1), envelope(identities[B], agreement, seed=2)


def test_a_proof_says_who_signed_what(identities, agreement, two):
    proven = verify_proof(make_proof(agreement, two))
    assert (proven.member, proven.round_index, proven.kind) == ("clinic-b", 1, "snapshot")
    assert (proven.federation, proven.agreement) == ("three clinics", agreement.hash)
    assert proven.key == key_fingerprint(identities[B].certificate)
    assert len(set(proven.sha256)) == 2


def test_a_proof_holds_where_an_authority_vouches_for_the_members(tmp_path):
    authority = Authority()
    identities = [authority.issue(identity) for identity in make_identities(tmp_path)]
    agreement = agreed(identities, authority=authority.pem)
    both = envelope(identities[B], agreement, seed=1), envelope(identities[B], agreement, seed=2)
    proof = make_proof(agreement, both)
    assert verify_proof(proof).member == "clinic-b"
    other = json.loads(proof) | {"authority": Authority().pem}
    with pytest.raises(SnapshotError, match="proves nothing"):
        verify_proof(json.dumps(other).encode())
    with pytest.raises(SnapshotError, match="another key"):
        verify_proof(json.dumps(json.loads(proof) | {"authority": None}).encode())


def test_the_same_message_twice_proves_nothing(agreement, two):
    with pytest.raises(SnapshotError, match="the same message"):
        make_proof(agreement, (two[0], two[0]))


def test_a_renewed_certificate_is_no_second_message(identities, agreement, two):
    """The key and what was signed are the same; the certificate around it is another."""
    again = json.loads(two[0]) | {"certificate": json.loads(two[1])["certificate"]}
    with pytest.raises(SnapshotError, match="the same message"):
        make_proof(agreement, (two[0], json.dumps(again).encode()))


@pytest.mark.parametrize("change", [{"round_index": 2}, {"kind": "generator"}])
def test_two_rounds_or_kinds_prove_nothing(identities, agreement, two, change):
    with pytest.raises(SnapshotError, match="proves nothing"):
        make_proof(agreement, (two[0], envelope(identities[B], agreement, seed=2, **change)))


def test_nobody_can_make_a_proof_against_another(identities, agreement, two, tmp_path):
    """With one's own key under the other's name, or with a key of the same name that the agreement does not know."""
    imposter = create_identity(tmp_path / "imposter", "clinic-b")
    with pytest.raises(SnapshotError, match="another key"):
        make_proof(agreement, (two[0], envelope(imposter, agreement, seed=2)))
    own = json.loads(envelope(identities[0], agreement, seed=2, peer=0)) | {"member": "clinic-b"}
    with pytest.raises(SnapshotError, match="another key"):
        make_proof(agreement, (two[0], json.dumps(own).encode()))


def test_an_agreement_of_ones_own_making_proves_nothing(identities, agreement, two, tmp_path):
    """The accuser puts its own key into the agreement under the other's name: the hash in the envelopes is another."""
    imposter = create_identity(tmp_path / "imposter", "clinic-b")
    forged = agreed([identities[0], imposter, identities[2]])
    proof = json.loads(make_proof(agreement, two)) | {"agreement": forged.text.decode()}
    with pytest.raises(SnapshotError, match="proves nothing"):
        verify_proof(json.dumps(proof).encode())


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 10**6), value=st.integers(1, 255))
def test_no_changed_byte_proves_anything_else(identities, agreement, two, place, value):
    """What still is a proof is one of the same: spaces, words that nobody reads."""
    raw = bytearray(make_proof(agreement, two))
    raw[place % len(raw)] ^= value
    try:
        proven = verify_proof(bytes(raw))
    except SnapshotError:
        return
    assert proven == verify_proof(make_proof(agreement, two))


@given(st.binary(max_size=300) | st.recursive(st.none() | st.text(), st.lists, max_leaves=5).map(json.dumps))
def test_nonsense_is_refused_in_one_line(nonsense):
    raw = nonsense if isinstance(nonsense, bytes) else nonsense.encode()
    with pytest.raises(SnapshotError) as refused:
        verify_proof(raw)
    assert str(refused.value).isprintable()


def test_verify_proof_on_the_command_line(agreement, two, identities, tmp_path):
    file = tmp_path / "proof.json"
    file.write_bytes(make_proof(agreement, two))
    app = make_app(["peer"])
    told = CliRunner().invoke(app, ["peer", "verify-proof", str(file)])
    assert told.exit_code == 0
    assert "clinic-b signed two different messages (snapshot) for round 1" in told.output
    assert key_fingerprint(identities[B].certificate) in told.output
    assert json.loads(CliRunner().invoke(app, ["peer", "verify-proof", str(file), "--json"]).output)["round_index"] == 1
    file.write_bytes(file.read_bytes().replace(b"clinic-b", b"clinic-a"))
    refused = CliRunner().invoke(app, ["peer", "verify-proof", str(file)])
    assert isinstance(refused.exception, CradError)
    missing = CliRunner().invoke(app, ["peer", "verify-proof", str(tmp_path / "none.json")])
    assert "No such file" in str(missing.exception)


# --- the witness


def witness(agreement, tmp_path, *, said=None) -> Witness:
    return Witness(agreement, 0, tmp_path / "proofs", notice=(said if said is not None else []).append)


def announced(agreement, raw, *, round_index=1):
    return check_announced(raw, sender=B, round_index=round_index, kind="snapshot", agreement=agreement)


def test_what_was_proven_stays_proven_after_a_restart(agreement, two, tmp_path):
    said: list[str] = []
    first = witness(agreement, tmp_path, said=said)
    for raw in two:
        first.note(B, announced(agreement, raw), "snapshot")
    assert first.proven() == ["clinic-b"]
    assert len(said) == 1
    again = witness(agreement, tmp_path)
    assert again.is_proven("clinic-b")
    assert again.proof("clinic-b") == first.proof("clinic-b")


def test_a_proof_of_another_federation_is_none_of_ours(identities, agreement, tmp_path):
    other = agreed(identities, seed=7)
    proof = make_proof(other, (envelope(identities[B], other, seed=1), envelope(identities[B], other, seed=2)))
    ours = witness(agreement, tmp_path)
    ours.take_proof(proof, teller="clinic-c")
    assert ours.proven() == []


def test_what_is_no_proof_is_said_once_and_changes_nothing(agreement, tmp_path):
    said: list[str] = []
    ours = witness(agreement, tmp_path, said=said)
    for _ in range(3):
        ours.take_proof(b"{}", teller="clinic-c")
    assert ours.proven() == []
    assert len(said) == 1
    assert said[0].startswith("clinic-c shows a proof that is none")


def test_messages_for_one_member_each_are_not_compared(identities, agreement, tmp_path):
    """What is addressed is another message for everybody, and rightly so."""
    ours = witness(agreement, tmp_path)
    for seed in (1, 2):
        message = snapshot(B, seed=seed, kind="returned")
        raw = seal(message.manifest, kind="returned-to-0", identity=identities[B], agreement=agreement)
        found = check_announced(raw, sender=B, round_index=1, kind="returned-to-0", agreement=agreement)
        ours.note(B, found, "returned-to-0")
    assert ours.proven() == []


def test_what_nobody_compares_any_more_is_forgotten(identities, agreement, tmp_path):
    ours = witness(agreement, tmp_path)
    for round_index in range(1, 6):
        raw = envelope(identities[B], agreement, round_index=round_index)
        ours.note(B, announced(agreement, raw, round_index=round_index), "snapshot")
    ours.forget(before=3)
    assert [index for index in range(1, 6) if ours.digests(index)] == [3, 4, 5]


def test_what_others_hold_of_our_own_is_said_and_never_proof_against_us(identities, agreement, tmp_path):
    said: list[str] = []
    ours = witness(agreement, tmp_path, said=said)
    mine = [envelope(identities[0], agreement, seed=seed, peer=0) for seed in (1, 2)]
    found = check_announced(mine[0], sender=0, round_index=1, kind="snapshot", agreement=agreement)
    ours.note(0, found, "snapshot")
    digests = {"clinic-a": {"snapshot": "0" * 64}}
    ours.compare(1, digests, teller="clinic-b", show=lambda name, kind: mine[1])
    assert ours.proven() == []
    assert "is the key in other hands?" in said[0]
    assert fingerprint(identities[0].certificate) not in said[0]
