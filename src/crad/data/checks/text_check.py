"""What was understood of a table's texts: `crad data check FILE --text COLUMN`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crad.data.checks.table_check import too_small_sites
from crad.data.kinds.text import joined_texts
from crad.data.readers.table_file import RawTable, TableOptions, labels_of, sites_of
from crad.data.tokenizer import Tokenizer, words_of

SHOWN_EXAMPLES, SHOWN_CHARACTERS = 3, 100
MANY_CUT, MANY_SHARED = 0.1, 0.2  # of all words: a run would lose something by it


@dataclass(frozen=True)
class TextReport:
    """A table's texts as a run would read them; without a label only the texts."""

    path: str
    texts: int
    columns: tuple[str, ...]
    not_read: tuple[str, ...]  # columns that are no text, no label and no site
    empty: int
    twice: int  # texts that stand there before
    median_words: float
    longest_words: int
    length: int
    cut_texts: int
    cut_words: float  # share of all words
    vocabulary: int
    different_words: int
    outnumbered_words: float  # share of all words that lie on an id where another word is more frequent
    classes: Mapping[str, int] | None
    sites: Mapping[str, int] | None
    examples: tuple[tuple[str, str], ...]  # class and beginning
    warnings: tuple[str, ...]


def check_texts(table: RawTable, options: TableOptions) -> TextReport:
    """Say what was understood of a table's texts; what a run would refuse is refused here."""
    texts = joined_texts(table, options.text)
    labels = None if options.label is None else labels_of(table, options)
    sites = sites_of(table, options)
    tokenizer = Tokenizer(options.vocabulary, options.text_length)
    words = [words_of(text) for text in texts]
    lengths = np.array([len(one) for one in words])
    cut = np.maximum(lengths - tokenizer.length, 0)
    counts = Counter(word for one in words for word in one)
    apart = {*options.text, options.label, options.site}
    report = TextReport(
        path=table.where,
        texts=len(texts),
        columns=options.text,
        not_read=tuple(name for name in table.names if name not in apart),
        empty=int((lengths == 0).sum()),
        twice=len(texts) - len(set(texts)),
        median_words=float(np.median(lengths)),
        longest_words=int(lengths.max()),
        length=tokenizer.length,
        cut_texts=int((cut > 0).sum()),
        cut_words=float(cut.sum() / max(1, lengths.sum())),
        vocabulary=tokenizer.vocabulary,
        different_words=len(counts),
        outnumbered_words=_outnumbered(counts, tokenizer),
        classes=None if labels is None else dict(sorted(Counter(labels).items())),
        sites=None if sites is None else dict(sorted(Counter(sites).items())),
        examples=_examples(texts, labels),
        warnings=(),
    )
    return TextReport(**{**vars(report), "warnings": tuple(_warnings(report))})


def _outnumbered(counts: Counter[str], tokenizer: Tokenizer) -> float:
    """Return the share of all words that a network takes for another one which occurs more often."""
    at_id: defaultdict[int, list[int]] = defaultdict(list)
    for word, count in counts.items():
        at_id[tokenizer.id_of(word)].append(count)
    hidden = sum(sum(of_id) - max(of_id) for of_id in at_id.values())
    return hidden / max(1, counts.total())


def _examples(texts: Sequence[str], labels: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the first text of each of the first classes, on one line each."""
    first: dict[str, str] = {}
    for text, label in zip(texts, labels or map(str, range(1, len(texts) + 1)), strict=False):
        line = " ".join(text.split())
        if line and label not in first:
            first[label] = line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
        if len(first) == SHOWN_EXAMPLES:
            break
    return tuple(first.items())


def _warnings(report: TextReport) -> list[str]:
    found = []
    if report.classes is None:
        found.append("no column is the label yet: a run needs label")
    if report.empty:
        found.append(f"{report.empty} texts have no word: a network can only guess their class")
    if report.twice:
        found.append(f"{report.twice} texts stand there more than once: a test may hold what was trained on")
    if report.cut_words > MANY_CUT:
        found.append(
            f"{100 * report.cut_words:.0f} % of all words come after word {report.length} and are cut off: raise "
            "text_length to read more of them"
        )
    if report.outnumbered_words > MANY_SHARED:
        found.append(
            f"{100 * report.outnumbered_words:.0f} % of all words share their id with a more frequent one: raise "
            "vocabulary to tell them apart"
        )
    return found + too_small_sites(report.sites)
