"""What the live page has that the file does not: the bar at its foot, and the page before the first result."""

from __future__ import annotations

from collections.abc import Mapping

from crad.config import Experiment
from crad.report.markup import render
from crad.report.sections.svg import partition_heat_map
from crad.runs.names import display_name
from crad.runs.records import Record

END_OF_BODY = "</body>"  # looked for in a finished page, which may come from disk


def with_live_bar(page: str, status: Mapping[str, object]) -> bytes:
    """Return the page with a bar at its foot that shows `status` and asks for a newer one."""
    bar = render("live_bar.html", status=status)
    before, end, after = page.rpartition(END_OF_BODY)
    return f"{before}{bar}{end}{after}".encode() if end else f"{page}{bar}".encode()


def starting_page(label: str) -> str:
    """Return the page until the data is divided."""
    return render("plain.html", title=f"CRAD: {label}", sentence="The data is being read and divided.", picture=None)


def waiting_page(experiment: Experiment, partition: Record, *, label: str) -> str:
    """Return the page until a round has been tested: who holds what, and when there will be more to see."""
    first = min(experiment.eval_every, experiment.rounds)
    sentence = (
        f"{display_name(experiment)} on {experiment.dataset}: {experiment.clients} clients, "
        f"{experiment.rounds} rounds. "
        f"The first result comes at round {first}."
    )
    return render("plain.html", title=f"CRAD: {label}", sentence=sentence, picture=partition_heat_map(partition))
