"""federation.toml: what all members of a federation have agreed on, one file for all of them.

Its hash travels with every manifest. Where a member is reached is not part of the hash: an address may change. Nor is
the date of a pinned certificate: the key is what a member is known by, and a renewed certificate has the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

import tomli_w
from cryptography import x509
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from crad.config import (
    PUBLISHED,
    RECIPES,
    AtLeastOne,
    Experiment,
    Positive,
    TextLine,
    names_of,
    names_where,
    setting_of,
    with_current_names,
    with_stored_names,
)
from crad.data.agreed import DataSchema, ImageSchema, complete_schema, read_schema
from crad.errors import ConfigError, first_fault, printable, unknown_name
from crad.files import read_toml
from crad.network.fields import (
    Address,
    ArchitectureId,
    AuthorityPem,
    Fingerprint,
    Level,
    MemberName,
    MemberPem,
)
from crad.network.identity import fingerprint, key_fingerprint, name_in, read_certificate

# What of an experiment all members must do alike; the rest is each one's own or stands elsewhere in the agreement.
SETTINGS = names_where(lambda setting: setting.sharing == "agreed")
MIN_SIDE = 8  # pixels: three halvings must leave one
MAX_CLASSES = 10_000
MAX_MEMBERS = 1000
MAX_LINES = 20  # of differences; more help nobody
MAX_STRANGE = 1000  # entries of another agreement beyond as many as ours has
MAX_SHOWN = 200  # characters of a name or a value in a comparison
MAX_DEPTH = 8  # of tables in tables; ours have four
IMAGE_KEYS = ("image_shape", "mean", "std", "augmentation")
NOTHING = "nothing"
HTTPS = "https"
HEADER = """\
# The agreement of this federation: the same file for every member. Its hash travels with everything that is sent,
# and a member with another hash is refused. Addresses are not part of the hash: they may change. Nor is a certificate
# that is renewed for the same key.
"""


def _complete_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return all settings in full, so that the hash does not depend on what a default says later."""
    given = with_current_names(given)
    for key in given:
        if key not in SETTINGS:
            raise unknown_name("setting", key, SETTINGS)
    experiment = Experiment(**given, clients=MAX_MEMBERS)  # how many there are is checked with the members
    names = set(SETTINGS) - set(names_of("recipe"))
    settings = experiment.model_dump(mode="json", include=names, exclude_none=True)
    settings = {name: value for name, value in settings.items() if value != setting_of(name).before}
    # A recipe stands there where it is not the published one, so that older agreements keep their hash.
    is_own = experiment.recipe != PUBLISHED or experiment.method in RECIPES
    recipe = {name: value for name, value in asdict(experiment.recipe).items() if _is_said(name, value, experiment)}
    return with_stored_names({**settings, **(recipe if is_own else {})})


def _is_said(name: str, value: object, experiment: Experiment) -> bool:
    """Tell whether an agreement says this part of a recipe: not where agreements of before it came say nothing."""
    usual = getattr(RECIPES.get(experiment.method, PUBLISHED), name)
    is_as_before = setting_of(name).is_unsaid_before and value == usual == setting_of(name).before
    return value is not None and not is_as_before


