"""A member's own table under the agreed columns: mapped as peer.toml says, or refused with the very line to write."""

from __future__ import annotations

import re
import time
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.config import make_experiment
from crad.data.agreed import OwnFile, ReadOptions, TableSchema, complete_schema, draft_schema
from crad.data.agreed.own_data import OwnData
from crad.data.agreed.shard_files import write_table
from crad.data.agreed.table_schema import wide_range
from crad.data.readers.table_file import options_of
from crad.errors import ConfigError, CradError, DataError
from crad.federation.context import input_shape_of
from crad.models import Architecture, estimate_size
from crad.network.agreement import agreement_to_toml, differences, make_agreement, read_agreement
from crad.site.settings import read_site
from tests.organisations import agreement_table, make_identities

EXAMPLES = settings(max_examples=40, derandomize=True, database=None, deadline=None)
CLASSES = ("no", "yes")
SCHEMA: dict[str, Any] = {
    "kind": "table",
    "label": "ill",
    "columns": [
        {"name": "age", "kind": "number", "range": [10, 200], "unit": "years"},
        {"name": "sex", "kind": "category", "categories": ["0", "1"]},
        {"name": "chol", "kind": "number", "range": [60, 2000], "unit": "mg/dl", "missing": "0"},
    ],
}
HEADER = "age,sex,chol,ill"
ROWS = [f"{30 + row},{row % 2},{200 + row},{CLASSES[row % 3 == 0]}" for row in range(12)]
SITE = 'name = "a"\nagreement = "f.toml"\nkeys = "keys"\nstate = "state"\ndata = "own.csv"\n'


def load(folder, lines=None, *, header=HEADER, toml="", schema=SCHEMA, source="own.csv") -> OwnData:
    """What a member with these lines in peer.toml makes of this file."""
    (folder / "own.csv").write_text("\n".join([header, *(ROWS if lines is None else lines)]) + "\n")
    (folder / "peer.toml").write_text(SITE.replace("own.csv", source) + toml)
    own = read_site(folder / "peer.toml").own_file
    agreed = TableSchema.from_plain(schema)
    return agreed.load(own, classes=CLASSES, held_out=0.2, rng=np.random.default_rng(1))


def test_a_table_as_agreed_is_taken_as_it_is_and_divided_as_a_client_of_a_simulation(tmp_path):
    own = load(tmp_path, [*ROWS, "50,?,0,yes"])
    rows = own.dataset.train_samples
    assert rows.dtype == np.float32
    assert rows[0].tolist() == [30, 0, 200]
    assert np.isnan(rows[-1]).tolist() == [False, True, True], "the usual word for a gap, and the agreed code"
    assert own.dataset.train_labels[:4].tolist() == [1, 0, 0, 1]
    parts = [own.shard.train, own.shard.validation, own.shard.test]
    assert sorted(np.concatenate(parts).tolist()) == list(range(13))
    assert [len(part) for part in parts] == [10, 2, 1]
    assert len(own.dataset.test_labels) == 0


def test_names_units_codes_gaps_and_classes_of_ones_own_are_mapped(tmp_path):
    toml = """
label.name = "result"
label.classes = { "1" = "yes", "0" = "no" }
columns.age.name = "Alter"
columns.sex.categories = { "M" = "1", "W" = "0" }
columns.chol.factor = 38.67
columns.chol.offset = 1
columns.chol.missing = ["-9", 99]
"""
    lines = [f"{30 + row},{'WM'[row % 2]},{5 + row / 10},{row % 2}.0,x" for row in range(12)]
    lines += ["40,M,-9,1,x", "40,M,99.0,1,x"]
    own = load(tmp_path, lines, header="Alter,sex,chol,result,note", toml=toml)
    rows = own.dataset.train_samples
    assert rows[:2, :2].tolist() == [[30, 0], [31, 1]]
    assert rows[0, 2] == np.float32(5 * 38.67 + 1)
    assert np.isnan(rows[12:, 2]).all()
    assert own.dataset.train_labels[:2].tolist() == [0, 1]
    assert own.passed_over == ("note",)
    assert own.columns[0].values.endswith("(here 'Alter')")
    assert own.columns[2].values.endswith("(times 38.67, plus 1)")


def test_a_column_that_one_does_not_have_is_a_gap_in_every_row(tmp_path):
    own = load(tmp_path, [line.rsplit(",", 2)[0] + ",no" for line in ROWS], header="age,sex,ill", toml=ABSENT)
    assert np.isnan(own.dataset.train_samples[:, 2]).all()
    assert own.columns[2].gaps == 12


