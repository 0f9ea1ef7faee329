"""One organisation's part in a federation: the loop of the simulation over own images, and what is kept of it.

<state>/<federation>/
  experiment.toml, partition.json, rounds.jsonl, checkpoint/   as in a run directory, of the own member alone
  alone/            the same for a model that never heard of the others: did joining help?
  status.json       for `crad peer status`
  exchange/         what was sent and received lately
  ledger.jsonl      everything that left this machine
  refused.jsonl     what was refused on its way in, and why
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crad.api import Hooks, check_model
from crad.config import Experiment, to_toml
from crad.data.own import OwnData, load_own_data
from crad.data.tensors import preparation_of
from crad.engines.serial import SerialEngine
from crad.errors import ConfigError, RunError
from crad.exporting import export_onnx, export_safetensors, trained_model
from crad.federation.checkpoint import latest_round, load_checkpoint, save_checkpoint
from crad.federation.exchange import Exchange, MemoryExchange
from crad.federation.files import write_atomically
from crad.federation.method import Method
from crad.federation.records import Record, partition_record, round_record
from crad.federation.roster import Roster
from crad.federation.rounds import Rounds, Step
from crad.federation.world import World, build_own_world
from crad.learning.device import choose_device, repeatable
from crad.methods import resolve_method
from crad.methods.alone import LOCAL
from crad.network.agreement import HTTPS, Agreement
from crad.network.bucket_exchange import BucketExchange
from crad.network.https_exchange import HttpsExchange
from crad.network.identity import Identity, fingerprint, load_identity
from crad.network.ledger import OutgoingLedger, totals
from crad.network.refusals import RefusalLog, read_refusals
from crad.network.server import SnapshotServer
from crad.network.site import Site
from crad.randomness import stream, torch_seed
from crad.results.participant import participant_page, participant_record
from crad.results.run_directory import RunDirectory
from crad.results.selection import best_round
from crad.results.summary import versions

LEDGER, REFUSALS, STATUS = "ledger.jsonl", "refused.jsonl", "status.json"
WAIT_S = 0.2
SECRET_BITS = 63
MemberExchange = HttpsExchange | BucketExchange
HASH_LETTERS = 12  # of the federation's hash in a folder's name


@dataclass(frozen=True)
class Part:
    """A member ready to take part: its number, its world and its method."""

    agreement: Agreement
    number: int
    world: World
    method: Method
    folder: Path

    @property
    def experiment(self) -> Experiment:
        """The agreed settings with the own data and device."""
        return self.world.experiment


@dataclass(frozen=True)
class Trained:
    """One of the two models: its records, and its state at the round with the highest own validation accuracy."""

    rounds: list[Record]
    best: Record
    state: Path


@dataclass
class Status:
    """What `crad peer status` says, written after every step."""

    path: Path
    content: Record = field(default_factory=dict)

    def say(self, **news: Any) -> None:  # noqa: ANN401  # plain values
        """Change some of it; a reader in another terminal never sees half a file."""
        self.content |= {**news, "updated": time.time(), "process": os.getpid()}
        write_atomically(self.path, json.dumps(self.content, indent=1).encode() + b"\n")


@dataclass(frozen=True)
class Joined:
    """What taking part came to: `record` is participant.json."""

    record: Record
    folder: Path


def join(agreement: Agreement, site: Site, *, hooks: Hooks) -> Joined:
    """Take part until the last round, train alone for comparison, and write what came of both."""
    part = prepare_part(agreement, site)
    with open_exchange(part, site, notice=hooks.on_notice) as exchange:
        federated = take_part(part, exchange, hooks=hooks)
        hooks.on_notice("all rounds done; now the same model without the others, for comparison")
        alone = train_alone(part, hooks=Hooks(on_step=hooks.on_step))
        late = wait_for_readers(part, exchange, notice=hooks.on_notice)
        if late:
            hooks.on_notice(f"not fetched by {', '.join(late)} within the agreed deadline; ending without them")
    record = participant_record(
        federation=agreement.name,
        member=site.name,
        members=[member.name for member in agreement.members],
        class_names=agreement.classes,
        joined=federated.rounds,
        joined_best=federated.best,
        alone_best=alone.best,
        refused=read_refusals(part.folder / REFUSALS),
        left=totals(part.folder / LEDGER),
        private_counts=part.experiment.private_counts,
    )
    _write_outcome(part, federated, record, hooks=hooks)
    Status(part.folder / STATUS).say(
        state="finished", federation=agreement.name, member=site.name, difference=record["difference"]
    )
    return Joined(record, part.folder)


def state_folder(agreement: Agreement, site: Site) -> Path:
    """Where all of this member's part in this agreement lies."""
    return site.state / agreement.hash[:HASH_LETTERS]


def read_status(agreement: Agreement, site: Site) -> Record:
    """What the own part said last."""
    path = state_folder(agreement, site) / STATUS
    try:
        status: Record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is not there: this member has not joined yet; crad peer join begins") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}; crad peer join writes it anew") from error
    return {**status, "age_s": max(0.0, time.time() - status.get("updated", 0.0)), "is_running": _is_running(status)}


