"""federation.toml and peer.toml: read, refused with one line, hashed so that equal agreements are equal."""

from __future__ import annotations

import copy
import json
import shutil
import tomllib
from dataclasses import asdict, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.config import RECIPES, names_of, setting_of, with_stored_names
from crad.data.preprocessing import AUGMENTATIONS
from crad.errors import ConfigError
from crad.models import Architecture
from crad.network.agreement import (
    SETTINGS,
    Agreement,
    Member,
    add_member,
    agreement_to_toml,
    differences,
    make_agreement,
    read_agreement,
    renew_member,
)
from crad.network.fields import split_address
from crad.network.identity import create_identity, fingerprint, renew_certificate
from tests.organisations import Authority, agreed, agreement_table, make_identities, member_table, with_addresses

EXAMPLES = settings(max_examples=40, derandomize=True, database=None, deadline=None)


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture(scope="module")
def agreement(identities) -> Agreement:
    return agreed(identities)


# --- reading and writing


def test_what_is_written_is_what_is_read(agreement, tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(agreement_to_toml(agreement))
    again = read_agreement(path)
    assert again == agreement
    assert again.hash == agreement.hash


def test_defaults_are_written_in_full(agreement):
    recipe = set(names_of("recipe"))
    unset = {"active", "private_counts"} | recipe  # none by default
    younger = {
        "optimizer",
        "lr_schedule",
        "warmup_rounds",
        "standardize",
        *("private_training", "delta", "max_grad_norm", "sampling_rate", "noise_multiplier", "accountant"),
        *("statistics_every", "norm"),
    }  # as before they came: agreements of then keep their hash
    assert set(agreement.settings) == set(SETTINGS) - unset - younger
    for line in ('method = "crad"', "temperature = 3.0", "deadline_s = 900.0", "rounds = 5", "lr = 0.05"):
        assert line in agreement_to_toml(agreement).splitlines()


def test_a_recipe_is_written_in_full_where_it_is_not_the_published_one(identities, agreement):
    published = agreed(identities, settings={**agreement.settings, "local_loss": "plain", "evidence": "reported"})
    assert published.hash == agreement.hash, "saying what holds anyway changes nothing"
    plus = agreed(identities, settings={**agreement.settings, "method": "crad-plus", "local_loss": "plain"})
    expected = replace(RECIPES["crad-plus"], local_loss="plain")
    said = {name: one for name, one in asdict(expected).items() if not setting_of(name).is_unsaid_before}
    stored = with_stored_names(said)
    assert {name: plus.settings[name] for name in stored} == stored
    assert plus.experiment(dataset="own.npz", device="cpu").recipe == expected
    with pytest.raises(ConfigError, match="unknown setting 'liars'"):
        agreed(identities, settings={"liars": 1})


LATER: dict[str, tuple[object, object]] = {
    "missing_weight": (2.0, 0.0),
    "distill_schedule": ("rising", "constant"),
}


@pytest.mark.parametrize("name", LATER)
def test_a_part_of_a_recipe_that_came_later_is_said_where_it_is_on(identities, agreement, name):
    on, before = LATER[name]
    for method in ("crad", "crad-plus"):
        older, other = (agreed(identities, settings={"method": method, **more}) for more in ({}, {name: on}))
        assert name not in older.settings
        assert other.settings[name] == on
        assert other.hash != older.hash
        assert agreed(identities, settings={"method": method, name: before}).hash == older.hash
        assert getattr(other.experiment(dataset="own.npz", device="cpu").recipe, name) == on


def test_a_members_number_is_its_place(agreement):
    assert [agreement.number(name) for name in ("clinic-a", "clinic-b", "clinic-c")] == [0, 1, 2]
    assert agreement.member("clinic-b").name == "clinic-b"
    with pytest.raises(ConfigError, match=r"unknown member 'clinic-x'.*clinic-a, clinic-b, clinic-c"):
        agreement.number("clinic-x")


def test_an_agreement_becomes_an_experiment_with_a_client_per_member(agreement):
    experiment = agreement.experiment(dataset="own.npz", device="cpu")
    assert (experiment.clients, experiment.rounds, experiment.lr, experiment.seed) == (3, 5, 0.05, 1024)
    assert experiment.models == ("cnn6@0.125",) * 3, "every member says its own width"
    assert (experiment.dataset, experiment.augment, experiment.proxy_size) == ("own.npz", False, 0)


def test_augmentations_are_those_that_exist():
    assert set(get_args(Agreement.model_fields["augmentation"].annotation)) == set(AUGMENTATIONS)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the agreement"):
        read_agreement(tmp_path / "federation.toml")


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"name = 2020-01-01", b"[members]\n"])
def test_a_broken_file_is_refused_by_name_in_one_line(tmp_path, content):
    path = tmp_path / "federation.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"federation\.toml") as refusal:
        read_agreement(path)
    assert "\n" not in str(refusal.value)


