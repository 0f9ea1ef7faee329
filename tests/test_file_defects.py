"""Files with the defects that real ones have, by the commands that read them: one line of what, which and what next."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crad
from crad.data.catalog import load_dataset
from crad.network.agreement import make_agreement
from crad.site.doctor import Findings
from crad.site.doctor.own_model import check_data
from crad.site.settings import read_site, template
from tests.organisations import agreement_table, make_identities
from tests.test_recordings import RATE, tone, wav

NAN = float("nan")
ANSWERS = ("no", "yes")
FEW = ("--clients", 2, "--rounds", 1, "--batch-size", 8, "--proxy-size", 0, "--workers", 1, "--quiet", "--width", 0.125)
SERIES = np.random.default_rng(0).normal(size=(24, 2, 12))


def rows(header: str, line: Callable[[int], str], count: int = 24) -> bytes:
    """A table whose last column is the answer."""
    lines = [f"{line(number)},{ANSWERS[number // 2 % 2]}" for number in range(count)]
    return "\n".join([f"{header},ill", *lines, ""]).encode()


def arrays(folder: Path, samples: Any, labels: Any = None) -> Path:
    path = folder / "own.npz"
    given = np.arange(len(samples)) % 2 if labels is None else labels
    np.savez(path, train_samples=samples, train_labels=given, test_samples=samples, test_labels=given)
    return path


def sounds(folder: Path, **files: bytes) -> Path:
    """Twelve whistles of two classes, and others among those of the second."""
    for name, pitch in (("high", 90.0), ("low", 50.0)):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            (folder / name / f"{number}.wav").write_bytes(wav(tone(pitch)))
    for name, content in files.items():
        (folder / "low" / f"{name}.wav").write_bytes(content)
    return folder


def with_bad_sound(folder: Path, content: bytes) -> Path:
    return sounds(folder / "own", bad=content)


# --- what is refused: the file, and what is said of it

TABLES: dict[str, tuple[bytes, str]] = {
    "dates": (rows("a,when", lambda n: f"{n},2020-01-{n + 1:02d}"), "column 'when' holds dates such as '2020-01-01'"),
    "a header twice": (rows("a,a", lambda n: f"{n},1"), "column 'a' stands there twice, as columns 1 and 2: rename"),
    "a line of another length": (rows("a,b", lambda n: "1,2" if n else "1"), "line 2 has 2 fields, the header 3"),
    "another encoding": ("größe,ill\n1,no\n".encode("latin-1"), "line 1 is not UTF-8 text: save the table as CSV"),
    "zero bytes": (rows("a", lambda n: f"{n}\0"), "holds zero bytes, so it is no text: save the table as CSV UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", "line 1 is not UTF-8 text: save the table as CSV UTF-8"),
    "nothing": (b"", "is empty"),
    "a header alone": (b"a,ill\n", "has no rows below its header"),
    "one class": (b"a,ill\n1,no\n2,no\n", "label column 'ill' has one class only, 'no'"),
    "no number at all": (rows("a", lambda n: "inf" if n == 3 else str(n)), "column 'a' has 'inf' in line 5, which is"),
}
TEXTS: dict[str, tuple[bytes, str]] = {
    "no word": (rows("text", lambda n: '""'), "column 'text' is empty: there is nothing to read"),
    "zero bytes": (rows("text", lambda n: "a\0b"), "holds zero bytes, so it is no text"),
    "half a letter": (rows("text", lambda n: "q").replace(b"q", b"\xed\xa0\x80"), "line 2 is not UTF-8 text"),
    "a quote that stays open": (rows("text", lambda n: '"x' if n == 23 else "x"), "is a quote open?"),
    "a text without end": (rows("text", lambda n: "x" * (1 << 24) + "x" if n == 1 else "x"), "line 3 is no CSV (field"),
}
RECORDINGS: dict[str, tuple[bytes, str]] = {
    "another rate": (wav(tone(50), rate=2 * RATE), "has 2000 samples a second, the "),
    "empty": (b"", "is an empty file, expected a recording: record it again or remove it"),
    "cut off": (wav(tone(50))[:-100], "is cut off, 700 of 800 bytes of sound are there: copy it again"),
    "no number in it": (wav([0.5, NAN] * 20, bits=32, code=3), "has a sample that is no number (NaN or infinite)"),
    "an infinite one": (wav([1e300] * 40, bits=64, code=3), "has a sample that is no number (NaN or infinite)"),
    "no channel": (wav(tone(50), channels=0), "says 0 channels and 1000 samples a second: write it again"),
    "a song": (b"ID3" + bytes(50), "is no WAV file, whatever its name says: convert it to WAV"),
}
ARRAYS: dict[str, tuple[Any, Any, str]] = {
    "four axes": (
        np.zeros((24, 2, 3, 4)),
        None,
        "own.npz: train_samples is float64 of shape (24, 2, 3, 4), expected",
    ),
    "one axis": (np.zeros(24), None, "own.npz: train_samples is float64 of shape (24,), expected numbers [N, time]"),
    "words": (np.full((24, 9), "x"), None, "own.npz: train_samples is <U1 of shape (24, 9), expected numbers"),
    "objects": (np.full((24, 9), None), None, "train_samples holds Python objects, which are never opened here"),
    "gaps alone": (np.full((24, 2, 9), NAN), None, "every value is a gap (NaN): there is nothing to learn from"),
    "infinite": (np.where(SERIES > 1, np.inf, SERIES), None, "has an infinite value"),
    "beyond 32 bits": (SERIES * 1e200, None, "has an infinite value"),
    "labels below zero": (SERIES, np.arange(24) % 2 - 1, "label -1 is below 0: number the classes from 0 on, or name"),
    "half labels": (SERIES, np.arange(24) % 2 / 2, "train_labels has dtype float64, expected whole numbers"),
    "a label too few": (SERIES, np.arange(23) % 2, "24 train series but 23 train labels"),
    "one class": (SERIES, np.zeros(24, np.int64), "1 class, expected at least 2 to tell apart"),
}


def cases() -> list[Any]:
    """Every defect: how its file is made, the flags that go with it, what is said."""

    def stored(content: bytes) -> Callable[[Path], Path]:
        def write(folder: Path) -> Path:
            path = folder / "own.csv"
            path.write_bytes(content)
            return path

        return write

    found = []
    for kind, files, flags in (("table", TABLES, ()), ("text", TEXTS, ("--text", "text"))):
        found += [(kind, name, stored(one), ("--label", "ill", *flags), said) for name, (one, said) in files.items()]
    for name, (content, said) in RECORDINGS.items():
        found.append(("audio", name, partial(with_bad_sound, content=content), (), said))
    for name, (samples, labels, said) in ARRAYS.items():
        found.append(("series", name, partial(arrays, samples=samples, labels=labels), ("--kind", "series"), said))
    return [pytest.param(kind, *rest, id=f"{kind}: {name}") for kind, name, *rest in found]


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


AGREED: dict[str, dict[str, Any]] = {
    "table": {"kind": "table", "label": "ill", "columns": [{"name": "a", "kind": "number"}]},
    "text": {"kind": "text", "label": "ill", "text": ["text"], "vocabulary": 512, "text_length": 8},
    "audio": {"kind": "audio", "rate": RATE, "channels": 1, "length": 400},
    "series": {"kind": "series", "channels": 2, "length": 12},
}
CLASSES = {"audio": ["high", "low"], "series": ["0", "1"]}
# A member may have one class alone, and columns that nobody agreed on.
FINE_FOR_A_MEMBER = {"table: one class", "series: one class", "table: dates", "series: labels below zero"}


def agreed_on(kind: str, identities: Any) -> Any:
    """An agreement about data of this kind."""
    table = agreement_table(identities, data=AGREED[kind], classes=CLASSES.get(kind, list(ANSWERS)))
    return make_agreement({key: table[key] for key in table if key not in ("image_shape", "mean", "std")})


@pytest.mark.parametrize(("kind", "write", "flags", "said"), cases())
def test_the_check_the_run_and_the_doctor_say_one_line_and_nothing_is_left_behind(
    kind, write, flags, said, tmp_path, crad_command, identities, request
):
    path = write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for words in (["data", "check", path], ["run", "--data", path, *FEW, "--output", tmp_path / "run"]):
        code, _, err = crad_command(*words, *flags)
        assert (code, err.count("\n")) == (2, 1), err
        assert said in err
        assert err.rstrip("\n").isprintable()
    assert sorted(tmp_path.rglob("*")) == before
    if request.node.callspec.id in FINE_FOR_A_MEMBER:
        return
    site_file = tmp_path / "peer.toml"
    numbered = 'classes = "as agreed"\n' if kind == "series" else ""
    site_file.write_text(template("clinic-a").replace('data = "data"', f'data = "{path.name}"') + numbered)
    findings = Findings()
    check_data(agreed_on(kind, identities), read_site(site_file), findings)
    [problem] = findings.of("problem")
    assert said in problem.text
    assert problem.text.isprintable()


# --- what is understood


def test_what_programs_write_into_a_pipe_is_read_to_its_end(tmp_path):
    """They cannot know how long it will be, and say the largest number there is."""
    whole = wav(tone(50))
    assert whole[-804:-800] == struct.pack("<I", 800)
    streamed = [whole[:-804] + struct.pack("<I", size) + whole[-800:] for size in (0xFFFFFFFF, 0x7FFFFFFF)]
    folder = sounds(tmp_path / "own", first=streamed[0], second=streamed[1])
    assert load_dataset(str(folder), seed=1).train_samples.shape[2] == 400


def test_a_text_as_long_as_a_book_is_read_and_cut(tmp_path):
    path = tmp_path / "own.csv"
    path.write_bytes(rows("text", lambda n: "word " * 100_000 if n == 5 else "word"))
    data = crad.data.load_dataset(str(path), table=table_options(), seed=1)
    counts = [(part > 0).sum(axis=1) for part in (data.train_samples, data.test_samples)]
    assert sorted(np.concatenate(counts))[-2:] == [1, 64]


def table_options() -> Any:
    from crad.data.readers.table_file import TableOptions

    return TableOptions(label="ill", text=("text",))


@pytest.mark.parametrize("flags", [("--text", "text"), ("--categories", "text")], ids=["text", "table"])
def test_terminal_codes_in_a_file_do_nothing_to_the_terminal(tmp_path, crad_command, monkeypatch, flags):
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *given: False)  # as in a terminal
    path = tmp_path / "own.csv"
    path.write_bytes(rows("text", lambda n: f"\x1b[31mred\x07{n % 3}").replace(b"yes", b"y\x1b[2Jes"))
    code, out, _ = crad_command("data", "check", path, "--label", "ill", *flags)
    assert code == 0
    assert "\x1b" not in out
    assert "\x07" not in out
    assert r"y\x1b[2Jes 12" in out
    assert r"\x1b[31mred\x07" in out


def test_arrays_are_counted_by_their_own_name(tmp_path, crad_command):
    code, out, _ = crad_command("data", "check", arrays(tmp_path, SERIES), "--kind", "series")
    assert (code, "train series  24" in out, "images" in out) == (0, True, False)