class Member(BaseModel):
    """One organisation of the federation: its name, where it listens, its network, how it is recognised."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: MemberName
    address: Address | None = None  # host:port
    architecture: ArchitectureId
    certificate: MemberPem | None = None
    fingerprint: Fingerprint | None = None

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if self.certificate is None:
            return self
        certificate = read_certificate(self.certificate.encode())
        if name_in(certificate) != self.name:
            raise ValueError(f"member {self.name} has the certificate of {name_in(certificate)}")
        if self.fingerprint not in (None, fingerprint(certificate)):
            raise ValueError(f"member {self.name}: the certificate has another fingerprint, {fingerprint(certificate)}")
        return self

    @property
    def pin(self) -> str | None:
        """Return the fingerprint that its certificate must have; None where an authority alone vouches for it."""
        if self.certificate is None:
            return self.fingerprint
        return fingerprint(read_certificate(self.certificate.encode()))

    @property
    def recognised_by(self) -> dict[str, str | None]:
        """Return what all agree on: the key of a certificate that is there, else the fingerprint, if there is one."""
        if self.certificate is None:
            return {"fingerprint": self.fingerprint}
        return {"key": key_fingerprint(read_certificate(self.certificate.encode()))}


class Agreement(BaseModel):
    """What all members have agreed on. A member's number is its place in the list."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: TextLine
    classes: Annotated[tuple[TextLine, ...], Field(min_length=2, max_length=MAX_CLASSES)]
    data: Annotated[dict[str, Any], AfterValidator(complete_schema)] | None = None  # kind and schema; None: images
    image_shape: tuple[int, int, int] | None = None  # height, width, channels as a model sees them
    mean: tuple[Level, ...] | None = None  # per channel, of pixel values in 0..255
    std: tuple[Annotated[Level, Field(gt=0)], ...] | None = None
    augmentation: Literal["none", "crop-flip", "flips"] = "none"
    seed: Annotated[int, Field(ge=0)] = 1024
    deadline_s: Positive = 900.0  # of a round; a bad line needs minutes for a large snapshot
    quorum: Annotated[int, Field(ge=0)] = 1  # others without whom a round does not go on
    give_up_s: Positive = 86_400.0  # how long a round waits for its quorum
    max_snapshot_bytes: AtLeastOne = 512 * 2**20
    exchange: TextLine = HTTPS  # or the address of a bucket that all can reach, as fsspec writes it
    authority: AuthorityPem | None = None
    committee: bool = False  # whether everybody's newest snapshot may be kept and asked after the last round
    settings: Annotated[dict[str, Any], AfterValidator(_complete_settings)] = Field({}, validate_default=True)
    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_MEMBERS)]

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        _check_data(self)
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: a class is named twice")
        names = [member.name for member in self.members]
        pins = [member.pin for member in self.members if member.pin is not None]
        for what, values in (("name", names), ("certificate", pins)):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"members: two of them have the {what} {twice}")
        if self.settings.get("active", 0) > len(names):
            raise ValueError(f"settings.active is {self.settings['active']}, but there are only {len(names)} members")
        if self.quorum > max(1, len(names) - 1):
            raise ValueError(f"quorum is {self.quorum}, but a member has only {len(names) - 1} others")
        if self.exchange != HTTPS and "://" not in self.exchange:
            raise ValueError(f"exchange = {self.exchange!r}: expected https or an address such as s3://bucket/folder")
        for member in self.members:
            if member.certificate is None and self.authority is None:
                raise ValueError(f"member {member.name} has no certificate, and there is no authority to vouch for it")
            if member.address is None and self.exchange == HTTPS:
                raise ValueError(f"member {member.name} has no address, such as peer.example.org:8443")
        return self

    @property
    def data_schema(self) -> DataSchema:
        """Return what all have agreed on about their samples."""
        if self.data is not None:
            return read_schema(self.data)
        assert self.image_shape is not None, "checked"
        return ImageSchema(self.image_shape, self.mean or (), self.std or (), self.augmentation)

    @property
    def rounds(self) -> int:
        """Return how many rounds are agreed on."""
        return int(self.settings["rounds"])

    def member(self, name: str) -> Member:
        """Return the member of this name; an unknown one is answered with the known ones."""
        return self.members[self.number(name)]

    def number(self, name: str) -> int:
        """Return the member's number, its place in the list."""
        names = [member.name for member in self.members]
        if name not in names:
            raise unknown_name("member", name, names)
        return names.index(name)

    def experiment(self, **own: Any) -> Experiment:  # noqa: ANN401  # settings of one's own, checked by Experiment
        """Return the agreed settings and a member's own (data set, device) as an experiment; members are clients."""
        models = tuple(_with_width(member.architecture) for member in self.members)
        agreed = {**self.settings, "seed": self.seed, "clients": len(self.members), "models": models, "proxy_size": 0}
        return Experiment(**{**agreed, "augment": self.data_schema.augmentation != "none", **own})

    def canonical(self) -> dict[str, Any]:
        """Return what the hash is taken of: no addresses, keys and certificates as fingerprints, members by name."""
        table = _said(self.model_dump(mode="json", exclude={"members", "authority"}))
        authority = self.authority and fingerprint(x509.load_pem_x509_certificate(self.authority.encode()))
        members = {
            member.name: {"number": number, "architecture": member.architecture, **member.recognised_by}
            for number, member in enumerate(self.members)
        }
        return {**table, "authority": authority, "members": members}

    @property
    def text(self) -> bytes:
        """Return the canonical form as JSON, the same bytes for everybody who has agreed on the same."""
        return json.dumps(self.canonical(), sort_keys=True, separators=(",", ":")).encode()

    @cached_property  # every question of another member is answered with it, and a schema may be long
    def hash(self) -> str:
        """Return the sha256 of the canonical form: equal for members that have agreed on the same."""
        return hashlib.sha256(self.text).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, perhaps with other values; its hash is its own."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("hash", None)
        return copied


