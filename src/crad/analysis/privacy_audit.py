"""The audit of a private run: what its canaries prove beside what its account claims, client by client and together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

from crad.config import Experiment
from crad.errors import ConfigError, RunError
from crad.privacy.accountant import plan_of
from crad.privacy.audit import (
    GUESSED_IN,
    GUESSED_SHARES,
    Bound,
    Guesses,
    best_bound,
    count_guesses,
    count_guesses_in,
)
from crad.runs.canaries_record import CANARIES_FILE
from crad.runs.directory import RunDirectory
from crad.runs.records import Record

SCORES = ("scores", "step_scores")  # by the published weights; by the sums of all steps without the records' part
TOO_MANY_FAILURES = 0.1  # of canaries, on average, that delta alone allows


@dataclass(frozen=True)
class AuditLine:
    """What is proven of one client, or of the whole run, and what is claimed."""

    client: int | None  # None: all together
    canaries: int
    guesses: int
    correct: int
    epsilon_lower_bound: float
    ceiling: float  # what a perfect attack would prove
    claimed_epsilon: float

    @property
    def is_broken(self) -> bool:
        """Return whether more was proven than is claimed."""
        return self.epsilon_lower_bound > self.claimed_epsilon


@dataclass(frozen=True)
class PrivacyAudit:
    """All lines of a run's audit, which hold together with the confidence."""

    confidence: float
    delta: float
    whole: AuditLine
    clients: tuple[AuditLine, ...]

    @property
    def broken(self) -> tuple[AuditLine, ...]:
        """Return the lines that prove more than is claimed."""
        return tuple(line for line in (self.whole, *self.clients) if line.is_broken)

    @property
    def sentence(self) -> str:
        """Say what that means."""
        if self.broken:
            line = max(self.broken, key=lambda one: one.epsilon_lower_bound - one.claimed_epsilon)
            who = "the run" if line.client is None else f"client {line.client}"
            return (
                f"BROKEN: what {who} releases proves epsilon of at least {line.epsilon_lower_bound:.2f}, and "
                f"{line.claimed_epsilon:.2f} is claimed: noise, clipping, sampling or the account is wrong."
            )
        whole = self.whole
        sharpness = "a fault of less than a factor of several goes unseen"
        if whole.ceiling <= whole.claimed_epsilon:
            sharpness = "not even a perfect attack on so few canaries could refute the claim"
            if whole.canaries * self.delta > TOO_MANY_FAILURES:
                sharpness += (
                    f": at delta {self.delta:g} too many of them may fail; ask for a smaller one (--delta 1e-5)"
                )
        return (
            "No gross fault was found. That is an alarm that stayed silent, not evidence of privacy: a perfect attack "
            f"on these canaries would prove {whole.ceiling:.2f}; {sharpness}."
        )


def audit_run(path: Path, *, confidence: float = 0.95, delta: float | None = None) -> PrivacyAudit:
    """Audit a finished private run by its canaries.

    Half of the chance of error is the whole run's, the clients share the other half. The same noise keeps a larger
    epsilon at a smaller `delta`, which canaries can refute more sharply; None: the run's own.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence {confidence:g}: expected at least 0.5 and less than 1, such as 0.95")
    directory = RunDirectory(path)
    experiment = directory.experiment()
    if experiment.private_training is None:
        raise RunError(f"{path} was not trained with privacy: there is no claim to audit; set private_training")
    if not experiment.canaries:
        raise RunError(f"{path} has no canaries: run it again with canaries = 1000 to audit it")
    directory.summary()  # refused here where the run is not finished
    entries = _entries(directory)
    claims = _claims(directory, experiment, delta=delta)
    error, delta = (1 - confidence) / 2, experiment.delta if delta is None else delta
    guessed = {entry["client"]: _guesses(entry) for entry in entries}
    whole = [reduce(add, column) for column in zip(*guessed.values(), strict=True)]
    return PrivacyAudit(
        confidence,
        delta,
        _line(None, whole, claim=max(claims[client] for client in guessed), delta=delta, confidence=1 - error),
        tuple(
            _line(client, own, claim=claims[client], delta=delta, confidence=1 - error / len(guessed))
            for client, own in guessed.items()
        ),
    )


def _guesses(entry: Record) -> list[Guesses]:
    """Return what was guessed of a client's canaries, in all ways that were fixed in advance."""
    ways = [(entry[scores], share) for scores in SCORES for share in GUESSED_SHARES]
    both = [count_guesses(scores, entry["is_included"], share=share) for scores, share in ways]
    return [*both, count_guesses_in(entry["step_scores"], entry["is_included"], share=GUESSED_IN)]


def _claims(directory: RunDirectory, experiment: Experiment, *, delta: float | None) -> dict[int, float]:
    """Return what every client's training claims to have spent, by its last record, at another delta where asked."""
    last = {one["client"]: one["privacy"] for line in directory.full_rounds() for one in line["clients"]}
    if delta is None:
        return {client: privacy["training_epsilon"] for client, privacy in last.items()}
    if not 0 < delta <= experiment.delta:
        raise ConfigError(f"delta {delta:g}: expected more than 0 and at most {experiment.delta:g}, the run's own")
    plan = plan_of(experiment)
    assert plan is not None, "asked of private runs alone"
    return {client: replace(plan, delta=delta).training_epsilon(privacy["steps"]) for client, privacy in last.items()}


def _entries(directory: RunDirectory) -> list[Record]:
    path = directory.path / CANARIES_FILE
    if not path.is_file():
        raise RunError(f"{path} is missing: put it back, or run the experiment again")
    record = directory.read_json(CANARIES_FILE)
    entries = record.get("clients") if isinstance(record, dict) else None
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise RunError(f"{path} is damaged: expected every client's scores and coins")
    if not entries:
        raise RunError(f"{path} has no client: nobody has trained in this run")
    return entries


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not {"client", "is_included", *SCORES} <= entry.keys():
        return False
    lists = [entry["is_included"], *(entry[scores] for scores in SCORES)]
    return all(isinstance(one, list) and len(one) == len(lists[0]) for one in lists)


def _line(client: int | None, candidates: list[Guesses], *, claim: float, delta: float, confidence: float) -> AuditLine:
    bound: Bound = best_bound(candidates, delta=delta, confidence=confidence)
    used = bound.guesses
    return AuditLine(client, used.canaries, used.guesses, used.correct, bound.epsilon, bound.ceiling, claim)
