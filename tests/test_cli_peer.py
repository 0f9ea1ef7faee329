"""The commands before `crad peer join`, as people type them: keys, an agreement, a certificate that is renewed."""

from __future__ import annotations

import stat
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from crad.cli import main
from crad.network.agreement import read_agreement
from crad.network.identity import load_identity, renew_certificate
from crad.site.settings import read_site
from crad.site.state_folder import stale_state_warning, state_folder
from tests.organisations import Authority

CLASSES = ["top left", "top right", "bottom left", "bottom right"]


@pytest.fixture
def crad(monkeypatch, capsys):
    """A command of `crad`: its exit code, what it said, and what it said went wrong."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["crad", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def home(crad, tiny_npz, tmp_path) -> Path:
    """Two members and their agreement."""
    for name in ("clinic-a", "clinic-b"):
        own = ("--name", name, "--folder", tmp_path / name, "--address", f"{name}.example.org:8443")
        code, out, _ = crad("peer", "init", *own, "--model", "cnn6@0.125")
        assert code == 0
        assert "key.pem never leaves this machine" in out
        path = tmp_path / name / "peer.toml"
        text = path.read_text().replace('data = "data"', f'data = "{tiny_npz}"')
        text = text.replace('# classes = ["benign", "malignant"]', f"classes = {CLASSES}")
        path.write_text(text.replace('"federation.toml"', '"../federation.toml"'))
    site, member = tmp_path / "clinic-a" / "peer.toml", tmp_path / "clinic-a" / "member.toml"
    words = ("--federation", "two", "--site", site, "--member", member, "--set", "rounds=7")
    code, out, _ = crad("peer", "invite", *words, "--output", tmp_path / "federation.toml")
    assert (code, "4 classes" in out, "7 rounds of crad" in out) == (0, True, True)
    assert crad("peer", "trust", tmp_path / "federation.toml", tmp_path / "clinic-b" / "member.toml")[0] == 0
    return Path(tmp_path)


def test_an_invitation_to_private_training_holds_no_statistics_of_own_images(crad, home):
    site, member = home / "clinic-a" / "peer.toml", home / "clinic-a" / "member.toml"
    words = ("--federation", "two", "--site", site, "--member", member, "--set", "private_training=4")
    code, out, _ = crad("peer", "invite", *words, "--output", home / "private.toml")
    assert code == 0
    assert "this file is not" in out
    private, plain = (read_agreement(home / f"{name}.toml") for name in ("private", "federation"))
    assert plain.mean is not None
    assert private.mean == (0.5,) * len(plain.mean) != plain.mean
    assert private.std == (0.25,) * len(plain.mean) != plain.std


def test_an_agreement_has_what_the_members_said_of_themselves(home):
    agreement = read_agreement(home / "federation.toml")
    assert [member.name for member in agreement.members] == ["clinic-a", "clinic-b"]
    assert [member.address for member in agreement.members] == [
        *("clinic-a.example.org:8443", "clinic-b.example.org:8443")
    ]
    assert (agreement.rounds, agreement.image_shape) == (7, (8, 8, 1))
    assert list(agreement.classes) == CLASSES, "the labels of the file have no names of their own"
    for name in ("clinic-a", "clinic-b"):
        assert stat.S_IMODE((home / name / "keys" / "key.pem").stat().st_mode) == 0o600


def test_nothing_that_is_there_is_written_over(crad, home):
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    code, _, err = crad("peer", "init", "--name", "clinic-a", "--folder", home / "clinic-a")
    assert (code, err.count("\n")) == (2, 1)
    words = ("--federation", "x", "--site", home / "clinic-a" / "peer.toml", "--output", home / "federation.toml")
    assert crad("peer", "invite", *words)[0] == 2
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_another_fingerprint_than_was_read_out_is_refused(crad, home, tmp_path):
    crad("peer", "init", "--name", "clinic-c", "--folder", tmp_path / "c", "--address", "c:1")
    words = ("peer", "trust", home / "federation.toml", tmp_path / "c" / "member.toml")
    code, _, err = crad(*words, "--fingerprint", f"sha256:{'0' * 64}")
    assert (code, "not that one" in err) == (2, True)
    assert len(read_agreement(home / "federation.toml").members) == 2


def test_a_renewed_certificate_keeps_the_agreement_and_the_state(crad, home):
    path = home / "federation.toml"
    before, site = read_agreement(path), read_site(home / "clinic-b" / "peer.toml")
    key = (site.keys / "key.pem").read_bytes()
    soon_over = renew_certificate(site.keys, days=10).certificate
    code, out, _ = crad("peer", "renew", "--site", home / "clinic-b" / "peer.toml")
    assert code == 0
    assert "key and agreement stay the same" in out
    code, out, _ = crad("peer", "trust", path, home / "clinic-b" / "member.toml")
    assert code == 0
    assert "clinic-b is there with the same key" in out
    after = read_agreement(path)
    assert after.hash == before.hash
    assert state_folder(after, site) == state_folder(before, site)
    assert after.member("clinic-b").pin != before.member("clinic-b").pin
    assert (site.keys / "key.pem").read_bytes() == key
    assert load_identity(site.keys).certificate.not_valid_after_utc - soon_over.not_valid_after_utc > timedelta(
        days=800
    )


def test_another_key_needs_another_agreement(crad, home, tmp_path):
    crad("peer", "init", "--name", "clinic-b", "--folder", tmp_path / "new", "--address", "b:1")
    code, _, err = crad("peer", "trust", home / "federation.toml", tmp_path / "new" / "member.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "two of them have the name clinic-b" in err


def test_where_an_authority_issues_certificates_it_renews_them(crad, home):
    path, site = home / "federation.toml", home / "clinic-b" / "peer.toml"
    text = path.read_text().replace("[[members]]", f'[placeholder]\nx = """\n{Authority().pem}"""\n[[members]]', 1)
    head, _, rest = text.partition("[placeholder]\nx = ")
    pem, _, members = rest.partition("[[members]]")
    kept = [line for line in members.splitlines() if line.split(" = ")[0] in ("name", "address", "architecture")]
    names = "\n".join(["[[members]]", *kept[:3], "", "[[members]]", *kept[3:]])
    top, _, settings = head.partition("[settings]")
    path.write_text(f"{top}authority = {pem}\n[settings]{settings}\n{names}\n")
    before = (home / "clinic-b" / "keys" / "certificate.pem").read_bytes()
    code, _, err = crad("peer", "renew", "--site", site)
    assert (code, err.count("\n")) == (2, 1)
    assert "request.pem" in err
    assert (home / "clinic-b" / "keys" / "certificate.pem").read_bytes() == before


def test_a_new_agreement_says_where_the_old_state_is(home):
    agreement, site = read_agreement(home / "federation.toml"), read_site(home / "clinic-b" / "peer.toml")
    assert stale_state_warning(agreement, site) is None
    (site.state / "0123456789ab").mkdir(parents=True)
    (site.state / "0123456789ab" / "rounds.jsonl").touch()
    word = stale_state_warning(agreement, site)
    assert word is not None
    assert "0123456789ab" in word
    assert "put its federation.toml back" in word
    state_folder(agreement, site).mkdir()
    assert stale_state_warning(agreement, site) is None, "told once"
