"""How one target came about, as plain values, and in plain words; the page's inspector uses the same words."""

from __future__ import annotations

import math
from dataclasses import dataclass

STATE_WORDS = {"kept": "kept", "unsupported": "dropped for support", "outlier": "dropped as outlier"}


@dataclass(frozen=True)
class TeacherView:
    """One teacher's part in one target: what it holds, what it says, and what became of it."""

    client: int
    architecture: str
    count: float
    accuracy: float
    probability: float
    state: str
    weight: float
    false_alarms: float | None = None  # as the student counted them, where it did
    is_liar: bool = False  # a simulated attacker; so called in what `crad explain --json` writes
    corrected: float | None = None  # what is heard of its probability, where its own class shares are removed

    @property
    def name(self) -> str:
        """Return what it is called in a table."""
        return f"{self.client}, lies" if self.is_liar else str(self.client)


@dataclass(frozen=True)
class ImageTrace:
    """One test image and class, seen by one student. Probabilities are softened by the temperature."""

    round_index: int
    student: int
    image: int
    class_index: int
    class_name: str
    true_class: str
    consensus: float
    band: float
    target: float
    uniform: float
    teachers: tuple[TeacherView, ...]
    word: str = "image"  # what people call such a sample

    @property
    def accepted(self) -> tuple[float, float]:
        """Return the lowest and the highest probability inside the band."""
        return max(0.0, self.consensus - self.band), min(1.0, self.consensus + self.band)


def describe(trace: ImageTrace) -> str:
    """Return what became of the teacher with the most samples of the class, and what the student learns."""
    most = max(trace.teachers, key=lambda teacher: teacher.count)
    low, high = trace.accepted
    if most.false_alarms is None:
        holds = "claims" if most.is_liar else "holds"
        known = f"Client {most.client} {holds} most samples of {trace.class_name} ({samples(most.count)}) and says"
    else:
        known = f"Most samples of {trace.class_name} ({samples(most.count)}) speak for client {most.client}, which says"
    said = f"{known} {percent(most.probability)} %"
    if most.corrected is not None:
        said += f" ({percent(most.corrected)} % without its own class shares)"
    accepted = f"the accepted {percent(low)} to {percent(high)} %"
    if most.state == "kept":
        became = f"{said}, within {accepted}, so it is kept with {percent(most.weight)} % of the weight"
    elif most.state == "outlier":
        became = f"{said}, but lies outside {accepted}, so it is dropped"
    else:
        is_heard = any(teacher.weight > 0 for teacher in trace.teachers)
        became = (
            f"No teacher has enough samples of {trace.class_name} (the most: client {most.client} with "
            f"{samples(most.count)}), so {'all are averaged alike' if is_heard else 'nobody is heard'}"
        )
    num = {state: sum(teacher.state == state for teacher in trace.teachers) for state in STATE_WORDS}
    return (
        f"{became}; the target is {percent(trace.target)} %, a uniform average would say {percent(trace.uniform)} %. "
        f"Of {len(trace.teachers)} teachers {num['kept']} are kept, {num['unsupported']} dropped for support, "
        f"{num['outlier']} dropped as outliers."
    )


def percent(share: float) -> str:
    """Return a share of one in percent; halves upwards, as the page rounds them."""
    return f"{math.floor(share * 1000 + 0.5) / 10:.1f}"


def samples(count: float) -> str:
    """Return how many samples; published counts may be fractions."""
    return str(math.floor(count * 100 + 0.5) / 100).removesuffix(".0")
