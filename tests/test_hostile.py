"""Hostile members against three honest processes, over real TLS and through a shared folder: the promise holds.

Whatever a minority does, every honest member takes part in every round, ends by itself with code 0 and in time, stays
within its memory and descriptors, writes nowhere but where it should, and says by name what it found. Each run has
three honest members and one or two hostile ones of four or five, with behaviours from `hostile.py`:

| row | what was broken once | over TLS | through a bucket |
|---|---|---|---|
| 1 | a claim of the last round ends everybody's training | claims, both show | claims, both show |
| 2 | one byte a second stops everybody | drips early, drips late | (a file has no speed) |
| 3 | an outsider's silent sockets shut members out | floods | (nobody listens) |
| 4 | a name in a partner's file is imported | names | names |
| 5 | a thousand connections of a member | floods | (nobody listens) |
| 6 | who is away is waited for in every round | absent, unsteady | unsteady |
| 7 | labels shifted by one | absent | (the same messages) |
| 8 | links planted in a shared folder | (no folder) | plants |
| 9 | what is wrong with a message, a signature, a word about others | two-faced, slander, garbage | the same |
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from crad.cli import main
from tests.hostile import HOSTILE, LEARNS_WRONG, NEVER
from tests.hostile_trial import HONEST, Trial

# Who does harm together, over TLS and through a bucket.
OVER_TLS = {
    "claims": ("claims the last round", "claims the last round and shows it"),
    "both show": ("claims the last round and shows it", "claims the last round and shows it"),
    "drips early": ("drips in the handshake", "drips in the headers"),
    "drips late": ("drips in a manifest", "drips in a body"),
    "floods": ("holds silent sockets", "holds a thousand connections"),
    "names": ("names a module that kills", "names a package that is not there"),
    "unsteady": ("comes and goes", "publishes late"),
    "two-faced": ("signs two", "overflows"),
    "slander": ("slanders", "announces too much"),
    "garbage": ("sends garbage", "speaks no HTTP"),
    "absent": (LEARNS_WRONG, NEVER),
}
OVER_BUCKET = {
    "claims": ("claims the last round", "claims the last round and shows it"),
    "both show": ("claims the last round and shows it", "claims the last round and shows it"),
    "names": ("names a module that kills", "names a package that is not there"),
    "unsteady": ("comes and goes", "publishes late"),
    "plants": ("plants links", "plants pipes"),
    "two-faced": ("signs two", "overflows"),
    "slander": ("slanders",),
    "garbage": ("sends garbage", "announces too much"),
}
PATIENT_S, SHORT_S = 10.0, 3.0  # deadlines: where nobody need be waited for, and where somebody is
WAITED_FOR = {"drips early", "drips late", "floods", "unsteady", "garbage", "absent", "plants"}
ROUNDS = {"plants": 2, "absent": 4, "two-faced": 4}  # who cannot publish tries for a deadline; meaning is learned
DESCRIPTORS, FLOODED_DESCRIPTORS, MEMORY_KB = 60, 200, 500_000  # 26 and 330,000 in a quiet run

# What every honest member says of it, in a line with its name, ...
SAID = {
    "claims the last round": "goes on without {name}: (its rounds begin with 3, it is at 3|it is past it)",
    "claims the last round and shows it": "goes on without {name}: (its rounds begin with 3, it is at 3|it is past it)",
    "drips in the handshake": "goes on without {name}: it (did|does) not answer",
    "drips in the headers": "goes on without {name}: it (has not published in time|did not answer|does not answer)",
    "drips in a manifest": "goes on without {name}: it (has not published in time|did not answer|does not answer)",
    "drips in a body": "goes on without {name}: its snapshot has not come in full",
    "holds silent sockets": r"127\.0\.0\.6[46] (holds 16 connections without a word: dropped|connects too often)",
    "holds a thousand connections": "{name} opens more than 8 connections: its oldest idle one was closed",
    "names a module that kills": "{name} is left out as a teacher: its network ctypes:string_at is not built in",
    "names a package that is not there": "{name} is left out as a teacher: its network nowhere:build is not built in",
    NEVER: "{name} counts as away",
    "comes and goes": "round 2 goes on without {name}: (it closes the connection|nothing valid of it came in time)",
    "publishes late": "{name} counts as away",
    LEARNS_WRONG: "{name}: its class '.*' behaves like our class '.*'; perhaps its labels are shifted",
    "plants links": "goes on without {name}: .*/{name}/round-0000[12].* is a link, and none is followed here",
    "plants pipes": "goes on without {name}: .*/{name}/round-0000[12]/.* is no file",
    "overflows": "round 1 learned nothing from {name}: it gives non-finite predictions; ask {name} to look",
    "signs two": "{name} signed two different messages for round [123]: it is left out from now on; the proof is ",
    "slanders": (
        "({name} shows a forgery as clinic-[012]'s snapshot of round [123]: "
        "|what {name} says of what it received makes no sense)"
    ),
    "sends garbage": "refused from {name}: ",
    "speaks no HTTP": "(goes on without|refused from) {name}: ",
    "announces too much": "refused from {name}: {name} announces 1099511627776 bytes, the agreement allows 1048576",
}
# ... and where participant.json names it; a slanderer's own messages are as good as any.
TOLD = {
    **dict.fromkeys(HOSTILE, "missing"),
    **dict.fromkeys(("names a module that kills", "names a package that is not there"), "left_out"),
    **dict.fromkeys(("overflows", "sends garbage", "announces too much"), "refused"),
    LEARNS_WRONG: "confused",
    "signs two": "proven",
    "slanders": None,
}
# Who has no say in anybody's model, also where something of it came.
TAUGHT_NOTHING = set(HOSTILE) - {
    "claims the last round and shows it",
    "comes and goes",
    "slanders",
    "signs two",
    LEARNS_WRONG,
}
RUNS = [("https", name) for name in OVER_TLS] + [("bucket", name) for name in OVER_BUCKET]


@pytest.mark.parametrize(("way", "run"), RUNS, ids=lambda word: word.replace(" ", "-"))
def test_the_honest_take_part_in_every_round_and_say_what_was_done(way, run, tmp_path):
    trial = Trial(
        tmp_path,
        (OVER_TLS if way == "https" else OVER_BUCKET)[run],
        exchange="https" if way == "https" else f"file://{tmp_path}/bucket",
        rounds=ROUNDS.get(run, 3),
        deadline_s=SHORT_S if run in WAITED_FOR else PATIENT_S,
    )
    try:
        trial.run()
    finally:
        trial.end()
    for number in HONEST:
        check_took_part(trial, number)
        check_bounded(trial, number)
        for hostile, name in trial.hostile.items():
            check_named(trial, number, f"clinic-{hostile}", name)
    assert trial.written_outside == []
    assert trial.strange_in_store() == []
    if run == "two-faced":
        check_proofs(trial)
    if run == "floods":
        assert trial.sockets_tried("127.0.0.64") >= 64 * len(HONEST)
        assert trial.sockets_tried("127.0.0.66") >= 1000 * len(HONEST)
        assert trial.sockets_tried("127.0.0.1") >= 1000, "with a certificate; each takes milliseconds"


def check_took_part(trial: Trial, number: int) -> None:
    """It ended well, in time, after all rounds, and learned from every other honest member."""
    outcome, log = trial.outcome(number), trial.log(number)
    assert trial.codes[number] == 0, log
    assert "Traceback" not in log
    assert [record["round"] for record in trial.records(number)] == [*range(1, trial.rounds + 1)], log
    assert outcome["rounds_taken_part"] == outcome["rounds_agreed"] == trial.rounds
    assert trial.took_s < trial.longest_s
    for other in set(HONEST) - {number} - trial.silenced:
        name = f"clinic-{other}"
        assert name in {row["member"] for row in outcome["trusted"]}, log
        assert all(name not in outcome[key] for key in ("refused", "left_out", "proven", "confused")), log
        if trial.deadline_s == PATIENT_S:
            assert name not in outcome["missing"], log


def check_bounded(trial: Trial, number: int) -> None:
    """It had no more open and in memory than anybody may make it have."""
    used = trial.used[number]
    is_flooded = "holds silent sockets" in trial.hostile.values()
    assert 0 < used.descriptors < (FLOODED_DESCRIPTORS if is_flooded else DESCRIPTORS)
    assert 0 < used.memory_kb < MEMORY_KB


def check_named(trial: Trial, number: int, member: str, name: str) -> None:
    """What a hostile member did is in the log and in participant.json, by its name."""
    log, outcome = trial.log(number), trial.outcome(number)
    assert re.search(SAID[name].format(name=member), log), (name, log)
    place = TOLD[name]
    if place == "confused":
        assert {entry["member"] for entry in outcome["confused"]} == {member}
    elif place is not None:
        assert member in outcome[place], (name, outcome)
    if name in TAUGHT_NOTHING:
        assert [row["shares"] for row in outcome["trusted"] if row["member"] == member and sum(row["shares"])] == []


def check_proofs(trial: Trial) -> None:
    """Everybody has a proof that stands by itself, and that a changed byte spoils."""
    (member,) = (f"clinic-{number}" for number, name in trial.hostile.items() if name == "signs two")
    for number in HONEST:
        (proof,) = (trial.clinics.state(number) / "exchange" / "proofs").glob("*.json")
        code, said = verify(proof)
        assert code == 0
        assert said.startswith(f"Proven: {member} signed two different messages (snapshot) for round ")
        raw = proof.read_bytes()
        # Of the agreement and of both envelopes what was signed, by whom and how: dates of a certificate may change.
        places = [
            found.end() + 5
            for found in re.finditer(rb"(manifest|signature|federation|member|rounds|what)[^0-9a-zA-Z]+", raw)
        ]
        assert len(places) >= 9
        for place in places:
            changed = proof.parent.parent / "changed.json"
            changed.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
            assert verify(changed)[0] == 2, f"byte {place} does not count: {raw[place - 20 : place + 20]!r}"


def verify(proof: Path) -> tuple[int, str]:
    """What `crad peer verify-proof` answers: its code, and the first line."""
    said = io.StringIO()
    words = patch.object(sys, "argv", ["crad", "peer", "verify-proof", str(proof)])
    with words, redirect_stdout(said), redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), said.getvalue().partition("\n")[0]


def test_every_behaviour_is_tried_wherever_it_can_do_harm():
    """A new one must be given a place above, over both exchanges unless there is nothing to do, and its words."""
    over_tls = {name for names in OVER_TLS.values() for name in names}
    over_bucket = {name for names in OVER_BUCKET.values() for name in names}
    assert over_tls == {name for name, one in HOSTILE.items() if one.https or name in (NEVER, LEARNS_WRONG)}
    assert over_bucket == {name for name, one in HOSTILE.items() if one.bucket}
    assert set(SAID) == set(TOLD) == set(HOSTILE)
    assert {one.row for one in HOSTILE.values()} == set(range(1, 10))
