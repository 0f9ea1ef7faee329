"""Keys and certificates: created once, readable by their owner alone, and only whole ones are taken up."""

from __future__ import annotations

import hashlib
import os
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from crad.errors import ConfigError, SnapshotError
from crad.network.agreement import make_agreement
from crad.network.certificate_check import check_dates, find_member
from crad.network.identity import (
    create_identity,
    fingerprint,
    load_identity,
    name_in,
    parse_certificate,
    read_certificate,
)
from tests.organisations import Authority, agreed, make_identities


def test_a_key_is_readable_by_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        identity = create_identity(tmp_path / "keys", "clinic-a")
    finally:
        os.umask(before)
    assert stat.S_IMODE(identity.key_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(identity.folder.stat().st_mode) == 0o700


def test_a_key_is_never_overwritten(tmp_path):
    create_identity(tmp_path, "clinic-a")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="already holds a key"):
        create_identity(tmp_path, "clinic-b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_was_created_is_what_is_loaded(tmp_path):
    made = create_identity(tmp_path, "clinic-a")
    loaded = load_identity(tmp_path)
    assert (loaded.name, loaded.certificate) == ("clinic-a", made.certificate)
    made.key.public_key().verify(loaded.sign(b"text"), b"text")


def test_a_private_key_is_in_no_text_of_an_identity(tmp_path):
    identity = create_identity(tmp_path, "clinic-a")
    secret = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    assert secret.splitlines()[1] not in f"{identity} {identity!r}"
    assert "key=" not in repr(identity)


def test_a_certificate_vouches_for_its_own_name_and_for_nobody_else(tmp_path):
    certificate = create_identity(tmp_path, "clinic-a").certificate
    assert name_in(certificate) == "clinic-a"
    extensions = certificate.extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    certificate.verify_directly_issued_by(certificate)


def test_a_certificate_holds_for_as_long_as_asked(tmp_path):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    certificate = create_identity(tmp_path, "clinic-a", days=10, now=now).certificate
    assert certificate.not_valid_after_utc == now + timedelta(days=10)
    assert certificate.not_valid_before_utc < now  # the others' clocks may be behind


def test_the_request_carries_name_and_key(tmp_path):
    identity = create_identity(tmp_path, "clinic-a")
    request = x509.load_pem_x509_csr((tmp_path / "request.pem").read_bytes())
    assert request.is_signature_valid
    assert request.public_key() == identity.key.public_key()
    names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["clinic-a"]


def test_a_fingerprint_is_the_digest_of_the_whole_certificate(tmp_path):
    certificate = create_identity(tmp_path, "clinic-a").certificate
    assert fingerprint(certificate) == "sha256:" + hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


@pytest.mark.parametrize("name", ["", "Clinic", "a b", "-a", "a/b", "../a", "ä", "a" * 64, "a\n", "a.b"])
def test_names_that_are_no_host_or_folder_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="member name"):
        create_identity(tmp_path / "keys", name)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_not_used(tmp_path, mode):
    create_identity(tmp_path, "clinic-a")
    (tmp_path / "key.pem").chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_identity(tmp_path)


@pytest.mark.parametrize("lost", ["key.pem", "certificate.pem"])
def test_a_missing_file_is_named(tmp_path, lost):
    create_identity(tmp_path, "clinic-a")
    (tmp_path / lost).unlink()
    with pytest.raises(ConfigError, match=rf"{lost}.*crad peer init"):
        load_identity(tmp_path)


@pytest.mark.parametrize("broken", ["key.pem", "certificate.pem"])
@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_broken_file_is_named(tmp_path, broken, content):
    create_identity(tmp_path, "clinic-a")
    (tmp_path / broken).write_bytes(content)
    with pytest.raises(ConfigError, match=broken) as refusal:
        load_identity(tmp_path)
    assert "\n" not in str(refusal.value)


def test_the_certificate_of_another_key_is_refused(tmp_path):
    create_identity(tmp_path / "a", "clinic-a")
    other = create_identity(tmp_path / "b", "clinic-a")
    (tmp_path / "a" / "certificate.pem").write_bytes(other.certificate_path.read_bytes())
    with pytest.raises(ConfigError, match="belongs to another key"):
        load_identity(tmp_path / "a")


def test_another_kind_of_key_is_refused(tmp_path):
    create_identity(tmp_path, "clinic-a")
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ConfigError, match="not an Ed25519 key"):
        load_identity(tmp_path)


def test_a_certificate_without_a_members_name_is_refused():
    with pytest.raises(ValueError, match="exactly one name"):
        read_certificate(Authority().pem.encode())


