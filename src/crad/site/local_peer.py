"""A member ready to take part: own data, agreed settings, checked without the others."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from crad.api import check_model
from crad.config import Experiment
from crad.data.agreed.own_data import OwnData, divide_by_records
from crad.device import choose_device
from crad.errors import ConfigError, RunError
from crad.federation.context import RunContext, build_site_context
from crad.federation.method import Method
from crad.files import write_once
from crad.methods import check_recipe, resolve_method
from crad.models import WEIGHTS
from crad.models.families import FITTED
from crad.models.networks.trees import IN_TREES
from crad.network.agreement import Agreement
from crad.privacy.accountant import check_delta, check_noise
from crad.randomness import repeatable, stream
from crad.runs.directory import MEMBER_FILE
from crad.runs.records import records_fingerprint
from crad.site.permission import (
    allowance_of,
    check_method_allowed,
    check_own_architecture,
    check_store_kind,
    left_out_of,
)
from crad.site.privacy_account import ACCOUNT, PrivacyAccount, run_id
from crad.site.settings import Site
from crad.site.state_folder import state_folder

SECRET_BITS = 128
UNCOVERED = "these are published as they are, and no account covers the records that they were trained on before"
DIVISION = "division-secret"  # what decides which part of the data a record is in, where training is private


@dataclass(frozen=True)
class LocalPeer:
    """A member ready to take part: its number, its context and its method."""

    agreement: Agreement
    number: int
    context: RunContext
    method: Method
    folder: Path
    left_out: dict[int, str] = field(
        default_factory=dict
    )  # members that cannot teach us, and why; in no committee either
    word_about_weights: str | None = None  # what our own file of weights gave, where there is one
    account: PrivacyAccount | None = None  # what is spent on our data, where training is private

    @property
    def experiment(self) -> Experiment:
        """Return the agreed settings with the own data and device."""
        return self.context.experiment

    @property
    def travels_along(self) -> str:
        """Return what of our own data every snapshot has in it beside trained weights; empty where it is nothing."""
        if self.context.architecture_of(self.number).name in FITTED:
            return IN_TREES
        return self.agreement.data_schema.travels_along(self.agreement.settings)

    @property
    def named_left_out(self) -> dict[str, str]:
        """Return the members that cannot teach us, by name, and why."""
        return {self.agreement.members[number].name: reason for number, reason in self.left_out.items()}


def prepare_local_peer(agreement: Agreement, site: Site) -> LocalPeer:
    """Read the own data and check everything that can be checked without the others."""
    return make_local_peer(agreement, site, read_data(agreement, site))


def read_data(agreement: Agreement, site: Site) -> OwnData:
    """Return the own samples, in the agreed classes and form."""
    experiment = _experiment(agreement, site)
    own = agreement.data_schema.load(
        site.own_file,
        classes=agreement.classes,
        held_out=experiment.held_out,
        rng=stream(agreement.seed, "peer", agreement.number(site.name), "held-out"),
    )
    if experiment.private_training is None:
        return own
    # One secret for all agreements: a record that is for validation in one of them is so in all.
    return divide_by_records(own, held_out=experiment.held_out, secret=_secret(site.state, DIVISION))


def make_local_peer(agreement: Agreement, site: Site, own: OwnData) -> LocalPeer:
    """Return the member with these samples; refused if method or model cannot work, or our own file forbids them."""
    number = agreement.number(site.name)
    check_store_kind(agreement, site)
    check_method_allowed(agreement, site)
    check_own_architecture(agreement, site)
    experiment = _experiment(agreement, site)
    method = resolve_method(experiment.method, experiment.method_settings)
    check_recipe(experiment, method)
    folder = state_folder(agreement, site)
    device = choose_device(experiment.device)
    context = build_site_context(
        experiment,
        own,
        client=number,
        preprocessor=agreement.data_schema.preprocessor(device),
        device=device,
        secret=_secret(folder) if experiment.private_training is None else _secret_of_data(folder, site, own),
        allowance=allowance_of(site),
    )
    _check_method(method, context)
    with repeatable(experiment.seed, "roster", device=device):
        word = check_model(context, context.architecture_of(number))
    if word is not None and context.privacy is not None:
        word += f"; {UNCOVERED}"
    account = _account(agreement, site, context)
    return LocalPeer(agreement, number, context, method, folder, left_out_of(agreement, site), word, account)


def _account(agreement: Agreement, site: Site, context: RunContext) -> PrivacyAccount | None:
    if context.privacy is None:
        if site.budget is not None:
            raise ConfigError(
                f"budget = {site.budget:g} in peer.toml, but this agreement's training is not private: nothing it "
                "publishes is within any budget; agree on private_training, or take the line out to join all the same"
            )
        return None
    check_noise(context.experiment)
    check_delta(context.privacy.delta, len(context.data.dataset.train_labels), whose="we hold")
    assert context.secret is not None, "a member has one"
    return PrivacyAccount(
        site.state / ACCOUNT,
        data=records_fingerprint(context.data.dataset),
        source=str(site.data.resolve()),
        agreement=agreement.hash,
        run=run_id(context.secret),
        held_out=context.experiment.held_out,
        plan=context.privacy,
        budget=site.budget,
        division=run_id(_secret(site.state, DIVISION)),
    )


def _experiment(agreement: Agreement, site: Site) -> Experiment:
    experiment = agreement.experiment(dataset=str(site.data), device=site.device, workers=1)
    if site.weights is None:
        return experiment
    number, models = agreement.number(site.name), list(experiment.models)
    models[number] += f"{WEIGHTS}{site.weights.resolve()}"  # ours alone: nobody is told, and nobody's file is read
    return experiment.model_copy(update={"models": tuple(models)})


def _check_method(method: Method, context: RunContext) -> None:
    if method.common_images != "none":
        raise ConfigError(
            f"method {method.name!r} needs {method.common_images} samples that all members share; between "
            "organisations choose one that needs none, such as crad"
        )
    if any(not member.clients or len(member.clients) > 1 for member in method.roster(context)):
        raise ConfigError(f"method {method.name!r} has members that are no organisation; choose another, such as crad")


def _secret_of_data(folder: Path, site: Site, own: OwnData) -> int:
    """Return a secret that is another one as soon as a record, or the part that it is in, is.

    The same noise on changed data would give the change away, as where a part of the state was deleted to begin again.
    """
    words = f"{_secret(folder)} {_secret(site.state, DIVISION)} {records_fingerprint(own.dataset)}"
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[: SECRET_BITS // 8], "big")


def _secret(folder: Path, name: str = MEMBER_FILE) -> int:
    """Return the seed of what the others must not draw again: made once, readable by the owner alone."""
    path = folder / name
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        pass
    except ValueError:
        raise RunError(
            f"{path} is damaged; remove it, and counts are noised once more (which spends privacy again)"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another process of ours, for another agreement, was first
        # Whole or not at all, or it could not be read again.
        write_once(path, str(secrets.randbits(SECRET_BITS)).encode(), permissions=0o600)
    return int(path.read_text(encoding="ascii"))