ABSENT = "columns.chol.absent = true\n"


def test_one_class_alone_is_no_fault_of_a_member(tmp_path):
    assert set(load(tmp_path, [line.rsplit(",", 1)[0] + ",yes" for line in ROWS]).dataset.train_labels) == {1}


def test_codes_that_a_program_has_saved_as_decimals_are_the_same_codes(tmp_path):
    lines = [line.replace(",0,", ",0.0,").replace(",1,", ",1.0,") for line in ROWS]
    assert load(tmp_path, lines).dataset.train_samples[:2, 1].tolist() == [0, 1]


def test_zeros_far_from_everything_are_named_with_what_to_write(tmp_path):
    schema = {**SCHEMA, "columns": [*SCHEMA["columns"][:2], {"name": "chol", "kind": "number"}]}
    own = load(tmp_path, [*ROWS, "50,1,0,yes"], schema=schema)
    assert own.warnings == (
        "column 'chol' is 0 in 1 rows and far from it in all others: if 0 means a gap, write "
        'columns.chol.missing = "0" into peer.toml',
    )
    assert not load(tmp_path, schema=schema).warnings


# --- refusals: the column's name, and the line to write; written, it works


REFUSALS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "another name": (
        {"header": "age,sex,cholest,ill"},
        "lacks the agreed column 'chol' (number, mg/dl); not agreed on are cholest: write ",
        'columns.chol.name = "cholest"',
    ),
    "nothing like it": (
        {"header": "age,sex,x17,ill"},
        'write columns.chol.name = "..." into peer.toml, with its name here, or ',
        "columns.chol.absent = true",
    ),
    "another label": (
        {"header": "age,sex,chol,illness"},
        "lacks the agreed label 'ill'; not agreed on are illness: write ",
        'label.name = "illness"',
    ),
    "other classes": (
        {"lines": [line.rsplit(",", 1)[0] + f",{row % 2}" for row, line in enumerate(ROWS)]},
        "label column 'ill' holds '0', '1', the agreed classes are 'no', 'yes': write ",
        'label.classes = { "0" = "no", "1" = "yes" }',
    ),
    "other categories": (
        {"lines": [line.replace(",0,", ",w,").replace(",1,", ",m,") for line in ROWS]},
        "column 'sex' holds 'w', 'm' (line 2), the agreed categories are '0', '1': write ",
        'columns.sex.categories = { "w" = "0", "m" = "1" }',
    ),
    "a category that means a gap": (
        {"lines": [*ROWS, "40,unknown,210,no"]},
        "column 'sex' holds 'unknown' (line 14)",
        'columns.sex.missing = "unknown"',
    ),
    "another unit": (
        {"lines": [f"{30 + row},1,{20 + row / 10},no" for row in range(12)]},
        "column 'chol' has 20 to 21.1 in 12 of 12 rows (line 2), the agreed range is 60 to 2000 mg/dl: correct it, or ",
        "columns.chol.factor = 10",
    ),
    "a code for a gap": (
        {"lines": [*ROWS, "40,1,-9,no", "41,0,-9,no"]},
        "column 'chol' has -9 in 2 of 14 rows (line 14)",
        'columns.chol.missing = "-9"',
    ),
    "slips": (
        {"lines": [*ROWS, "40,1,5000,no", "41,0,6000,no"]},
        "column 'chol' has 5000 to 6000 in 2 of 14 rows",
        'columns.chol.outside = "gap"',
    ),
    "a text among numbers": (
        {"lines": [*ROWS, "40,1,high,no"]},
        "column 'chol' holds 'high' in line 14, and numbers are agreed on",
        'columns.chol.missing = "high"',
    ),
}


