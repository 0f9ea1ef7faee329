"""No name from outside is imported: what an agreement or a partner names is built in, allowed by us, or left out."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from crad.cli import main
from crad.errors import ConfigError, RunError, SnapshotError
from crad.federation.message import encoded_bytes
from crad.federation.peer import Peer, new_model
from crad.federation.teachers import TeacherCache
from crad.models import FAMILIES, Allowance, Architecture, InputShape, build_model, estimate_size
from crad.network.agreement import Agreement, agreement_to_toml, make_agreement
from crad.runs.directory import RunDirectory
from crad.site.doctor import Findings, examine
from crad.site.local_peer import LocalPeer, prepare_local_peer
from crad.site.permission import check_store_kind, left_out_of
from crad.site.settings import read_site, template
from crad.site.setup import member_toml
from crad.site.status import status_line
from tests.clinics import Clinics, found_clinics
from tests.forked import fork_or_start

OWN, THERE, FOREIGN = range(3)
PATIENCE_S = 300
CANARY = """
import os, pathlib
with open(pathlib.Path(__file__).with_name("sang"), "a") as file:
    file.write(os.environ.get("CANARY_OWNER", "nobody") + "\\n")
import torch

def build(num_classes, in_channels):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(in_channels * 64, num_classes))

METHOD = None
"""


@pytest.fixture
def canary(tmp_path, monkeypatch) -> Iterator[Path]:
    """The file that says who imported a module called `canary`, or `timm`, which can be imported from here."""
    folder = tmp_path / "importable"
    folder.mkdir()
    for name in ("canary", "timm"):
        (folder / f"{name}.py").write_text(CANARY)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder / "sang"
    sys.modules.pop("canary", None)
    sys.modules.pop("timm", None)


@pytest.fixture(scope="module")
def founded(tmp_path_factory) -> Clinics:
    return found_clinics(tmp_path_factory.mktemp("clinics"), deadline_s=60.0)


def agreed(clinics: Clinics, *, architectures: dict[int, str] | None = None, **changes: Any) -> Agreement:
    table = {**clinics.agreement.model_dump(mode="json", exclude_none=True), **changes}
    for number, name in (architectures or {}).items():
        table["members"][number]["architecture"] = name
    return make_agreement(table)


def local_peer_of(clinics: Clinics, agreement: Agreement, folder: Path, **changes: Any) -> LocalPeer:
    site = read_site(clinics.site(OWN)).model_copy(update={"state": folder / "state", **changes})
    return prepare_local_peer(agreement, site)


OUTSIDE = {
    "a module that kills": "ctypes:string_at",
    "a package that is not there": "nowhere_at_all:build",
    "one that is": "canary:build",
    "one of timm's": "timm:resnet18",
    "another package's entry point": "installed-elsewhere",
}


@pytest.fixture
def entry_point(monkeypatch):
    """Another package has registered a network, a method and a rule under one name."""

    def entry_points(*, group):
        return [metadata.EntryPoint("installed-elsewhere", "canary:build", group)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)


@pytest.mark.usefixtures("entry_point")
@pytest.mark.parametrize("name", OUTSIDE.values(), ids=OUTSIDE)
def test_a_partners_network_from_outside_is_left_out_and_never_imported(founded, canary, tmp_path, name):
    local_peer = local_peer_of(founded, agreed(founded, architectures={FOREIGN: f"{name}@0.5"}), tmp_path)
    assert list(local_peer.left_out) == [FOREIGN]
    said = f"its network {name}@0.5 is not built in; to learn from it write architectures"
    assert said in local_peer.left_out[FOREIGN]
    assert local_peer.named_left_out == {"clinic-2": local_peer.left_out[FOREIGN]}
    assert not canary.exists()


def test_what_our_own_file_allows_is_a_teacher(founded, canary, tmp_path):
    agreement = agreed(founded, architectures={FOREIGN: "canary:build"})
    local_peer = local_peer_of(founded, agreement, tmp_path, architectures=("canary:build",))
    assert local_peer.left_out == {}
    assert canary.exists()


def test_what_is_allowed_and_not_installed_is_left_out(founded, tmp_path):
    agreement = agreed(founded, architectures={FOREIGN: "nowhere_at_all:build"})
    local_peer = local_peer_of(founded, agreement, tmp_path, architectures=("nowhere_at_all:build",))
    assert "cannot be built here: model 'nowhere_at_all:build'" in local_peer.left_out[FOREIGN]


def test_the_teachers_side_builds_nothing_that_is_not_allowed(founded, canary, tmp_path):
    """Should a message come in all the same."""
    agreement = agreed(founded, architectures={FOREIGN: "canary:build"})
    theirs = local_peer_of(
        founded,
        agreement,
        tmp_path,
        architectures=("canary:build",),
        name="clinic-2",
        data=founded.folder / "clinic-2" / "own.npz",
    )
    message = Peer(theirs.context, theirs.method.roster(theirs.context)[FOREIGN]).snapshot(1)
    canary.unlink()
    ours = local_peer_of(founded, agreement, tmp_path)
    with pytest.raises(SnapshotError, match="peer 2 is not learned from: its network canary:build is not built in"):
        TeacherCache(ours.context).decode(message, sender=FOREIGN, round_index=1)
    with pytest.raises(ConfigError, match="canary:build"):
        new_model(ours.context, Architecture("canary:build"), seed=0)
    assert not canary.exists() or canary.read_text() == ""
    TeacherCache(theirs.context).decode(message, sender=FOREIGN, round_index=1)


@pytest.mark.usefixtures("entry_point")
@pytest.mark.parametrize("name", ["canary:build", "installed-elsewhere"])
def test_our_own_network_must_be_allowed_by_our_own_file(founded, canary, tmp_path, name):
    with pytest.raises(ConfigError, match="our own network") as refusal:
        local_peer_of(founded, agreed(founded, architectures={OWN: name}), tmp_path, architectures=("a:b",))
    assert f'write architectures = ["a:b", "{name}"] into peer.toml' in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not canary.exists()


@pytest.mark.usefixtures("entry_point")
@pytest.mark.parametrize("name", ["canary:METHOD", "installed-elsewhere", "ctypes:string_at"])
def test_a_method_from_outside_is_refused_before_anything_is_imported(founded, canary, tmp_path, name):
    agreement = agreed(founded, settings={**founded.agreement.settings, "method": name})
    with pytest.raises(ConfigError, match="is not built in") as refusal:
        local_peer_of(founded, agreement, tmp_path)
    assert f'write methods = ["{name}"] into peer.toml' in str(refusal.value)
    assert not canary.exists()


def test_an_allowed_method_of_ones_own_takes_part(founded, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    name = "examples.own_rule:METHOD"
    agreement = agreed(founded, settings={**founded.agreement.settings, "method": name})
    assert local_peer_of(founded, agreement, tmp_path, methods=(name,)).method.rule is not None


def test_a_kind_of_store_that_only_the_agreement_names_is_not_loaded(founded, canary, tmp_path):
    import fsspec

    fsspec.register_implementation("canaries", "canary.build", clobber=True)
    agreement = agreed(founded, exchange="canaries://bucket")
    with pytest.raises(ConfigError, match="exchanges through canaries://"):
        local_peer_of(founded, agreement, tmp_path)
    text = founded.site(OWN).read_text().replace("../federation.toml", "federation.toml")
    (tmp_path / "federation.toml").write_text(agreement_to_toml(agreement))
    (tmp_path / "peer.toml").write_text(text.replace('"own.npz"', f'"{founded.site(OWN).parent}/own.npz"'))
    (tmp_path / "keys").symlink_to(founded.site(OWN).parent / "keys")
    findings = Findings()
    examine(tmp_path / "peer.toml", findings)
    assert ["canaries://" in finding.text for finding in findings.of("problem")] == [True, True]
    assert not canary.exists()
    ours = read_site(founded.site(OWN)).model_copy(update={"store": "canaries://bucket"})
    check_store_kind(agreement, ours)


@pytest.mark.parametrize("kind", ["file", "local", "memory", "s3", "s3a", "sftp", "ssh"])
def test_stores_that_we_know_may_be_agreed_on(founded, kind):
    check_store_kind(agreed(founded, exchange=f"{kind}://place"), read_site(founded.site(OWN)))


# --- size and time, before anything is built

SHAPES = [InputShape(10, 3, (32, 32)), InputShape(3, 1, (8, 24))]


@pytest.mark.parametrize("shape", SHAPES, ids=["colour", "grey"])
@pytest.mark.parametrize("width", [0.125, 1.0])
@pytest.mark.parametrize("name", FAMILIES["image"])
def test_the_estimate_is_the_size_of_the_real_network(name, width, shape):
    architecture = Architecture(name, width)
    size = estimate_size(architecture, shape)
    real = build_model(architecture, **vars(shape), seed=0)
    assert size.nbytes == sum(tensor.nbytes for tensor in real.state_dict().values())
    assert size.parameters == sum(parameter.numel() for parameter in real.parameters())
    assert {key: tensor.shape for key, tensor in size.weights.items()} == {
        key: tensor.shape for key, tensor in real.state_dict().items()
    }
    assert all(tensor.device.type == "meta" for tensor in size.weights.values()), "no memory"
    with FlopCounterMode(display=False) as counter:
        real.eval()(shape.empty_samples(1))
    assert size.flops == counter.get_total_flops()


def test_the_operations_of_a_known_network_are_those_of_the_literature():
    assert estimate_size(Architecture("resnet18"), SHAPES[0]).flops == pytest.approx(2 * 0.5555e9, rel=0.01)


def test_the_bytes_of_a_snapshot_are_known_without_its_values(founded, tmp_path):
    local_peer = local_peer_of(founded, founded.agreement, tmp_path)
    message = Peer(local_peer.context, local_peer.method.roster(local_peer.context)[OWN]).snapshot(1)
    size = estimate_size(local_peer.context.architecture_of(OWN), local_peer.context.input_shape)
    assert encoded_bytes(size.weights) == len(message.body)


TOO_LARGE = {
    "many operations": (
        "resnet18@4",
        (224, 224),
        "869 GFLOP for a sample, our peer.toml allows max_teacher_gflops = 2",
    ),
    "much memory": ("cnn6@4", (256, 256), "MB of weights, our peer.toml allows max_teacher_mb = 2048"),
    "more than there is": ("cnn6@4", (10**6, 10**6), "MB of weights, our peer.toml allows max_teacher_mb = 2048"),
    "more than numbers say": ("resnet18", (10**12, 10**12), "are beyond what can be computed"),
}


@pytest.mark.parametrize(("name", "sides", "words"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_network_over_our_limits_is_refused_by_name_without_being_built(name, sides, words):
    reason = Allowance().refusal(Architecture.parse(name), InputShape(10, 3, sides))
    assert reason is not None
    assert reason.startswith(f"its network {name} ")
    assert words in reason
    assert "\n" not in reason


@pytest.mark.parametrize(("name", "largest"), [("cnn6", (32, 32, 32)), ("resnet18", (64, 32, 32)), ("cnn6@0.5", None)])
def test_the_largest_activation_of_an_image_is_known_without_building(name, largest):
    size = estimate_size(Architecture.parse(name), SHAPES[0])
    seen: list[int] = []
    real = build_model(Architecture.parse(name), **vars(SHAPES[0]), seed=0).eval()
    for module in real.modules():
        module.register_forward_hook(lambda module, given, output: seen.append(output.nbytes))
    real(torch.zeros(1, 3, 32, 32))
    assert size.activation_bytes == max(seen)
    assert largest is None or size.activation_bytes == 4 * math.prod(largest)


def test_a_small_network_with_a_large_layer_is_refused_for_the_batch(founded):
    """Few weights, few operations: what is large is what a batch of large images becomes."""
    network, shape = Architecture("cnn6", 0.125), InputShape(10, 3, (512, 512))
    size = estimate_size(network, shape)
    allowance = Allowance(max_mb=(size.nbytes + 10 * size.activation_bytes) / 1e6)
    assert allowance.refusal(network, shape, batch_size=10) is None
    reason = allowance.refusal(network, shape, batch_size=11)
    assert reason is not None
    words = r"its network cnn6@0.125 takes \d+ MB of weights and \d+ MB for one layer's output of 11 samples, "
    assert re.fullmatch(words + r"our peer.toml allows max_teacher_mb = [\d.]+", reason)


def test_the_agreed_shape_and_batch_count_for_others_and_for_ourselves(founded, tmp_path):
    site = read_site(founded.site(OWN))
    assert left_out_of(agreed(founded, settings={"batch_size": 16}), site) == {}
    large = agreed(founded, settings={"batch_size": 10**7})
    reasons = left_out_of(large, site)
    assert list(reasons) == [1, 2]
    assert all("for one layer's output of 10000000 samples" in reason for reason in reasons.values())
    with pytest.raises(
        ConfigError, match=r"our own network cnn6@0.125 takes .* for one layer's output of 10000000 samples"
    ):
        local_peer_of(founded, large, tmp_path)


def test_the_limits_are_our_own(founded, tmp_path):
    assert left_out_of(founded.agreement, read_site(founded.site(OWN))) == {}
    site = read_site(founded.site(OWN)).model_copy(update={"max_teacher_mb": 0.001})
    reasons = left_out_of(founded.agreement, site)
    assert list(reasons) == [1, 2], "the others; of ourselves join says it"
    assert all("max_teacher_mb = 0.001" in reason for reason in reasons.values())
    with pytest.raises(ConfigError, match=r"our own network cnn6@0.125 takes .* max_teacher_gflops = 1e-06"):
        local_peer_of(founded, founded.agreement, tmp_path, max_teacher_gflops=1e-6)


def test_a_network_that_cannot_be_sketched_is_built_for_once_where_it_is_allowed(canary, monkeypatch):
    canary.with_name("canary.py").write_text(
        "import torch\n"
        "def build(num_classes, in_channels):\n"
        "    scale = float(torch.ones(1))  # has no value on the meta device\n"
        "    last = torch.nn.Linear(in_channels * 64, int(scale) * num_classes)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), last)\n"
    )
    size = estimate_size(Architecture("canary:build"), InputShape(5, 1, (8, 8)))
    assert (size.parameters, size.flops) == (64 * 5 + 5, 2 * 64 * 5)


# --- what people see


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


def test_init_allows_our_own_network_and_no_other(crad, canary, tmp_path):
    own = ("--name", "clinic-a", "--address", "a:1")
    assert crad("peer", "init", *own, "--folder", tmp_path / "a", "--model", "canary:build@0.5")[0] == 0
    assert read_site(tmp_path / "a" / "peer.toml").architectures == ("canary:build",)
    assert crad("peer", "init", *own, "--folder", tmp_path / "b", "--model", "cnn6@0.5")[0] == 0
    assert read_site(tmp_path / "b" / "peer.toml").architectures == ()
    assert not canary.exists()


def test_trust_warns_of_a_network_that_is_not_built_in(crad, founded, canary, tmp_path):
    path = tmp_path / "federation.toml"
    only = founded.agreement.model_dump(mode="json", exclude_none=True)
    path.write_text(agreement_to_toml(make_agreement({**only, "members": only["members"][:1]})))
    for number, architecture in ((1, "canary:build"), (2, "resnet18")):
        member = founded.agreement.members[number].model_copy(update={"architecture": architecture})
        (tmp_path / f"{number}.toml").write_text(member_toml(member))
    code, _, err = crad("peer", "trust", path, tmp_path / "1.toml", tmp_path / "2.toml")
    assert code == 0
    assert err == (
        "Warning: clinic-1's network canary:build is not built in; to learn from it write architectures = "
        '["canary:build"] into peer.toml after reading its code\n'
    )
    assert not canary.exists()


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('architectures = "my_pkg:build"', "architectures"),
        ('architectures = ["my_pkg:build@0.5"]', "without a width"),
        ("methods = [5]", "methods"),
        ("max_teacher_mb = 0", "max_teacher_mb"),
        ('max_teacher_gflops = "much"', "max_teacher_gflops"),
        ('classes = "as I like"', 'expected a list of two or more different names, or "as agreed"'),
        ('classes = ["a", "a"]', "two or more different names"),
        ('classes = ["a", 5]', "two or more different names"),
    ],
)
def test_an_allowance_that_cannot_be_is_refused_in_one_line(tmp_path, line, match):
    (tmp_path / "peer.toml").write_text(f"{template('clinic-a')}\n{line}\n")
    with pytest.raises(ConfigError, match=match) as refusal:
        read_site(tmp_path / "peer.toml")
    assert "\n" not in str(refusal.value)


def test_status_names_who_is_left_out():
    status = {"is_running": True, "age_s": 0.0, "left_out": {"clinic-2": "too large"}, "confused": ["clinic-1: odd"]}
    assert "left out as teachers: clinic-2 (too large); clinic-1: odd" in status_line(status)


@pytest.mark.parametrize("inner", ["", "alone"])
def test_a_members_folder_is_not_taken_for_a_simulation_whose_names_may_be_imported(founded, canary, tmp_path, inner):
    local_peer = local_peer_of(founded, agreed(founded, architectures={FOREIGN: "canary:build"}), tmp_path)
    folder = local_peer.folder / inner
    folder.mkdir(exist_ok=True)
    (folder / "experiment.toml").write_text('method = "canary:METHOD"\n')
    with pytest.raises(RunError, match="crad peer join"):
        RunDirectory(folder).experiment()
    (local_peer.folder / "secret").unlink()
    assert RunDirectory(folder).experiment().method == "canary:METHOD"


# --- the whole: three members, one with a network that only itself allows


def test_a_run_goes_on_without_a_network_that_may_not_be_imported(canary, tmp_path):
    clinics = found_clinics(tmp_path / "clinics", deadline_s=10.0, settings={"rounds": 2, "batch_size": 16})
    agreement = agreed(clinics, architectures={FOREIGN: "canary:build"})
    (clinics.folder / "federation.toml").write_text(agreement_to_toml(agreement))
    clinics.agreement = agreement
    site = clinics.site(FOREIGN)
    site.write_text(f'{site.read_text()}\narchitectures = ["canary:build"]\n')
    processes = [_join(clinics, number, canary.parent) for number in range(3)]
    try:
        told = [process.communicate(timeout=PATIENCE_S)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], told
    finally:
        for process in processes:
            process.kill()
    assert set(canary.read_text().split()) == {"clinic-2"}, "nobody else has imported it"
    for number in (OWN, THERE):
        assert told[number].count("clinic-2 is left out as a teacher: its network canary:build is not built in") == 1
        record = json.loads((clinics.state(number) / "participant.json").read_text())
        assert record["rounds_taken_part"] == 2
        assert list(record["left_out"]) == ["clinic-2"]
        assert [row["member"] for row in record["trusted"]] == [f"clinic-{1 - number}"]
        assert "clinic-2" in json.loads((clinics.state(number) / "status.json").read_text())["left_out"]
        assert (
            "Not learned from clinic-2: its network canary:build" in (clinics.state(number) / "report.html").read_text()
        )
    foreign = json.loads((clinics.state(FOREIGN) / "participant.json").read_text())
    assert {row["member"] for row in foreign["trusted"]} == {"clinic-0", "clinic-1"}, "it learns from the others"


def _join(clinics: Clinics, number: int, folder: Path) -> subprocess.Popen[str]:
    """A member that has imported nothing of its own yet, and does not export to ONNX, which takes seconds."""
    words = ["peer", "join", "--site", str(clinics.site(number))]
    code = f"import sys; sys.modules['onnx'] = None; sys.argv = ['crad', *{words!r}]; from crad.cli import main; main()"
    return fork_or_start(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CANARY_OWNER": f"clinic-{number}"},
    )


def test_the_whole_examination_goes_on_with_a_network_that_would_kill(founded, tmp_path):
    agreement = agreed(founded, architectures={FOREIGN: "ctypes:string_at"})
    (tmp_path / "federation.toml").write_text(agreement_to_toml(agreement))
    text = founded.site(OWN).read_text().replace("../federation.toml", "federation.toml")
    (tmp_path / "peer.toml").write_text(text.replace('"own.npz"', f'"{founded.site(OWN).parent}/own.npz"'))
    (tmp_path / "keys").symlink_to(founded.site(OWN).parent / "keys")
    findings = Findings()
    examine(tmp_path / "peer.toml", findings)
    left = [finding for finding in findings.of("warning") if "left_out" in finding.details]
    assert [finding.check for finding in left] == ["clinic-2"]
    assert "estimate" in [finding.check for finding in findings.of("ok")], "it went on to the end"