def status_line(status: Record) -> str:
    """The status in one line for people."""
    where = f"{status.get('member', '?')} in {status.get('federation', '?')}: {status.get('state', '?')}"
    parts = [where + (f", round {status['round']} of {status['rounds']}" if "rounds" in status else "")]
    if "validation_accuracy" in status:
        parts.append(f"validation {status['validation_accuracy']:.1f} %")
    if status.get("missing"):
        parts.append(f"missing last round: {', '.join(status['missing'])}")
    if not status["is_running"] and status.get("state") != "finished":
        parts.append("its process has ended: crad peer join continues")
    return "; ".join([*parts, f"said {status['age_s']:.0f} s ago"])


def _is_running(status: Record) -> bool:
    try:
        os.kill(int(status["process"]), 0)
    except (KeyError, ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _write_outcome(part: Part, federated: Trained, record: Record, *, hooks: Hooks) -> None:
    """The selected model for use, and the report."""
    directory = RunDirectory(part.folder)
    architecture = part.world.architecture_of(part.number)
    model = trained_model(part.world, part.method.roster(part.world)[part.number], federated.state)
    export_safetensors(model, part.world, part.folder / "model.safetensors", architecture=architecture.id)
    try:
        export_onnx(model, part.world, part.folder / "model.onnx")
    except ConfigError as error:
        hooks.on_notice(f"no model.onnx: {error}")
    directory.write_json("participant.json", record)
    directory.write_text("report.html", participant_page(record, versions=versions()))


def prepare_part(agreement: Agreement, site: Site) -> Part:
    """Read the own data and check everything that can be checked without the others."""
    return make_part(agreement, site, read_data(agreement, site))


def read_data(agreement: Agreement, site: Site) -> OwnData:
    """The own images, in the agreed classes and shape."""
    return load_own_data(
        str(site.data),
        classes=agreement.classes,
        image_shape=agreement.image_shape,
        augmentation=agreement.augmentation,
        held_out=_experiment(agreement, site).held_out,
        rng=stream(agreement.seed, "peer", agreement.number(site.name), "held-out"),
    )


def make_part(agreement: Agreement, site: Site, own: OwnData) -> Part:
    """The member with these images; refused if method or model cannot work."""
    number = agreement.number(site.name)
    experiment = _experiment(agreement, site)
    method = resolve_method(experiment.method, experiment.method_settings)
    folder = state_folder(agreement, site)
    device = choose_device(experiment.device)
    preparation = preparation_of(agreement.mean, agreement.std, augmentation=agreement.augmentation, device=device)
    world = build_own_world(
        experiment, own, client=number, preparation=preparation, device=device, secret=_secret(folder)
    )
    _check_method(method, world)
    with repeatable(torch_seed(experiment.seed, "roster"), device):
        check_model(world, world.architecture_of(number))
    return Part(agreement, number, world, method, folder)


@contextmanager
def open_exchange(part: Part, site: Site, *, notice: Callable[[str], None]) -> Iterator[MemberExchange]:
    """Be ready to publish and to fetch, over HTTPS or through the agreed store, until the block ends."""
    identity = load_identity(site.keys)
    check_identity(part.agreement, identity, site.name)

    log = RefusalLog(part.folder / REFUSALS)

    def on_refused(name: str, reason: str) -> None:
        log.add(name, reason)
        notice(f"refused from {name}: {reason}")

    folder, agreement = part.folder / "exchange", part.agreement
    first_round = (latest_round(RunDirectory(part.folder).checkpoint_folder) or 0) + 1
    with closing(OutgoingLedger(part.folder / LEDGER)) as ledger, ExitStack() as opened:
        exchange: MemberExchange
        if agreement.exchange == HTTPS:
            server = SnapshotServer(
                agreement, identity, folder, listen=site.listen, ledger=ledger, proxy=site.proxy, notice=notice
            )
            opened.enter_context(server)
            exchange = HttpsExchange(
                agreement,
                identity,
                folder,
                server,
                own=part.number,
                proxy=site.proxy,
                on_refused=on_refused,
                notice=notice,
            )
        else:
            exchange = BucketExchange(
                agreement,
                identity,
                folder,
                own=part.number,
                outgoing=ledger,
                url=site.store,
                options=site.store_options,
                on_refused=on_refused,
                notice=notice,
            )
        opened.enter_context(closing(exchange))
        exchange.begin(first_round)
        yield exchange


def check_identity(agreement: Agreement, identity: Identity, name: str) -> None:
    """Refuse keys that the agreement does not know as this member's."""
    member = agreement.member(name)
    if identity.name != name:
        raise ConfigError(f"{identity.folder} holds the certificate of {identity.name}, but peer.toml says {name}")
    own = fingerprint(identity.certificate)
    if member.pin not in (None, own):
        raise ConfigError(
            f"the agreement knows {name} by {member.pin}, our certificate is {own}: "
            "send the others the new member.toml, or put the old keys back"
        )


def wait_for_readers(part: Part, exchange: MemberExchange, *, notice: Callable[[str], None]) -> list[str]:
    """After the last round, until everybody has fetched it or the agreed deadline has passed; who has not."""
    until = time.monotonic() + part.agreement.deadline_s
    said: list[str] = []
    while True:
        waiting = [name for name in exchange.readers_to_come() if name != part.agreement.members[part.number].name]
        if not waiting or time.monotonic() > until:
            return waiting
        if waiting != said:
            notice(f"our last snapshot is still to be fetched by {', '.join(waiting)}")
            said = waiting
        time.sleep(WAIT_S)


def take_part(part: Part, exchange: Exchange, *, hooks: Hooks) -> Trained:
    """All rounds of the federation that are still to come, with this exchange; survives being stopped anywhere."""
    status = Status(part.folder / STATUS)

    def on_step(step: Step) -> None:
        status.say(state=step.stage, round=step.round_index, rounds=step.rounds)
        hooks.on_step(step)

    def on_round(record: Record) -> None:
        missing = record["missing"].get(str(part.number), [])
        names = [part.agreement.members[index].name for index in missing]
        status.say(
            state="collecting",
            round=record["round"],
            rounds=part.experiment.rounds,
            missing=names,
            validation_accuracy=record["validation_accuracy"],
            round_seconds=record["timing"]["seconds"],
        )
        hooks.on_round(record)

    status.say(state="starting", federation=part.agreement.name, member=part.agreement.members[part.number].name)
    trained = _train(part, part.method, part.folder, exchange, on_step=on_step, on_round=on_round)
    status.say(state="trained", round=part.experiment.rounds, rounds=part.experiment.rounds)
    return trained


def train_alone(part: Part, *, hooks: Hooks) -> Trained:
    """The same model, data and number of rounds without anybody else."""
    return _train(part, LOCAL, part.folder / "alone", MemoryExchange(), on_step=hooks.on_step, on_round=hooks.on_round)


def _train(
    part: Part,
    method: Method,
    folder: Path,
    exchange: Exchange,
    *,
    on_step: Callable[[Step], None],
    on_round: Callable[[Record], None],
) -> Trained:
    directory = RunDirectory(folder)
    _begin(directory, part)
    roster = Roster(part.world, method.roster(part.world), directory.checkpoint_folder, here={part.number})
    with directory.locked(), closing(SerialEngine(part.world, method)) as engine:
        records = _restore(directory, roster)
        loop = Rounds(method, roster, exchange=exchange, engine=engine)
        for done in loop.run(after=records[-1]["round"] if records else 0, on_step=on_step):
            records.append(round_record(done, roster))
            directory.append_round(records[-1])
            best = best_round(records)
            save_checkpoint(
                roster,
                round_index=done.index,
                changed=set(done.learned),
                keep=set() if best is None else {best["round"]},
            )
            on_round(records[-1])
        best = best_round(records)
        if best is None:
            raise RunError(f"{folder}: the federation was over before this member took part in a round")
        load_checkpoint(roster, round_index=best["round"])
        state = roster[part.number].state
        if state is None:
            raise RunError(f"{folder}: this member never learned; was it ever drawn to take part?")
        return Trained(records, dict(best), state)


def _begin(directory: RunDirectory, part: Part) -> None:
    """Write down what this is, or check that it is still the same."""
    partition = partition_record(part.world)
    if directory.experiment_file.exists():
        directory.check_same_data(partition)
        return
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.write_json("partition.json", partition)
        write_atomically(directory.experiment_file, to_toml(part.experiment).encode())
    except OSError as error:
        raise RunError(f"cannot write to {directory.path}: {error.strerror or error}; choose another state") from error


def _restore(directory: RunDirectory, roster: Roster) -> list[Record]:
    reached = latest_round(roster.folder)
    records = directory.cut_rounds(after=reached or 0, has_gaps=True)
    if reached is not None:
        load_checkpoint(roster, round_index=reached)
    return records


def _experiment(agreement: Agreement, site: Site) -> Experiment:
    return agreement.experiment(dataset=str(site.data), device=site.device, workers=1)


def _check_method(method: Method, world: World) -> None:
    if method.common_images != "none":
        raise ConfigError(
            f"method {method.name!r} needs {method.common_images} images that all members share; between organisations "
            "choose one that needs none, such as crad"
        )
    if any(not member.clients or len(member.clients) > 1 for member in method.roster(world)):
        raise ConfigError(f"method {method.name!r} has members that are no organisation; choose another, such as crad")


def _secret(folder: Path) -> int:
    """The seed of what the others must not be able to draw again: made once, readable by the owner alone."""
    path = folder / "secret"
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        pass
    except ValueError:
        raise RunError(
            f"{path} is damaged; remove it, and counts are noised anew (which spends privacy again)"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    secret = secrets.randbits(SECRET_BITS)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(str(secret))
    return secret