@pytest.mark.parametrize(("file", "said", "line"), REFUSALS.values(), ids=REFUSALS)
def test_what_does_not_fit_is_refused_in_one_line_and_the_line_that_it_names_mends_it(tmp_path, file, said, line):
    with pytest.raises(DataError) as refusal:
        load(tmp_path, **file)
    words = str(refusal.value)
    assert words.startswith(f"{tmp_path}/own.csv: ")
    assert said in words
    assert "\n" not in words
    proposed = re.sub(r'= ("?)(no|yes|0|1|10)\1(?=$|[ ,])', r"= \1...\1", line)  # that only its owner knows
    assert proposed in words
    assert len(load(tmp_path, **file, toml=line + "\n").dataset.train_labels) >= 12


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (
            'columns.cholest.name = "x"',
            "the federation has no such column. Did you mean 'chol'? Agreed: age, sex, chol",
        ),
        ("columns.sex.factor = 2", "factor, offset and outside are for numbers, and this is a category"),
        ('columns.age.categories = { "1" = "2" }', "categories are for categories, and this is a number"),
        ('columns.sex.categories = { "M" = "male" }', "categories name 'male', the agreed ones are '0', '1'"),
        ("columns.age.factor = 0", "factor = 0 would make one number of all"),
        ('columns.age.name = "ill"', "'ill' is the label here, and nobody may learn from it"),
        ('columns.age.absent = true\ncolumns.age.name = "x"', "is absent, and something else is said of it too"),
        ('columns.age.unit = "y"', "columns.age.unit"),
        ("columns.age.factor = nan", "columns.age.factor"),
        ('label.classes = { "0" = "maybe" }', "label '0' means 'maybe' there, the agreed classes are 'no', 'yes'"),
        ('columns.age.name = "years"', "lacks the column 'years' of peer.toml (number, years); not agreed on are age:"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused_in_one_line(tmp_path, toml, said):
    with pytest.raises(CradError) as refusal:
        load(tmp_path, toml=toml + "\n")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_strange_file_is_refused_without_its_words_doing_anything(tmp_path):
    with pytest.raises(DataError) as refusal:
        load(tmp_path, [*ROWS, '40,"\x1b[31m\nred",210,no'])
    assert r"\x1b[31m\nred" in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_too_few_rows_and_no_table_at_all_are_refused(tmp_path):
    with pytest.raises(DataError, match="has 4 rows; a member needs at least 10"):
        load(tmp_path, ROWS[:4])
    with pytest.raises(
        DataError, match=r"the federation agreed on a table: name a \.csv, \.tsv, \.parquet file as data"
    ):
        load(tmp_path, source="images")
    with pytest.raises(DataError, match="2 rows have no label in column 'ill', the first in line 14"):
        load(tmp_path, [*ROWS, "40,1,210,", "41,1,210,NA"])


@EXAMPLES
@given(
    factor=st.floats(0.001, 1000),
    offset=st.floats(-1000, 1000),
    values=st.lists(st.floats(-1e6, 1e6), min_size=12, max_size=12),
    names=st.lists(st.sampled_from(list("ABCDE")), min_size=12, max_size=12),
)
def test_whatever_unit_and_codes_one_has_the_rows_are_the_agreed_ones(tmp_path_factory, factor, offset, values, names):
    folder = tmp_path_factory.mktemp("own")
    schema = {
        "kind": "table",
        "label": "y",
        "columns": [
            {"name": "x", "kind": "number"},
            {"name": "c", "kind": "category", "categories": ["a", "b", "c", "d", "e"]},
        ],
    }
    toml = f"columns.x.factor = {factor!r}\ncolumns.x.offset = {offset!r}\n"
    toml += 'columns.c.categories = { A = "a", B = "b", C = "c", D = "d", E = "e" }\n'
    lines = [f"{value!r},{name},no" for value, name in zip(values, names, strict=True)]
    own = load(folder, lines, header="x,c,y", toml=toml, schema=schema)
    expected = np.array(values) * factor + offset
    np.testing.assert_array_equal(own.dataset.train_samples[:, 0], expected.astype(np.float32))
    assert own.dataset.train_samples[:, 1].tolist() == ["ABCDE".index(name) for name in names]


@EXAMPLES
@given(rows=st.lists(st.tuples(st.floats(width=32, allow_infinity=False), st.integers(0, 2)), min_size=12, max_size=12))
def test_rows_that_are_written_are_read_back_to_the_same_bits(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("written")
    schema = TableSchema.from_plain(
        {
            "kind": "table",
            "label": "y",
            "columns": [
                {"name": "x", "kind": "number"},
                {"name": "c", "kind": "category", "categories": ["a,b", 'say "c"', "d\u00e9"]},
            ],
        }
    )
    samples = np.array(rows, np.float32)
    labels = np.arange(12) % 2
    dataset = replace(schema.empty_dataset(CLASSES), train_samples=samples, train_labels=labels)
    write_table(dataset, np.arange(12), folder / "own.csv", label="y")
    own = schema.load(OwnFile(str(folder / "own.csv")), classes=CLASSES, held_out=0.2, rng=np.random.default_rng(1))
    np.testing.assert_array_equal(own.dataset.train_samples, samples)
    assert own.dataset.train_labels.tolist() == labels.tolist()


# --- the agreement


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


def table_of(identities, **changes: Any) -> dict[str, Any]:
    whole = {**agreement_table(identities), "classes": list(CLASSES), "data": SCHEMA, **changes}
    kept = {key: value for key, value in whole.items() if key not in ("image_shape", "mean", "std") or key in changes}
    kept["members"] = [{**member, "architecture": "mlp"} for member in kept["members"]]
    return kept


def test_an_agreement_about_a_table_is_read_as_it_is_written_and_says_nothing_of_images(identities, tmp_path):
    agreement = make_agreement(table_of(identities))
    path = tmp_path / "federation.toml"
    path.write_text(agreement_to_toml(agreement))
    assert read_agreement(path) == agreement
    assert read_agreement(path).hash == agreement.hash
    assert not {"image_shape", "mean", "std", "augmentation"} & tomllib.loads(path.read_text()).keys()
    assert not {"image_shape", "mean", "std", "augmentation"} & agreement.canonical().keys()
    wider = {**SCHEMA, "columns": [{**SCHEMA["columns"][0], "range": [0, 300]}, *SCHEMA["columns"][1:]]}
    other = make_agreement(table_of(identities, data=wider))
    assert other.hash != agreement.hash
    assert differences(agreement, other) == [
        "data.columns.0.range.0: 10.0 here, 0.0 there",
        "data.columns.0.range.1: 200.0 here, 300.0 there",
    ]


def test_a_copy_has_a_hash_of_its_own_and_equality_does_not_depend_on_who_was_asked(identities):
    agreement = make_agreement(table_of(identities))
    assert agreement.hash == make_agreement(table_of(identities)).hash
    assert agreement.model_copy(update={"seed": 7}).hash == make_agreement(table_of(identities, seed=7)).hash
    assert agreement == make_agreement(table_of(identities)), "one of them has been asked for its hash"


def test_equal_schemas_are_equal_however_numbers_are_written(identities):
    again = {**SCHEMA, "columns": [{**SCHEMA["columns"][0], "range": [10.0, 200.0]}, *SCHEMA["columns"][1:]]}
    assert make_agreement(table_of(identities, data=again)).hash == make_agreement(table_of(identities)).hash


def column(**changes: Any) -> dict[str, Any]:
    return {"kind": "table", "label": "y", "columns": [{"name": "x", "kind": "number", **changes}]}


def many(count: int, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "table",
        "label": "y",
        "columns": [{"name": f"x{n}", "kind": "number", **changes} for n in range(count)],
    }


CATEGORY = {"kind": "category"}
HOSTILE: dict[str, tuple[Any, str]] = {
    "another kind": ({"kind": "song"}, "data: kind = 'song': expected table or text or series or audio"),
    "no kind": ({}, "kind = 'None'"),
    "a kind that is no text": ({"kind": ["table"]}, "expected table"),
    "no label": ({"kind": "table", "columns": SCHEMA["columns"]}, "label"),
    "no columns": ({"kind": "table", "label": "y", "columns": []}, "columns"),
    "10,001 columns": (many(10_001), "columns: 10001 of them, at most 10000"),
    "a million values of a row": (
        many(200, kind="category", categories=[str(n) for n in range(1000)]),
        "a row would become 200400 values, at most 100000",
    ),
    "1,001 categories": (column(**CATEGORY, categories=[str(n) for n in range(1001)]), "categories"),
    "a terminal code in a name": (column(name="a\x1b[31m"), "must be one printable line"),
    "a line break in a category": (column(**CATEGORY, categories=["a\nb"]), "must be one printable line"),
    "text that runs backwards": (column(name="a\u202eb"), "must be one printable line"),
    "a name of 101 letters": (column(name="a" * 101), "name"),
    "a unit of a page": (column(unit="x" * 5000), "unit"),
    "a column twice": ({**many(2), "columns": [many(1)["columns"][0]] * 2}, "'x0' stands there twice"),
    "a category twice": (column(**CATEGORY, categories=["a", "a"]), "a category is named twice"),
    "the label among the columns": (column(name="y"), "nobody may learn from the label"),
    "a range upside down": (column(range=[2, 1]), "expected the lower end first"),
    "a range without end": (column(range=[0, float("inf")]), "range"),
    "a range of one end": (column(range=[0]), "range"),
    "a number with categories": (column(categories=["a"]), "a category has categories, and a number has none"),
    "a category without any": (column(kind="category"), "a category has categories, and a number has none"),
    "a category with a range": (column(**CATEGORY, categories=["a"], range=[0, 1]), "range and unit are for numbers"),
    "an unknown key": (column(code="import os"), "code"),
}


@pytest.mark.parametrize(("schema", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_is_refused_in_one_short_line(identities, schema, said):
    began = time.process_time()
    with pytest.raises(ConfigError) as refusal:
        make_agreement(table_of(identities, data=schema))
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 400
    assert str(refusal.value).isprintable()
    assert time.process_time() - began < 2


def test_images_and_a_table_at_once_are_refused(identities):
    with pytest.raises(ConfigError, match=r"image_shape is for images, and .* this is of kind 'table'"):
        make_agreement(table_of(identities, image_shape=[8, 8, 1]))
    with pytest.raises(ConfigError, match="image_shape: field required, of images"):
        make_agreement({key: value for key, value in table_of(identities).items() if key != "data"})
    with pytest.raises(ConfigError, match="standardize is 'schema', which is for tables"):
        make_agreement(agreement_table(identities, settings={"standardize": "schema"}))
    without = {**SCHEMA, "columns": [{"name": "age", "kind": "number"}]}
    with pytest.raises(ConfigError, match="standardize is 'schema', but column 'age' has no range"):
        make_agreement(table_of(identities, data=without, settings={"standardize": "schema"}))


def test_the_largest_schema_that_may_be_is_weighed_in_a_moment():
    schema = TableSchema.from_plain(many(500, kind="category", categories=[str(n) for n in range(190)]))
    shape = input_shape_of(schema.empty_dataset(CLASSES))
    began = time.process_time()
    for name in ("mlp", "tab-transformer"):
        assert estimate_size(Architecture(name), shape).parameters > 1_000_000
    assert time.process_time() - began < 5


@EXAMPLES
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["kind", "label", "columns", "name", "categories", "range", "x"]), inner)
        ),
        max_leaves=12,
    )
)
def test_any_json_as_a_schema_is_taken_or_refused_in_one_line(identities, value):
    if not isinstance(value, dict):
        return
    for given_schema in (value, {"kind": "table", **value}, {**SCHEMA, **value}):
        refusal = ""
        try:
            assert complete_schema(complete_schema(given_schema)) == complete_schema(given_schema)
        except ValueError as error:
            refusal = str(error)
        assert "\n" not in refusal


