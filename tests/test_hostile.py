"""Hostile members against three honest processes, over real TLS and through a shared folder: the promise holds.

Whatever a minority does, every honest member takes part in every round, ends by itself with code 0 and in time, stays
within its memory and descriptors, writes nowhere but where it should, and says by name what it found. Each run has
three honest members and hostile ones with behaviours from `hostile.py`: two of five that act together, and one of four
that acts alone. To save time one does most things one after the other, in rounds of their own:

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
import itertools
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from crad.cli import main
from tests.hostile import HOSTILE, IN_TURNS, LEARNS_WRONG, NEVER
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
# What one does alone. Here one thing after the other, with so many rounds for each; who signed two is left out.
IN_TURNS_OVER_TLS = {
    "claims the last round": 1,
    "claims the last round and shows it": 1,
    "comes and goes": 2,
    "drips in the handshake": 1,
    "drips in the headers": 2,  # a handshake of the round before may last through the first
    "drips in a manifest": 1,
    "drips in a body": 1,
    "publishes late": 1,
    "overflows": 1,
    "slanders": 3,
    "announces too much": 2,
    "sends garbage": 1,
    "speaks no HTTP": 1,
    "signs two": 3,
}
NOT_IN_A_BUCKET = {name for name, one in HOSTILE.items() if one.bucket is None}
IN_TURNS_OVER_BUCKET = {name: count for name, count in IN_TURNS_OVER_TLS.items() if name not in NOT_IN_A_BUCKET}
# Here a run of its own, over which exchange and of how many rounds.
ALONE = {
    "names a module that kills": ("https", 1),
    "names a package that is not there": ("bucket", 1),
    LEARNS_WRONG: ("https", 4),
    "plants links": ("bucket", 2),
    "plants pipes": ("bucket", 2),
}
AT_ONCE = ("holds silent sockets", "holds a thousand connections", NEVER)  # by one who serves nobody: it never comes
PATIENT_S, SHORT_S, TURN_S = 10.0, 3.0, 2.0  # deadlines: where nobody need be waited for, where somebody is, in turns
WAITED_FOR = {"drips early", "drips late", "floods", "unsteady", "garbage", "absent", "plants"}
ROUNDS = {"plants": 2, "absent": 4, "two-faced": 4}  # who cannot publish tries for a deadline; meaning is learned
DESCRIPTORS, FLOODED_DESCRIPTORS, MEMORY_KB = 60, 200, 500_000  # 26 and 330,000 in a quiet run

PAST = "(its rounds begin with {last}, it is at {last}|it is past it)"
# What every honest member says of it, in a line with its name, ...
SAID = {
    "claims the last round": f"goes on without {{name}}: {PAST}",
    "claims the last round and shows it": f"goes on without {{name}}: {PAST}",
    "drips in the handshake": "goes on without {name}: it (did|does) not answer",
    "drips in the headers": "goes on without {name}: it (has not published in time|did not answer|does not answer)",
    "drips in a manifest": "goes on without {name}: it (has not published in time|did not answer|does not answer)",
    "drips in a body": "goes on without {name}: its snapshot has not come in full",
    "holds silent sockets": r"127\.0\.0\.6[46] (holds 16 connections without a word: dropped|connects too often)",
    "holds a thousand connections": "{name} opens more than 8 connections: its oldest idle one was closed",
    "names a module that kills": "{name} is left out as a teacher: its network ctypes:string_at is not built in",
    "names a package that is not there": "{name} is left out as a teacher: its network nowhere:build is not built in",
    NEVER: "{name} counts as away",
    "comes and goes": "round {even} goes on without {name}: (it closes the connection|nothing valid of it came)",
    "publishes late": "{name} counts as away",
    LEARNS_WRONG: "{name}: its class '.*' behaves like our class '.*'; perhaps its labels are shifted",
    "plants links": "goes on without {name}: .*/{name}/round-0000[12].* is a link, and none is followed here",
    "plants pipes": "goes on without {name}: .*/{name}/round-0000[12]/.* is no file",
    "overflows": "round {first} learned nothing from {name}: it gives non-finite predictions; ask {name} to look",
    "signs two": "{name} signed two different messages for round ({rounds}): it is left out from now on; the proof is ",
    "slanders": (
        "({name} shows a forgery as clinic-[012]'s snapshot of round ({rounds}): "
        "|what {name} says of what it received makes no sense)"
    ),
    "sends garbage": "refused from {name}: ",
    "speaks no HTTP": "(goes on without|refused from) {name}: ",
    "announces too much": "refused from {name}: {name} announces 1099511627776 bytes, the agreement allows 1048576",
}
# (in turns its rounds are too few to count as away, and too short for a time-out)
SAID_IN_TURN = {
    "comes and goes": "goes on without {name}: ",
    "publishes late": "goes on without {name}: (it has not published|nothing valid of it came) in time",
    "drips in the handshake": SAID["drips in the headers"],
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
        exchange=exchange_of(way, tmp_path),
        rounds=ROUNDS.get(run, 3),
        deadline_s=SHORT_S if run in WAITED_FOR else PATIENT_S,
    )
    run_and_check(trial)
    if run == "two-faced":
        check_proofs(trial, *(f"clinic-{number}" for number, name in trial.hostile.items() if name == "signs two"))
    if run == "floods":
        check_floods(trial)


@pytest.mark.parametrize(("way", "turns"), [("https", IN_TURNS_OVER_TLS), ("bucket", IN_TURNS_OVER_BUCKET)])
def test_one_alone_does_everything_in_turns_and_the_honest_take_part_in_every_round(way, turns, tmp_path):
    ends = [*itertools.accumulate(turns.values())]
    rounds = {name: range(end - count + 1, end + 1) for (name, count), end in zip(turns.items(), ends, strict=True)}
    trial = Trial(
        tmp_path,
        (IN_TURNS,),
        exchange=exchange_of(way, tmp_path),
        rounds=ends[-1],
        deadline_s=TURN_S,
        turns=rounds,
        away_after=2 * ends[-1],  # it is waited for in every round
    )
    run_and_check(trial)
    assert [name for name, turn in rounds.items() if not trial.turns_taken() & {*turn}] == [], "it did everything"
    member = f"clinic-{len(HONEST)}"
    for number, (name, turn) in itertools.product(HONEST, rounds.items()):
        said = SAID_IN_TURN.get(name, SAID[name])
        # Receipts lie in a store before the turn's first message: who is slower reads them in the round before.
        log = trial.log_of(number, range(turn[0] - 1, turn.stop) if name == "slanders" else turn)
        assert re.search(words(said, trial, member, turn), log), (name, turn, log, trial.log(number))
        if name in TAUGHT_NOTHING:
            trust = [trial.records(number)[index - 1]["clients"][0]["trust"] for index in turn]
            taught = [shares for table in trust for shares in table.get(str(len(HONEST)), []) if shares]
            assert taught == [], (name, turn, number, trial.log(number))
    for number in HONEST:
        places = {TOLD[name] for name in rounds} - {None}
        assert all(member in trial.outcome(number)[place] for place in places if place is not None)
    check_proofs(trial, member)


@pytest.mark.parametrize("name", ALONE, ids=lambda word: word.replace(" ", "-"))
def test_one_alone_changes_nothing_for_the_honest(name, tmp_path):
    way, rounds = ALONE[name]
    run_and_check(Trial(tmp_path, (name,), exchange=exchange_of(way, tmp_path), rounds=rounds, deadline_s=SHORT_S))


def test_one_alone_floods_and_never_comes_and_the_honest_take_part_in_every_round(tmp_path):
    turns = dict.fromkeys(AT_ONCE, range(1, 4))
    trial = Trial(tmp_path, (IN_TURNS,), deadline_s=SHORT_S, turns=turns)
    run_and_check(trial)
    for number, name in itertools.product(HONEST, AT_ONCE):
        check_named(trial, number, f"clinic-{len(HONEST)}", name)
    check_floods(trial, handshakes=500)  # by one process, beside its silent sockets


def exchange_of(way: str, folder: Path) -> str:
    return "https" if way == "https" else f"file://{folder}/bucket"


def run_and_check(trial: Trial) -> None:
    """Run it to its end; what is promised of every run holds."""
    try:
        trial.run()
    finally:
        trial.end()
    for number in HONEST:
        check_took_part(trial, number)
        check_bounded(trial, number)
        for hostile, name in trial.hostile.items():
            if name != IN_TURNS:
                check_named(trial, number, f"clinic-{hostile}", name)
    assert trial.written_outside == []
    assert trial.strange_in_store() == []


def check_floods(trial: Trial, *, handshakes: int = 1000) -> None:
    """There was a flood."""
    assert trial.sockets_tried("127.0.0.64") >= 64 * len(HONEST)
    assert trial.sockets_tried("127.0.0.66") >= 1000 * len(HONEST)
    assert trial.sockets_tried("127.0.0.1") >= handshakes, "with a certificate; each takes milliseconds"


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
    assert 0 < used.descriptors < (FLOODED_DESCRIPTORS if trial.is_flooded else DESCRIPTORS)
    assert 0 < used.memory_kb < MEMORY_KB


def check_named(trial: Trial, number: int, member: str, name: str) -> None:
    """What a hostile member did is in the log and in participant.json, by its name."""
    log, outcome = trial.log(number), trial.outcome(number)
    assert re.search(words(SAID[name], trial, member, range(1, trial.rounds + 1)), log), (name, log)
    place = TOLD[name]
    if place == "confused":
        assert {entry["member"] for entry in outcome["confused"]} == {member}
    elif place is not None:
        assert member in outcome[place], (name, outcome)
    if name in TAUGHT_NOTHING:
        assert [row["shares"] for row in outcome["trusted"] if row["member"] == member and sum(row["shares"])] == []


def words(said: str, trial: Trial, member: str, turn: range) -> str:
    """A pattern for what is said of a member in these rounds."""
    even = next((index for index in turn if index % 2 == 0), 0)
    rounds = "|".join(map(str, turn))
    return said.format(name=member, last=trial.rounds, first=turn[0], even=even, rounds=rounds)


def check_proofs(trial: Trial, member: str) -> None:
    """Everybody has a proof that stands by itself, and that a changed byte spoils."""
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


def test_every_behaviour_is_also_tried_alone():
    """Over both exchanges where it goes in turns; the rest once."""
    in_turns = set(IN_TURNS_OVER_TLS)
    assert sorted([*in_turns, *ALONE, *AT_ONCE]) == sorted(HOSTILE)
    assert set(IN_TURNS_OVER_BUCKET) == {name for name in in_turns if HOSTILE[name].bucket}