# --- refusals


REFUSALS = {
    "unknown key": ({"deadline": 5}, r"unknown key 'deadline'.*'deadline_s'"),
    "unknown setting": ({"settings": {"learning_rate": 0.1}}, "unknown setting 'learning_rate'"),
    "a setting of one's own": ({"settings": {"device": "cpu"}}, "unknown setting 'device'"),
    "impossible setting": ({"settings": {"lr": -1}}, r"lr = -1"),
    "more active than members": ({"settings": {"active": 4}}, "active is 4, but there are only 3"),
    "one class": ({"classes": ["a"]}, "classes"),
    "a class twice": ({"classes": ["a", "b", "a"]}, "a class is named twice"),
    "a class with a line break": ({"classes": ["a", "b\nc"]}, r"classes\.1"),
    "small images": ({"image_shape": [4, 8, 1]}, "image_shape"),
    "four channels": ({"image_shape": [8, 8, 4], "mean": [0] * 4, "std": [1] * 4}, "1 or 3"),
    "too few means": ({"image_shape": [8, 8, 3]}, "mean has 1 values, but images have 3 channels"),
    "no spread": ({"std": [0.0]}, r"std\.0"),
    "not a number": ({"mean": [float("nan")]}, "mean"),
    "unknown augmentation": ({"augmentation": "mixup"}, "augmentation"),
    "quorum of more than the others": ({"quorum": 3}, "quorum is 3, but a member has only 2 others"),
    "deadline of nothing": ({"deadline_s": 0}, "deadline_s"),
    "text for a number": ({"quorum": "1"}, "quorum"),
    "a bucket without scheme": ({"exchange": "bucket/folder"}, "expected https or an address"),
    "no members": ({"members": []}, "members"),
    "authority that is none": ({"authority": "PEM"}, "authority"),
    "authority without the right": ({"authority": Authority(is_ca=False).pem}, "CA is false"),
}