def _said(table: dict[str, Any]) -> dict[str, Any]:
    """Return an agreement's values without what agreements of before it came do not say, where it means the same.

    What is for images alone stands in agreements about images alone.
    """
    is_said = {name: (name, value) != ("committee", False) for name, value in table.items()}
    of_images = table.get("data") is None
    is_said |= {"data": not of_images, **dict.fromkeys(IMAGE_KEYS, of_images)}
    return {name: value for name, value in table.items() if is_said[name]}


def _with_width(architecture: str) -> str:
    """Return an architecture with its width: every member says its own, an experiment's common one does not count."""
    return architecture if "@" in architecture else f"{architecture}@1"


def make_agreement(table: Mapping[str, Any]) -> Agreement:
    """Return an agreement from plain values; refused with one clear line."""
    try:
        # Through JSON: there a list is a list, and nothing but plain values passes.
        return Agreement.model_validate_json(json.dumps(table, default=_refuse_value))
    except (TypeError, ValueError) as error:
        raise ConfigError(_refusal(error) if isinstance(error, ValidationError) else printable(error)) from error


def _refuse_value(value: object) -> NoReturn:
    raise TypeError(f"{value} is a {type(value).__name__}, and no value of an agreement is one: put a name into quotes")


def read_agreement(path: Path) -> Agreement:
    """Return the agreement in a federation.toml; refused with one line that names the file."""
    table = read_toml(path, what="the agreement")
    try:
        return make_agreement(table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def agreement_to_toml(agreement: Agreement) -> str:
    """Return the agreement as a federation.toml, with every setting in full."""
    table = _said(agreement.model_dump(mode="json", exclude_none=True))
    return HEADER + "\n" + tomli_w.dumps(table, multiline_strings=True)


def add_member(agreement: Agreement, member: Member) -> Agreement:
    """Return the agreement with one more member at its end: a new agreement, with a new hash."""
    members = [*agreement.members, member]
    table = agreement.model_dump(mode="json", exclude_none=True, exclude={"members"})
    return make_agreement({**table, "members": [one.model_dump(mode="json", exclude_none=True) for one in members]})


def renew_member(agreement: Agreement, member: Member) -> Agreement | None:
    """Return the same agreement with a newer certificate of a member, if it is there with the same key."""
    known = next((one for one in agreement.members if one.name == member.name), None)
    if known is None or known.certificate is None or known.recognised_by != member.recognised_by:
        return None
    renewed = known.model_copy(update={"certificate": member.certificate, "fingerprint": member.fingerprint})
    members = tuple(renewed if one is known else one for one in agreement.members)
    return agreement.model_copy(update={"members": members})


def differences(mine: Agreement, theirs: Agreement | Mapping[str, object]) -> list[str]:
    """Return what differs between two agreements, a readable line each; `theirs` may be any JSON of a peer."""
    here = _flat(mine.canonical(), room=FlattenLimit())
    # Somebody else's may be anything: of very many entries, and of long names, the first are enough to differ.
    room = FlattenLimit(entries=len(here) + MAX_STRANGE)
    there = _flat(theirs.canonical() if isinstance(theirs, Agreement) else theirs, room=room)
    lines = [
        f"{printable(key)}: {printable(here.get(key, NOTHING))} here, {printable(there.get(key, NOTHING))} there"
        for key in [*here, *(key for key in there if key not in here)]
        if here.get(key) != there.get(key)
    ]
    rest = len(lines) - MAX_LINES
    return lines if rest <= 0 else [*lines[:MAX_LINES], f"and {rest} more"]


def _check_data(agreement: Agreement) -> None:
    """Refuse what was not agreed on for the kind of data that this is."""
    if agreement.data is None:
        _check_images(agreement)
    else:
        said = next((key for key in IMAGE_KEYS if getattr(agreement, key) not in (None, "none")), None)
        if said is not None:
            raise ValueError(f"{said} is for images, and [data] says that this is of kind {agreement.data['kind']!r}")
    agreement.data_schema.check_settings(agreement.settings)


def _check_images(agreement: Agreement) -> None:
    lacking = next((key for key in IMAGE_KEYS if getattr(agreement, key) is None), None)
    if lacking is not None or agreement.image_shape is None:
        raise ValueError(f"{lacking}: field required, of images; data of another kind has [data] with its schema")
    *sides, channels = agreement.image_shape
    if min(sides) < MIN_SIDE or channels not in (1, 3):
        raise ValueError(
            f"image_shape = {list(agreement.image_shape)}: expected height, width (at least {MIN_SIDE}) and 1 or 3 "
            "channels"
        )
    for key in ("mean", "std"):
        if len(getattr(agreement, key)) != channels:
            raise ValueError(f"{key} has {len(getattr(agreement, key))} values, but images have {channels} channels")


def _refusal(error: ValidationError) -> str:
    """Return the first fault; a key that nobody knows is answered with the known ones."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if fault["loc"][:1] == ("data",) and fault["type"] == "value_error":
        return f"data: {fault['msg'].removeprefix('Value error, ')}"  # which names the place itself; the rest is long
    if fault["type"] != "extra_forbidden":
        return first_fault(error)
    model = Agreement if len(fault["loc"]) == 1 else Member
    return str(unknown_name("key", fault["loc"][-1], model.model_fields))


@dataclass
class FlattenLimit:
    """How many entries may still be looked at; None: all."""

    entries: int | None = None

    def take(self) -> bool:
        """Take the place of one entry, if there is one."""
        if self.entries is not None:
            self.entries -= 1
        return self.entries is None or self.entries >= 0


def _flat(value: object, key: str = "", *, room: FlattenLimit, depth: int = 0) -> dict[str, str]:
    """Return nested tables as one, `members.clinic-a.number`, and what stands there, as Python writes it."""
    parts: list[tuple[object, object]] = []
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        parts = list(value.items())
    elif depth < MAX_DEPTH and isinstance(value, list | tuple):
        parts = list(enumerate(value))
    if not parts:
        if not room.take():
            return {}
        return {key: repr(value)[:MAX_SHOWN] if depth < MAX_DEPTH else "something deep"}
    flat: dict[str, str] = {}
    for name, part in parts:
        if room.entries is not None and room.entries <= 0:
            break
        short = str(name)[:MAX_SHOWN]
        flat |= _flat(part, f"{key}.{short}" if key else short, room=room, depth=depth + 1)
    return flat