# --- a draft from the own data


def draft(folder, **said: str):
    (folder / "own.csv").write_text("\n".join([HEADER, *ROWS]) + "\n")
    options = options_of(make_experiment({"label": "ill", **said}))
    return draft_schema(OwnFile(str(folder / "own.csv")), ReadOptions(table=options))


def test_a_draft_has_columns_categories_codes_and_wide_ranges(tmp_path):
    made = draft(tmp_path, categories="sex", missing="chol=0", ranges="age=0:120")
    assert made.classes == ("no", "yes")
    assert complete_schema(made.agreed["data"])["columns"] == [
        {"name": "age", "kind": "number", "range": [0.0, 120.0]},
        {"name": "sex", "kind": "category", "categories": ["0", "1"]},
        {"name": "chol", "kind": "number", "missing": "0", "range": [100.0, 500.0]},
    ]
    with pytest.raises(ConfigError, match="say which column is the label"):
        draft_schema(OwnFile(str(tmp_path / "own.csv")), ReadOptions())
    with pytest.raises(ConfigError, match="ranges has 'age=1': expected column=low:high, such as age=0:120"):
        draft(tmp_path, ranges="age=1")


@EXAMPLES
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_a_wide_range_holds_everything_and_tells_one_digit(first, second):
    low, high = sorted((first, second))
    bottom, top = wide_range(low, high)
    assert bottom <= low <= high <= top
    assert bottom < top
    for end in (bottom, top):
        assert len(f"{abs(end):.9e}".partition("e")[0].rstrip("0").replace(".", "")) <= 2


def test_values_outside_a_given_range_are_refused_when_a_table_is_read_for_a_simulation(tmp_path):
    with pytest.raises(DataError, match="column 'chol' has 200 in line 2, outside its range: correct it, say that it"):
        draft(tmp_path, ranges="chol=300:400")