@pytest.mark.parametrize(("changes", "match"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_agreed_on_is_refused_in_one_line(identities, changes, match):
    table = agreement_table(identities)
    with pytest.raises(ConfigError, match=match) as refusal:
        make_agreement({**table, **changes})
    assert "\n" not in str(refusal.value)


MEMBER_REFUSALS = {
    "bad name": ({"name": "Clinic A"}, "member name 'Clinic A'"),
    "another's certificate": ({"name": "clinic-x"}, "clinic-x has the certificate of clinic-b"),
    "wrong fingerprint": ({"fingerprint": f"sha256:{'0' * 64}"}, "another fingerprint"),
    "malformed fingerprint": ({"fingerprint": "AB:CD"}, "fingerprint"),
    "no port": ({"address": "peer.example.org"}, "expected host:port"),
    "port too large": ({"address": "peer.example.org:70000"}, "expected host:port"),
    "address with a path": ({"address": "peer.example.org:1/x"}, "expected host:port"),
    "no architecture": ({"architecture": ""}, "model name"),
    "width with zeros": ({"architecture": "cnn6@0.50"}, "write the width as 0.5"),
    "width of one": ({"architecture": "cnn6@1"}, "left out where it is 1"),
    "width of nothing": ({"architecture": "cnn6@0"}, "over 0"),
    "unknown key": ({"adress": "a:1"}, r"unknown key 'adress'.*'address'"),
    "no certificate": ({"certificate": "nothing"}, "no certificate in PEM"),
}


@pytest.mark.parametrize(("changes", "match"), MEMBER_REFUSALS.values(), ids=MEMBER_REFUSALS)
def test_a_member_that_cannot_be_is_refused_in_one_line(identities, changes, match):
    table = agreement_table(identities)
    table["members"][1] |= changes
    with pytest.raises(ConfigError, match=match) as refusal:
        make_agreement(table)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", ["certificate", "address"])
def test_a_member_needs_a_certificate_and_an_address(identities, key):
    table = agreement_table(identities)
    del table["members"][2][key]
    with pytest.raises(ConfigError, match=f"member clinic-c has no {key}"):
        make_agreement(table)


def test_over_a_bucket_nobody_needs_an_address(identities):
    table = agreement_table(identities, exchange="s3://bucket/folder")
    for member in table["members"]:
        del member["address"]
    assert make_agreement(table).exchange == "s3://bucket/folder"


def test_two_members_cannot_share_a_name(identities, tmp_path):
    namesake = create_identity(tmp_path, "clinic-a")
    with pytest.raises(ConfigError, match="two of them have the name clinic-a"):
        agreed([*identities, namesake])


@pytest.mark.parametrize("architecture", ["resnet18", "resnet18@0.125", "cnn6@2", "my.models:build"])
def test_architectures_are_written_as_peers_write_them(identities, architecture):
    table = agreement_table(identities)
    table["members"][0]["architecture"] = architecture
    assert Architecture.parse(make_agreement(table).members[0].architecture).id == architecture


@pytest.mark.parametrize(("text", "parts"), [("a.example:8443", ("a.example", 8443)), ("[::1]:80", ("::1", 80))])
def test_addresses_have_a_host_and_a_port(text, parts):
    assert split_address(text) == parts


# --- the hash


def test_addresses_are_not_part_of_the_hash(agreement):
    moved = with_addresses(agreement, ["new.example:1", "127.0.0.1:2", "[::1]:3"])
    assert moved != agreement
    assert moved.hash == agreement.hash
    assert differences(agreement, moved) == []


def test_how_a_certificate_is_written_does_not_change_the_hash(identities, agreement):
    table = agreement_table(identities)
    for member, identity in zip(table["members"], identities, strict=True):
        member["certificate"] = "some words\n" + member["certificate"].replace("\n", "\r\n")
        member["fingerprint"] = fingerprint(identity.certificate)
    assert make_agreement(table).hash == agreement.hash


def test_how_a_number_is_written_does_not_change_the_hash(identities, agreement):
    table = agreement_table(identities, mean=[120], settings={"lr": 5e-2, "rounds": 5, "temperature": 3})
    assert make_agreement(table).hash == agreement.hash


CHANGES = {
    "name": ({"name": "other clinics"}, "name: 'three clinics' here, 'other clinics' there"),
    "order of classes": (
        {"classes": ["malignant", "benign", "unclear"]},
        "classes.0: 'benign' here, 'malignant' there",
    ),
    "one more class": ({"classes": ["benign", "malignant", "unclear", "d"]}, "classes.3: nothing here, 'd' there"),
    "normalisation": ({"mean": [121.0]}, "mean.0: 120.0 here, 121.0 there"),
    "seed": ({"seed": 7}, "seed: 1024 here, 7 there"),
    "setting": ({"settings": {"rounds": 5, "lr": 0.01}}, "settings.lr: 0.05 here, 0.01 there"),
    "method's setting": (
        {"settings": {"rounds": 5, "lr": 0.05, "method_settings": {"mu": 0.3}}},
        "settings.method_settings.mu: nothing here, 0.3 there",
    ),
    "private counts": (
        {"settings": {"rounds": 5, "lr": 0.05, "private_counts": 1.0}},
        "settings.private_counts: nothing here, 1.0 there",
    ),
    "quorum": ({"quorum": 2}, "quorum: 1 here, 2 there"),
}


@pytest.mark.parametrize(("changes", "line"), CHANGES.values(), ids=CHANGES)
def test_whatever_was_agreed_on_changes_the_hash_and_is_named(identities, agreement, changes, line):
    other = agreed(identities, **changes)
    assert other.hash != agreement.hash
    assert line in differences(agreement, other)
    assert line in differences(agreement, json.loads(other.text))  # as it comes from a peer


def test_a_members_key_architecture_and_number_are_agreed_on(identities, agreement, tmp_path):
    table = agreement_table([identities[1], identities[0], create_identity(tmp_path, "clinic-c")])
    table["members"][0]["architecture"] = "cnn6-wide"
    lines = differences(agreement, make_agreement(table))
    assert "members.clinic-a.number: 0 here, 1 there" in lines
    assert "members.clinic-b.architecture: 'cnn6@0.125' here, 'cnn6-wide' there" in lines
    assert any(line.startswith("members.clinic-c.key: 'sha256:") for line in lines)


def test_a_renewed_certificate_of_the_same_key_keeps_the_hash(agreement, identities, tmp_path):
    shutil.copytree(identities[1].folder, tmp_path / "keys")
    renewed = Member(**member_table(renew_certificate(tmp_path / "keys")))
    newer = renew_member(agreement, renewed)
    assert newer is not None
    assert newer.hash == agreement.hash
    assert newer.member("clinic-b").pin == renewed.pin != agreement.member("clinic-b").pin
    assert (newer.members[0], newer.members[2]) == (agreement.members[0], agreement.members[2])
    assert make_agreement(tomllib.loads(agreement_to_toml(newer))) == newer


def test_another_key_is_no_renewal(agreement, tmp_path):
    assert renew_member(agreement, Member(**member_table(create_identity(tmp_path / "b", "clinic-b")))) is None
    assert renew_member(agreement, Member(**member_table(create_identity(tmp_path / "d", "clinic-d")))) is None


def test_a_new_member_is_named(agreement, identities, tmp_path):
    fourth = create_identity(tmp_path, "clinic-d")
    larger = add_member(agreement, Member(**member_table(fourth)))
    assert [member.name for member in larger.members][-1] == "clinic-d"
    assert larger.members[:3] == agreement.members
    assert larger.hash != agreement.hash
    assert "members.clinic-d.number: nothing here, 3 there" in differences(agreement, larger)
    with pytest.raises(ConfigError, match="two of them"):
        add_member(larger, Member(**member_table(fourth)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


@EXAMPLES
@given(theirs=st.dictionaries(st.sampled_from(["name", "classes", "members", "\x1b[2J", "settings"]), JSON))
def test_any_json_of_a_peer_gives_few_printable_lines(agreement, theirs):
    lines = differences(agreement, theirs)
    assert 0 < len(lines) <= 21
    assert all(line.isprintable() and len(line) < 500 for line in lines)


def test_json_of_any_depth_gives_a_line(agreement):
    deep: list[object] = []
    for _ in range(900):
        deep = [deep]
    lines = differences(agreement, {**agreement.canonical(), "name": deep})
    assert lines[-1] == "name.0.0.0.0.0.0.0: nothing here, something deep there"


@EXAMPLES
@given(data=st.data())
def test_any_value_in_the_place_of_another_is_taken_or_refused_in_one_line(identities, data):
    table = copy.deepcopy(agreement_table(identities))
    key = data.draw(st.sampled_from(sorted(Agreement.model_fields)))
    table[key] = data.draw(JSON)
    try:
        make_agreement(table)
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "\n" not in refusal
