"""`crad peer`: one organisation's part in a federation, from its keys to its report."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crad.cli.options import (
    AsJson,
    Categories,
    Ignore,
    KindName,
    Label,
    Missing,
    Quiet,
    Ranges,
    Seconds,
    Text,
    TextLength,
    Vocabulary,
)
from crad.errors import ConfigError, RunError, SnapshotError, install_hint

if TYPE_CHECKING:
    from crad.network.agreement import Agreement
    from crad.site.settings import Site

app = typer.Typer(no_args_is_help=True, help="Take part in a federation across organisations.")

SiteFile = Annotated[Path, typer.Option("--site", metavar="FILE", help="Our own settings, peer.toml.")]
PEER_TOML = Path("peer.toml")
MEMBER_TOML = "member.toml"
STALE_S = 120.0  # a status older than this is said to be old


@app.command("init")
def init_command(
    name: Annotated[str, typer.Option("--name", help="Our name in the federation, such as clinic-a.")],
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where the files go.")] = Path(),
    address: Annotated[str | None, typer.Option("--address", help="Where the others reach us, host:port.")] = None,
    model: Annotated[str, typer.Option("--model", help="Our network and its width, such as resnet18@0.5.")] = "cnn6",
) -> None:
    """Make a key, a certificate, a certificate request, a commented peer.toml, and member.toml for the others.

    Example: crad peer init --name clinic-a --address clinic-a.example.org:8443 --model resnet18
    """
    _need_network()
    from crad.files import write_atomically
    from crad.network.identity import create_identity, fingerprint
    from crad.site.permission import word_about_network
    from crad.site.settings import template
    from crad.site.setup import member_entry, member_toml

    path = folder / PEER_TOML
    if path.exists():
        raise ConfigError(f"{path} is there already: edit it, or choose another --folder")
    identity = create_identity(folder / "keys", name)
    entry = member_entry(identity, address=address, architecture=model)
    own = [] if word_about_network(entry) is None else [model.partition("@")[0]]
    write_atomically(path, template(name, architectures=own).encode())
    write_atomically(folder / MEMBER_TOML, member_toml(entry).encode())
    typer.echo(f"Key and certificate in {folder / 'keys'}; key.pem never leaves this machine.")
    typer.echo(f"Fingerprint: {fingerprint(identity.certificate)}")
    for network in own:
        typer.echo(f"{path} allows {network} to be imported here; the others decide for themselves.")
    typer.echo(f"Next: edit {path} (data, listen), and send {folder / MEMBER_TOML} to whoever writes the agreement.")


@app.command("invite")
def invite_command(
    federation: Annotated[str, typer.Option("--federation", metavar="NAME", help="Name of the new federation.")],
    site: SiteFile = PEER_TOML,
    member: Annotated[Path, typer.Option("--member", metavar="FILE", help="Our own member.toml.")] = Path(MEMBER_TOML),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting all agree on, such as rounds=50.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE")] = Path("federation.toml"),
    label: Label = None,
    ignore: Ignore = None,
    categories: Categories = None,
    missing: Missing = None,
    ranges: Ranges = None,
    text: Text = None,
    vocabulary: Vocabulary = None,
    text_length: TextLength = None,
    kind: KindName = None,
    seconds: Seconds = None,
) -> None:
    """Begin an agreement from our own data: classes, what a sample is, and ourselves as first member.

    Example: crad peer invite --federation colon --set rounds=50 --set method=crad
    Example: crad peer invite --federation heart --label disease --categories cp,thal --missing chol=0
    Example: crad peer invite --federation news --label topic --text title,body
    Example: crad peer invite --federation digits --seconds 0.6; crad peer invite --federation ecg --kind series
    """
    _need_network()
    from crad.config import make_experiment
    from crad.data.agreed import ReadOptions
    from crad.data.readers.table_file import options_of
    from crad.files import write_atomically
    from crad.network.agreement import agreement_to_toml
    from crad.site.settings import read_site
    from crad.site.setup import draft_agreement, read_member_toml

    if output.exists():
        raise ConfigError(f"{output} is there already: add members with crad peer trust, or choose another --output")
    said = {"label": label, "ignore": ignore, "categories": categories, "missing": missing, "ranges": ranges}
    said |= {"text": text, "vocabulary": vocabulary, "text_length": text_length}
    columns = options_of(make_experiment({name: value for name, value in said.items() if value is not None}))
    options = ReadOptions(table=columns, kind=kind, seconds=seconds)
    pairs = _pairs(settings or [])
    agreement = draft_agreement(federation, read_site(site), read_member_toml(member), pairs, options=options)
    write_atomically(output, agreement_to_toml(agreement).encode())
    typer.echo(
        f"{output}: {len(agreement.classes)} classes ({', '.join(agreement.classes)}), "
        f"{agreement.data_schema.describe()}, {agreement.rounds} rounds of {agreement.settings['method']}"
    )
    if agreement.data is not None:
        guessed = "ranges are guesses around our own values, units are for you"
        hint = guessed if agreement.data_schema.kind == "table" else "it is what everybody's samples must be"
        typer.echo(f"Look at [data] of {output} first: {hint}.")
    if agreement.settings.get("private_training"):
        typer.echo(
            "Training will be private; this file is not: names of classes, columns and categories and guessed ranges "
            f"in {output} are as our samples have them. Agree on them as public, or change them, before you send it."
        )
    typer.echo(f"Next: crad peer trust {output} THEIR-member.toml for every other member, then send {output} to all.")


@app.command("trust")
def trust_command(
    agreement: Annotated[Path, typer.Argument(metavar="FEDERATION", help="The federation.toml to add to.")],
    members: Annotated[list[Path], typer.Argument(metavar="MEMBER...", help="member.toml files of the others.")],
    fingerprints: Annotated[
        list[str] | None,
        typer.Option("--fingerprint", help="What the member read out to you; refused if none of them matches."),
    ] = None,
) -> None:
    """Add members to an agreement, or take a member's renewed certificate. Compare fingerprints by phone.

    Example: crad peer trust federation.toml clinic-b/member.toml
    """
    _need_network()
    from crad.files import write_atomically
    from crad.network.agreement import add_member, agreement_to_toml, read_agreement, renew_member
    from crad.site.permission import word_about_network
    from crad.site.setup import check_fits, read_member_toml

    whole = read_agreement(agreement)
    for path in members:
        member = read_member_toml(path)
        if fingerprints and member.pin not in fingerprints:
            raise ConfigError(
                f"{path}: the certificate of {member.name} has the fingerprint {member.pin}, not that one"
            )
        check_fits(member, kind=whole.data_schema.kind)
        renewed = renew_member(whole, member)
        whole = add_member(whole, member) if renewed is None else renewed
        if renewed is not None:
            typer.echo(f"{member.name} is there with the same key; its certificate is the new one now:")
        typer.echo(f"{member.name}  {member.address or 'no address'}  {member.architecture}  {member.pin}")
        word = word_about_network(member)
        if word is not None:
            typer.echo(f"Warning: {word}", err=True)
    write_atomically(agreement, agreement_to_toml(whole).encode())
    typer.echo(f"{agreement}: {len(whole.members)} members, hash {whole.hash[:12]}; every member needs this very file.")


@app.command("renew")
def renew_command(site: SiteFile = PEER_TOML) -> None:
    """Make a new certificate for our old key, before the pinned one ends; the agreement's hash stays, and so the state.

    Example: crad peer renew --site clinic-a/peer.toml
    """
    _need_network()
    from crad.files import write_atomically
    from crad.network.identity import fingerprint, renew_certificate
    from crad.site.setup import member_entry, member_toml

    settings, agreement = _read(site)
    ours = agreement.member(settings.name)
    if ours.certificate is None:
        raise ConfigError(
            f"the authority of {agreement.name} issues certificates: send it {settings.keys / 'request.pem'}, and put "
            f"what it sends back into {settings.keys / 'certificate.pem'}"
        )
    identity = renew_certificate(settings.keys)
    path = site.parent / MEMBER_TOML
    entry = member_entry(identity, address=ours.address, architecture=ours.architecture)
    write_atomically(path, member_toml(entry).encode())
    typer.echo(f"Fingerprint: {fingerprint(identity.certificate)}")
    typer.echo(f"Valid until {identity.certificate.not_valid_after_utc:%Y-%m-%d}; key and agreement stay the same.")
    typer.echo(
        f"Next: send {path} to all others. Everybody, ourselves too: crad peer trust {settings.agreement} {path.name}, "
        "then join again."
    )


@app.command("doctor")
def doctor_command(site: SiteFile = PEER_TOML, as_json: AsJson = False) -> None:
    """Check everything before round 1: files, keys, data, model, disk, memory, port, every member; and say the cost.

    Example: crad peer doctor --site clinic-a/peer.toml
    """
    _need_network()
    from rich.console import Console

    from crad.cli.terminal.doctor_lines import diagnose

    findings = diagnose(site, Console(), Console(stderr=True), is_silent=as_json)
    if as_json:
        typer.echo(json.dumps(findings.to_json(), indent=1))
    problems = findings.of("problem")
    if problems:
        names = ", ".join(dict.fromkeys(finding.check for finding in problems))
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise RunError(f"{count} to fix before joining: {names}")
    if not as_json:
        warnings = len(findings.of("warning"))
        typer.echo(f"Ready to join{f', with {warnings} to think about' if warnings else ''}: crad peer join")


@app.command("join")
def join_command(site: SiteFile = PEER_TOML, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Take part until the last round; the same command again continues after a stop.

    Example: crad peer join --site clinic-a/peer.toml
    """
    _need_network()
    from rich.console import Console

    from crad.cli.terminal.progress import Display
    from crad.cli.terminal.signals import Terminated
    from crad.cli.terminal.terminal_tables import plain_table
    from crad.report.participant import committee_lines, participant_cells, participant_verdict, shortfall, words_of
    from crad.runs.directory import REPORT_FILE
    from crad.site.join import join

    settings, agreement = _read(site)
    display = Display(Console(stderr=True), is_quiet=quiet)
    try:
        with display.running(f"{settings.name} in {agreement.name}", is_partition_shown=False) as shown:
            outcome = join(agreement, settings, callback=shown)
    except (KeyboardInterrupt, Terminated):
        again = f"crad peer join --site {shlex.quote(str(site))}"
        typer.echo(f"crad: stopped; the last complete round is kept, go on with {again}", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(outcome.record, indent=1))
        return
    if not quiet:
        several = words_of(outcome.record)["several"]
        Console().print(plain_table([f"own test {several}", "accuracy %"], participant_cells(outcome.record)))
        typer.echo(participant_verdict(outcome.record).sentence)
        for line in committee_lines(outcome.record):
            typer.echo(line)
    short = shortfall(outcome.record)
    if short:
        typer.echo(short)
    typer.echo(f"Report: {outcome.folder / REPORT_FILE}")
    typer.echo(str(outcome.folder))