def test_a_certificate_of_an_authority_takes_the_place_of_the_self_signed_one(tmp_path):
    identity = Authority().issue(create_identity(tmp_path, "clinic-a"))
    assert load_identity(tmp_path).certificate.issuer != identity.certificate.subject


# --- whose certificate is it


def der(identity):
    return identity.certificate.public_bytes(Encoding.DER)


def test_a_members_certificate_is_recognised(tmp_path):
    identities = make_identities(tmp_path)
    agreement = agreed(identities)
    assert [find_member(der(one), agreement=agreement).name for one in identities] == [
        "clinic-a",
        "clinic-b",
        "clinic-c",
    ]


def test_a_member_of_an_authority_is_recognised_by_its_name(tmp_path):
    authority = Authority()
    identities = [authority.issue(identity) for identity in make_identities(tmp_path)]
    agreement = agreed(identities, authority=authority.pem)
    assert find_member(der(identities[1]), agreement=agreement).name == "clinic-b"


def test_a_new_certificate_for_an_old_name_is_refused_where_one_is_pinned(tmp_path):
    agreement = agreed(make_identities(tmp_path))
    imposter = create_identity(tmp_path / "imposter", "clinic-b")
    with pytest.raises(SnapshotError, match=r"clinic-b .* fingerprint"):
        find_member(der(imposter), agreement=agreement)


def test_a_certificate_of_a_foreign_authority_is_refused(tmp_path):
    authority = Authority()
    identities = [authority.issue(identity) for identity in make_identities(tmp_path)]
    agreement = agreed(identities, authority=authority.pem)
    foreign = Authority().issue(create_identity(tmp_path / "foreign", "clinic-b"))  # the same name of the authority too
    with pytest.raises(SnapshotError, match=r"clinic-b .* has not issued"):
        find_member(der(foreign), agreement=agreement)


def test_a_self_signed_certificate_is_refused_where_an_authority_vouches(tmp_path):
    authority = Authority()
    identities = [authority.issue(identity) for identity in make_identities(tmp_path)]
    agreement = agreed(identities, authority=authority.pem)
    with pytest.raises(SnapshotError, match="has not issued"):
        find_member(der(create_identity(tmp_path / "own", "clinic-b")), agreement=agreement)


def test_a_certificate_of_the_authority_for_a_stranger_is_refused(tmp_path):
    authority = Authority()
    identities = [authority.issue(identity) for identity in make_identities(tmp_path)]
    agreement = agreed(identities, authority=authority.pem)
    stranger = authority.issue(create_identity(tmp_path / "stranger", "clinic-z"))
    with pytest.raises(SnapshotError, match="clinic-z, who is not a member"):
        find_member(der(stranger), agreement=agreement)


def test_a_pinned_certificate_stays_pinned_beside_an_authority(tmp_path):
    authority = Authority()
    identities = make_identities(tmp_path)
    table = agreed(identities).model_dump(mode="json", exclude_none=True)
    agreement = make_agreement({**table, "authority": authority.pem})
    thief = authority.issue(create_identity(tmp_path / "thief", "clinic-b"))
    with pytest.raises(SnapshotError, match="fingerprint"):
        find_member(der(thief), agreement=agreement)


@pytest.mark.parametrize(("days", "match"), [(-2, "not valid before"), (11, "expired on 2030-01-11")])
def test_a_certificate_holds_only_between_its_dates(tmp_path, days, match):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    certificate = create_identity(tmp_path, "clinic-a", days=10, now=now).certificate
    check_dates(certificate, who="clinic-a", now=now)
    with pytest.raises(SnapshotError, match=match):
        check_dates(certificate, who="clinic-a", now=now + timedelta(days=days))


def test_a_certificate_has_one_spelling(tmp_path):
    """Its signature is a bit string, which may say that its last bits do not count, and is the same without them."""
    for number in range(20):  # until a signature ends in a bit that is not set: one of two does
        certificate = create_identity(tmp_path / str(number), "clinic-a").certificate
        der = bytearray(certificate.public_bytes(Encoding.DER))
        assert parse_certificate(bytes(der)) == certificate
        if der[-1] & 1 == 0:
            break
    place = len(der) - len(certificate.signature) - 1
    assert der[place] == 0
    der[place] = 1
    assert x509.load_der_x509_certificate(bytes(der)).signature == certificate.signature, "the library takes it"
    with pytest.raises(ValueError, match="whole bytes"):
        parse_certificate(bytes(der))
