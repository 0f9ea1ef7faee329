"""Texts: token ids int64 [N, L], made once when they are read. The texts themselves go nowhere from there.

A table's file is one of texts where the setting `text` names its columns. How ids are made is agreed on
(`crad.data.tokenizer`) and fitted to nothing; networks take ids. B texts of a block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crad.data.kinds.kind import (
    OF_TABLES,
    HasPadding,
    Kind,
    ReadOptions,
    SampleForm,
    Words,
    form_fields,
    refuse_options,
)
from crad.data.kinds.table import check_columns_said, split_off_test
from crad.data.readers.arrays import encode_labels, is_texts, plain_texts, with_sites
from crad.data.readers.table_file import (
    SUFFIXES,
    FileVersion,
    RawTable,
    TableOptions,
    file_version,
    labels_of,
    raw_table_of_frame,
    read_raw_table,
    shown_names,
    sites_of,
)
from crad.data.tokenizer import PADDING, RECIPE, TokenIds, Tokenizer
from crad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from crad.data.dataset import Dataset

DROPPED = 0.3  # of a strongly changed text's words are taken out
SHORTEST_CROP = 0.25  # of a text's words, where a stretch is read in place of the whole
SHOWN_CHARACTERS = 600  # of a text in the inspector
USUAL_COLUMN = "text"  # where texts came without a name


@dataclass(frozen=True)
class TextPreprocessor:
    """Ids go into a network as they are."""

    device: torch.device
    augmentation: str = "none"

    def inputs(self, images: Tensor) -> Tensor:
        """Return ids int64 [B,L]."""
        return images

    def augment(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return texts as they are: nothing can be done to a text that is certain to keep its label."""
        return images

    def mix(self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator) -> Tensor:
        """Follow a text's beginning by another one's end: of each as large a part as its share."""
        place_L = torch.arange(inputs.shape[1], device=inputs.device)
        own_B, other_B = _lengths(inputs), _lengths(others)
        kept_B1 = torch.round(share_B * own_B).long()[:, None]
        taken_B1 = torch.round((1 - share_B) * other_B).long()[:, None]
        from_BL = place_L - kept_B1 + (other_B[:, None] - taken_B1)
        end_BL = others.gather(1, from_BL.clamp(0, inputs.shape[1] - 1))
        is_end_BL = (place_L >= kept_B1) & (from_BL < other_B[:, None])
        return torch.where(is_end_BL, end_BL, torch.where(place_L < kept_B1, inputs, PADDING))

    def change_strongly(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Take some words out, and leave their places empty."""
        is_dropped = torch.rand(inputs.shape, generator=generator).to(inputs.device) < DROPPED
        return torch.where(is_dropped, PADDING, inputs)

    def cut(
        self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Mix texts: a beginning with an end is a piece already."""
        return self.mix(inputs, others, share_B, generator=generator), share_B

    def crop(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Leave a stretch of the words of each text, at least a quarter of them, from the first place on."""
        place_L, length_B = torch.arange(inputs.shape[1]), _lengths(inputs).cpu()
        share_B = SHORTEST_CROP + (1 - SHORTEST_CROP) * torch.rand(len(inputs), generator=generator)
        kept_B = (share_B * length_B).round().clamp(min=1)
        start_B = (torch.rand(len(inputs), generator=generator) * (length_B - kept_B + 1).clamp(min=0)).floor().long()
        from_BL = (place_L + start_B[:, None]).clamp(max=inputs.shape[1] - 1).to(inputs.device)
        is_shown_BL = (place_L < kept_B[:, None]).to(inputs.device)
        return torch.where(is_shown_BL, inputs.gather(1, from_BL), PADDING)


class TextKind(Kind):
    """Sentences, notes, reports: words in an order."""

    name = "text"
    words = Words("text", "texts")
    models: tuple[str, ...] = ("bag", "text-cnn", "text-transformer")
    input_name = "token_ids"
    dtype: np.dtype[Any] = np.dtype(np.int64)
    channel_axis = -1

    def is_source(self, name_or_path: str) -> bool:
        """Return False: no name says that a table is one of texts, the setting `text` does."""
        return False

    def read(self, name_or_path: str, options: ReadOptions) -> Dataset:
        """Read the text columns of a .csv, .tsv or .parquet file; without `test_data` test texts are split off here."""
        if not name_or_path.lower().endswith(SUFFIXES):
            raise ConfigError(f"text names columns of a table ({', '.join(SUFFIXES)}), and {name_or_path} is none")
        if not options.table.text:
            raise ConfigError(f"{name_or_path}: say which column holds the texts, such as text={USUAL_COLUMN}")
        refuse_options(options, self.name, name_or_path, allowed=OF_TABLES)
        check_columns_said(options.table, where=name_or_path)
        table, path = options.table, Path(name_or_path).expanduser()
        test = None if table.test_data is None else Path(table.test_data).expanduser()
        versions = file_version(path), None if test is None else file_version(test)
        return _read_once(path, test, versions, table)

    def check(self, samples: NDArray[Any], dataset: Dataset, *, where: str) -> None:
        """Refuse an array that holds no ids of the data set's tokenizer."""
        tokenizer = Tokenizer.from_json(dataset.details)
        if samples.dtype != np.int64 or samples.ndim != 2 or samples.shape[1] != tokenizer.length:
            raise DataError(
                f"{where} is {samples.dtype} of shape {samples.shape}, expected int64 [N, {tokenizer.length}]: make it "
                "with Dataset.from_arrays"
            )
        if len(samples) == 0:
            raise DataError(f"{where} is empty, expected at least one text")
        _check_range(samples, tokenizer, where=where)

    def to_tensor(self, samples: NDArray[Any], form: HasPadding) -> Tensor:
        """Return ids as a tensor of their own."""
        return torch.from_numpy(np.array(samples, order="C"))

    def preprocessor(self, dataset: Dataset, *, is_augmented: bool, device: str) -> TextPreprocessor:
        """Return one that changes nothing."""
        return TextPreprocessor(torch.device(device))

    def picture(self, dataset: Dataset, sample: NDArray[Any]) -> dict[str, Any]:
        """Return the text as it was written, a long one cut; texts that no network tells apart are shown as one."""
        text = dataset.texts.get(sample.tobytes(), "")
        rest = len(text) - SHOWN_CHARACTERS
        return {"text": text if rest <= 0 else f"{text[:SHOWN_CHARACTERS]} … ({rest:,} more characters)"}

    def batch(self, x: object, form: SampleForm) -> TokenIds:
        """Return texts as ids int64 [N, L]: one text or several, a frame with a model's columns, or ids themselves."""
        tokenizer, columns = Tokenizer.from_json(form.details), form.details["columns"]
        if isinstance(x, str):
            return tokenizer.ids([x])
        if hasattr(x, "columns") and hasattr(x, "iloc"):
            return tokenizer.ids(joined_texts(raw_table_of_frame(x, where="x"), columns))
        if is_texts(x):
            return tokenizer.ids(plain_texts(x, where="x"))
        array = np.asarray(x) if not hasattr(x, "detach") else x.detach().cpu().numpy()
        if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or array.shape[-1] != tokenizer.length:
            raise DataError(
                f"x is {array.dtype} of shape {array.shape}, this model takes texts (a list of them), or token ids [N, "
                f"{tokenizer.length}]"
            )
        ids = np.atleast_2d(array).astype(np.int64)
        _check_range(ids, tokenizer, where="x")
        return ids

    def read_inputs(self, path: Path, form: SampleForm, *, key: str | None) -> tuple[list[str], NDArray[Any]]:
        """Return the texts of a table's file by a model's columns, or of a .txt file line by line, as ids."""
        tokenizer, suffix = Tokenizer.from_json(form.details), path.suffix.lower()
        if suffix in (".npy", ".npz"):
            from crad.data.readers.input_files import read_array_file

            return [], read_array_file(path, key)
        if key is not None:
            raise ConfigError(f"key names an array of a .npz, and {path} is none: leave it out")
        if suffix in SUFFIXES:
            table = read_raw_table(path, least_columns=1)
            return [], tokenizer.ids(joined_texts(table, form.details["columns"]))
        if suffix != ".txt":
            raise DataError(f"{path}: this model takes texts: {', '.join(SUFFIXES)}, .txt with one in every line, .npy")
        return [], tokenizer.ids(_lines(path))

    def preprocessor_of(self, form: SampleForm) -> TextPreprocessor:
        """Return one that changes nothing."""
        return TextPreprocessor(torch.device("cpu"))

    def features(self, dataset: Dataset, samples: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Return how many words of a text are read."""
        return {"words": (samples != PADDING).sum(axis=1).astype(np.float64)}

    def schema(self, dataset: Dataset) -> dict[str, Any]:
        """Return the tokenizer and the columns that hold texts."""
        return {"details": dict(dataset.details)}

    def card_metadata(self, form: SampleForm) -> dict[str, Any]:
        """Return the tokenizer, and in a sentence how ids are made."""
        about = {"dtype": "int64", "layout": "NL", "length": form.input_shape[0], "made_by": RECIPE}
        return {"tokenizer": dict(form.details), "input": about}

    def card_form(self, about: Mapping[str, str]) -> dict[str, Any] | None:
        """Read that back; None: the file is about another kind of data."""
        if "tokenizer" not in about:
            return None
        said = json.loads(about["tokenizer"])
        tokenizer = Tokenizer.from_json(said)
        details = tokenizer.to_json([str(name) for name in said["columns"]])
        return {**form_fields(self.name, (tokenizer.length,)), "details": details}


def dataset_of_texts(train: RawTable, test: RawTable | None, options: TableOptions, *, name: str) -> Dataset:
    """Make a data set of one table's texts, or of two tables'."""
    texts = joined_texts(train, options.text)
    labels, sites = labels_of(train, options), sites_of(train, options)
    tokenizer = Tokenizer(options.vocabulary, options.text_length)
    if test is not None:
        numbers, test_numbers, classes = encode_labels(labels, labels_of(test, options))
        second = joined_texts(test, options.text)
        return make_texts(texts, numbers, second, test_numbers, classes, sites, tokenizer, options.text, name=name)
    numbers, _, classes = encode_labels(labels, labels)
    kept, held_back = split_off_test(labels, sites, where=train.where)
    parts = [[texts[place] for place in places] for places in (kept, held_back)]
    own = None if sites is None else [sites[place] for place in kept]
    return make_texts(
        parts[0], numbers[kept], parts[1], numbers[held_back], classes, own, tokenizer, options.text, name=name
    )


def texts_from_arrays(
    x_train: object,
    train_labels: NDArray[np.int64],
    x_test: object,
    test_labels: NDArray[np.int64],
    classes: tuple[str, ...],
    sites: Sequence[str] | None,
    tokenizer: Tokenizer,
    *,
    name: str,
) -> Dataset:
    """Make a data set of texts in memory; see `Dataset.from_arrays`."""
    if not is_texts(x_test):
        raise DataError("x_train holds texts and x_test does not: give both in one form")
    train, test = plain_texts(x_train, where="x_train"), plain_texts(x_test, where="x_test")
    return make_texts(train, train_labels, test, test_labels, classes, sites, tokenizer, [USUAL_COLUMN], name=name)


def make_texts(
    train: Sequence[str],
    train_labels: NDArray[np.int64],
    test: Sequence[str],
    test_labels: NDArray[np.int64],
    classes: tuple[str, ...],
    sites: Sequence[str] | None,
    tokenizer: Tokenizer,
    columns: Sequence[str],
    *,
    name: str,
) -> Dataset:
    """Make ids of texts, put the parts together and check them; of the texts only the test's are kept, to be shown."""
    from crad.data.dataset import Dataset, check_dataset

    test_ids = tokenizer.ids(test)
    dataset = Dataset(
        name=name,
        train_samples=tokenizer.ids(train),
        train_labels=train_labels,
        test_samples=test_ids,
        test_labels=test_labels,
        class_names=classes,
        kind="text",
        details=tokenizer.to_json(columns),
        texts={ids.tobytes(): text for ids, text in zip(test_ids, test, strict=True)},
    )
    check_dataset(dataset)
    return dataset if sites is None else with_sites(dataset, sites)


def joined_texts(table: RawTable, columns: Sequence[str]) -> list[str]:
    """Return the texts of a table; several columns of a row are one text, in the order in which they are named."""
    lacking = [name for name in columns if name not in table.names]
    if lacking:
        raise DataError(
            f"{table.where}: lacks column {lacking[0]!r}, which holds texts; has {shown_names(table.names)}"
        )
    texts = ["\n".join(parts) for parts in zip(*(table.column(name) for name in columns), strict=True)]
    if not any(text.strip() for text in texts):
        raise DataError(f"{table.where}: column {columns[0]!r} is empty: there is nothing to read")
    return texts


@lru_cache(maxsize=1)  # a comparison reads the same file for every run
def _read_once(
    path: Path, test: Path | None, versions: tuple[FileVersion, FileVersion | None], options: TableOptions
) -> Dataset:
    second = None if test is None else read_raw_table(test)
    return dataset_of_texts(read_raw_table(path), second, options, name=path.stem)


def _lengths(ids_BL: Tensor) -> Tensor:
    """Return where each text ends, [B]: after its last word, whatever was taken out before it."""
    place_L = torch.arange(1, ids_BL.shape[1] + 1, device=ids_BL.device)
    return (place_L * (ids_BL != PADDING)).amax(dim=1)


def _check_range(ids: TokenIds, tokenizer: Tokenizer, *, where: str) -> None:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= tokenizer.vocabulary):
        raise DataError(f"{where} has token ids {ids.min()} to {ids.max()}, expected 0 to {tokenizer.vocabulary - 1}")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text: save it as UTF-8") from error