@app.command("verify-proof")
def verify_proof_command(
    proof: Annotated[Path, typer.Argument(metavar="FILE", help="A proof, from a member's exchange/proofs folder.")],
    as_json: AsJson = False,
) -> None:
    """Check a proof that a member signed two different snapshots for one round; needs nothing but the file.

    Example: crad peer verify-proof clinic-b-round-00012.json
    """
    _need_network()
    from dataclasses import asdict

    from crad.network.equivocation.proof import MAX_PROOF_BYTES, verify_proof

    try:
        with proof.open("rb") as file:
            proven = verify_proof(file.read(MAX_PROOF_BYTES + 1))
    except OSError as error:
        raise ConfigError(f"cannot read {proof}: {error.strerror}") from error
    except SnapshotError as error:
        raise ConfigError(f"{proof}: {error}") from error
    if as_json:
        typer.echo(json.dumps(asdict(proven), indent=1))
        return
    typer.echo(f"Proven: {proven.member} signed two different messages ({proven.kind}) for round {proven.round_index}.")
    typer.echo(f"Federation {proven.federation}, agreement {proven.agreement}")
    typer.echo(f"Key of {proven.member}: {proven.key}; compare it with the one you know.")
    for digest in proven.sha256:
        typer.echo(f"Signed: {digest}")


@app.command("status")
def status_command(site: SiteFile = PEER_TOML, as_json: AsJson = False) -> None:
    """Say how far our own part has come, from another terminal.

    Example: crad peer status
    """
    _need_network()
    from crad.site.status import read_status, status_line

    settings, agreement = _read(site)
    status = read_status(agreement, settings)
    typer.echo(json.dumps(status, indent=1) if as_json else status_line(status))


def _read(site: Path) -> tuple[Site, Agreement]:
    from crad.network.agreement import read_agreement
    from crad.site.settings import read_site

    settings = read_site(site)
    return settings, read_agreement(settings.agreement)


def _pairs(words: list[str]) -> dict[str, Any]:
    from crad.config import parse_pairs

    return {name: value for word in words for name, value in parse_pairs(word).items()}


def _need_network() -> None:
    import importlib.util

    missing = [name for name in ("cryptography", "starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"crad peer needs {', '.join(missing)}: {install_hint('net')}")
