"""Data sets that are no images and are known by name: which files of the data directory they are, what is in them.

Nothing here is downloaded: a line says where each is published. What a person says of the columns wins.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from crad.data.readers.table_file import TableOptions
from crad.errors import DataError


@dataclass(frozen=True)
class KnownFile:
    """A file or a folder in the data directory, and what is known of it."""

    name: str
    kind: str
    about: str
    num_classes: int
    path: str  # below the data directory
    published: str  # where a person gets it
    test_path: str | None = None
    options: TableOptions = field(default_factory=TableOptions)

    def locate(self, folder: Path) -> Path:
        """Return where it lies; refuse, with where it is published, if it does not."""
        for path in (self.path, self.test_path):
            if path is not None and not (folder / path).exists():
                raise DataError(
                    f"data set {self.name!r} is not in {folder} (looked for {path}): get it from {self.published}, "
                    "or point CRAD_DATA at the folder that has it"
                )
        return folder / self.path

    def options_with(self, said: TableOptions, folder: Path) -> TableOptions:
        """Return what is known of its columns, under what somebody says of them."""
        usual = TableOptions()
        given = {name: value for name, value in vars(said).items() if value != getattr(usual, name)}
        test = {} if self.test_path is None else {"test_data": str(folder / self.test_path)}
        return replace(self.options, **{**test, **given})


_FILES = (
    KnownFile(
        "heart",
        "table",
        "920 patients of four hospitals, 13 columns: a table",
        2,
        "heart.csv",
        "the UCI repository, Heart Disease, as one CSV file with the columns hospital and disease",
        options=TableOptions(label="disease", site="hospital", missing={"chol": "0", "trestbps": "0"}),
    ),
    KnownFile(
        "agnews",
        "text",
        "news of four topics: texts",
        4,
        "agnews_train.csv",
        "AG's corpus of news, as two CSV files with the columns text and topic",
        test_path="agnews_test.csv",
        options=TableOptions(label="topic", text=("text",)),
    ),
    KnownFile(
        "fsdd",
        "audio",
        "spoken digits of six speakers: recordings",
        10,
        "fsdd",
        "the Free Spoken Digit Dataset, as fsdd/train/DIGIT/SPEAKER_NUMBER.wav and fsdd/test",
        options=TableOptions(site="filename"),
    ),
)
KNOWN_FILES: dict[str, KnownFile] = {one.name: one for one in _FILES}
