"""Members who do harm, each in a process of its own with the genuine key of a member: a dictionary of behaviours.

What they do over TLS is in `hostile_line.py`, what they do in a shared folder in `hostile_folder.py`; the same members
in a simulated federation are in `simulation/hostile.py`. Rows are those of the table in `test_hostile.py`.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import hostile_folder as folder_side
from tests import hostile_line as line_side
from tests.clinics import Clinics, Forked, _join_here
from tests.hostile_member import Own

NEVER, LEARNS_WRONG = "never comes", "shifts its labels"  # need no process of this file
IN_TURNS = "one after the other"  # a member that does several things, each in rounds of its own


@dataclass(frozen=True)
class Behaviour:
    """What one of them does, over either exchange; None where there is nothing to do."""

    row: int  # of the table of what was broken
    https: Callable[[Own], None] | None
    bucket: Callable[[Own], None] | None
    network: str = "cnn6@0.125"  # what its entry in the agreement names


HOSTILE: dict[str, Behaviour] = {
    "claims the last round": Behaviour(1, line_side.ClaimsTheLast.live, folder_side.claim_the_last),
    "claims the last round and shows it": Behaviour(1, line_side.ShowsTheLast.live, folder_side.show_the_last),
    "drips in the handshake": Behaviour(2, line_side.DripsInHandshake.live, None),
    "drips in the headers": Behaviour(2, line_side.DripsInHeaders.live, None),
    "drips in a manifest": Behaviour(2, line_side.DripsInManifest.live, None),
    "drips in a body": Behaviour(2, line_side.DripsInBody.live, None),
    "holds silent sockets": Behaviour(3, line_side.hold_silent_sockets, None),
    "names a module that kills": Behaviour(4, line_side.Polite.live, folder_side.publish, "ctypes:string_at"),
    "names a package that is not there": Behaviour(4, line_side.Polite.live, folder_side.publish, "nowhere:build"),
    "holds a thousand connections": Behaviour(5, line_side.hold_connections, None),
    NEVER: Behaviour(6, None, None),
    "comes and goes": Behaviour(6, line_side.ComesAndGoes.live, folder_side.come_and_go),
    "publishes late": Behaviour(6, line_side.PublishesLate.live, folder_side.publish_late),
    LEARNS_WRONG: Behaviour(7, None, None),
    "plants links": Behaviour(8, None, folder_side.plant_links),
    "plants pipes": Behaviour(8, None, folder_side.plant_pipes),
    "overflows": Behaviour(9, line_side.Overflows.live, folder_side.overflow),
    "signs two": Behaviour(9, line_side.SignsTwo.live, folder_side.sign_two),
    "slanders": Behaviour(9, line_side.Slanders.live, folder_side.slander),
    "sends garbage": Behaviour(9, line_side.SendsGarbage.live, folder_side.leave_garbage),
    "speaks no HTTP": Behaviour(9, line_side.SpeaksNoHttp.live, None),
    "announces too much": Behaviour(9, line_side.AnnouncesTooMuch.live, folder_side.announce_too_much),
}


def let_loose(
    clinics: Clinics, number: int, name: str, *, honest: tuple[int, ...], turns: Mapping[str, range] | None = None
) -> None:
    """Start one of them, and wait until it is ready to do its harm."""
    if name == LEARNS_WRONG:  # a real member: what is wrong are its data
        log = clinics.folder / "hostile" / f"{number}.log"
        log.parent.mkdir(exist_ok=True)
        clinics.forked.append(Forked(_join_here, clinics.site(number), log))
        return
    is_https = clinics.agreement.exchange == "https"
    behaviour: Callable[[Own], None] | None
    if name == IN_TURNS:
        behaviour = functools.partial(act_in_turns, turns=turns or {}, is_https=is_https)
    else:
        behaviour = HOSTILE[name].https if is_https else HOSTILE[name].bucket
    if behaviour is None:
        return
    own = clinics.folder / "hostile" / f"clinic-{number}"
    own.mkdir(parents=True)
    process = Forked(_live, clinics.folder, number, honest, behaviour)
    clinics.forked.append(process)
    while not (own / "ready").exists():
        assert process.poll() is None, f"{name} ended with {process.poll()}"
        time.sleep(0.01)


def act_in_turns(own: Own, *, turns: Mapping[str, range], is_https: bool) -> None:
    """Do one thing after the other, each in its rounds."""
    serving: list[tuple[type[line_side.Polite], range]] = []
    for name, turn in turns.items():
        behaviour = HOSTILE[name].https if is_https else HOSTILE[name].bucket
        server = getattr(behaviour, "__self__", None)  # the class, where it is one that serves
        if server is not None:
            serving.append((server, turn))
        elif behaviour is not None:
            mine = own.in_turn(turn)
            mine.wait_for_turn()
            for round_index in turn:
                mine.note_turn(round_index)
            behaviour(mine)
    if serving:
        line_side.InTurns(own, serving).serve()


def _live(folder: Path, number: int, honest: tuple[int, ...], behaviour: Callable[[Own], None]) -> None:
    """The process of one of them: nobody is left behind by a test that was killed."""
    own, parent = Own(folder, number, honest), os.getppid()
    own.start(behaviour)
    while os.getppid() == parent:
        time.sleep(0.1)
