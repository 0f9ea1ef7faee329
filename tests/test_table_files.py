"""Tables as people save them: every dialect and defect is understood, or refused in one line with the column's name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crad
from crad.data.catalog import load_dataset
from crad.data.checks.table_check import check_table
from crad.data.columns import Column, columns_from_json, columns_to_json
from crad.data.kinds import kind_of_source
from crad.data.readers.packed_texts import SEPARATOR, PackedTexts
from crad.data.readers.table_file import TableOptions, parse_csv, read_raw_table, rows_as_agreed, understand
from crad.errors import CradError, DataError

LABEL = TableOptions(label="ill")


def table(*lines: str, options: TableOptions = LABEL, encoding: str = "utf-8"):
    return understand(parse_csv("\n".join(lines).encode(encoding), where="t.csv"), options)


def columns_of(*lines: str, **options):
    return [(one.name, one.categories) for one in table(*lines, options=TableOptions(label="ill", **options)).columns]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def refused(call) -> str:
    with pytest.raises(CradError) as refusal:
        call()
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


# --- what is understood


def test_numbers_categories_and_gaps_become_a_row_each():
    read = table("age,sex,chol,ill", "63,m,233,no", "?,f,NA,yes", "41.5,m,,no")
    assert read.columns == (Column("age"), Column("sex", ("f", "m")), Column("chol"))
    expected = [[63, 1, 233], [np.nan, 0, np.nan], [41.5, 1, np.nan]]
    np.testing.assert_array_equal(read.rows, np.array(expected, np.float32))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_whatever_divides_the_fields_is_found(delimiter):
    lines = [delimiter.join(row) for row in (["a", "b", "ill"], ["1", "x", "no"], ["2", "y", "yes"])]
    assert columns_of(*lines) == [("a", None), ("b", ("x", "y"))]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_the_first_name(encoding):
    assert [one.name for one in table("größe,ill", "1,no", "2,yes", encoding=encoding).columns] == ["größe"]


def test_decimal_commas_are_numbers_and_so_are_divided_thousands():
    assert table("a;ill", "1,5;no", "2,25;yes").rows.ravel().tolist() == [1.5, 2.25]
    assert table("a;ill", "1,500;no", "2;yes").rows.ravel().tolist() == [1.5, 2.0]
    assert table("a,ill", '"1,500",no', '"2,000,000.5",yes').rows.ravel().tolist() == [1500.0, 2000000.5]


def test_quoted_fields_may_hold_delimiters_quotes_and_line_breaks():
    read = table("a,b,ill", '"x, ""y""\nz",1,no', "plain,2,yes")
    assert read.columns[0] == Column("a", ("plain", 'x, "y"\nz'))


def test_empty_and_constant_columns_are_left_out_and_named():
    read = table("a,b,c,d,ill", "1,,7,7,no", "2,,7,,yes", "3,NA,7,7,no")
    assert [one.name for one in read.columns] == ["a", "d"]  # a constant with gaps still says something
    assert read.left_out == {"b": "empty", "c": "constant: always '7'"}


def test_a_first_column_that_counts_the_rows_is_no_input():
    assert columns_of(",a,ill", "0,5,no", "1,6,yes") == [("a", None)]


def test_codes_can_be_categories_gaps_or_nothing_at_all():
    lines = ("cp,chol,id,ill", "1,0,77,no", "4,233,78,yes", "3,0.0,79,no")
    given = TableOptions("ill", ignore=("id",), categories=("cp",), missing={"chol": "0"})
    read = table(*lines, options=given)
    assert read.columns == (Column("cp", ("1", "3", "4")), Column("chol", missing="0"))
    np.testing.assert_array_equal(read.rows, np.array([[0, np.nan], [2, 233], [1, np.nan]], np.float32))


def test_ten_thousand_columns_are_read():
    names = [f"c{place}" for place in range(10_000)]
    rows = [
        ",".join([*(str((place * row) % 7) for place in range(1, 10_001)), label])
        for row, label in ((1, "a"), (2, "b"))
    ]
    read = table(",".join([*names, "ill"]), *rows)
    assert read.rows.shape[1] + len(read.left_out) == 10_000


def test_a_schema_survives_json():
    schema = (Column("a"), Column("b", ("x", "y"), missing="-9"))
    assert columns_from_json(json.loads(json.dumps(columns_to_json(schema)))) == schema


def test_another_table_is_read_under_the_schema_of_the_first():
    schema = (Column("chol", missing="0"), Column("sex", ("f", "m")))
    other = parse_csv(b"note,sex,chol\nx,m,0\ny,diverse,240\nz,,7\n", where="new.csv")
    expected = [[np.nan, 1], [240, 2], [7, np.nan]]  # two categories: the place after them is the unknown one's
    np.testing.assert_array_equal(rows_as_agreed(other, schema), np.array(expected, np.float32))
    lacking = parse_csv(b"sex,note\nm,x\n", where="new.csv")
    assert "new.csv: lacks column 'chol'; has sex, note" in refused(lambda: rows_as_agreed(lacking, schema))


# --- what is refused


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a,b,a,ill", "1,2,3,no", "1,2,4,yes"], "column 'a' stands there twice, as columns 1 and 3: rename one"),
        (["a,,ill", "1,x,no", "2,y,yes"], "column 2 has no name"),
        (["when,ill", "2020-01-03,no", "2021-05-07,yes"], "column 'when' holds dates such as '2020-01-03'"),
        (["when,ill", "3.1.2020,no", "07.05.2021 10:15,yes"], "column 'when' holds dates"),
        (["a,b,ill", "1,2,no", "1,2"], "line 3 has 2 fields, the header 3"),
        (["a,ill", '"1,no', "2,yes"], "is a quote open?"),
        (["a,ill"], "has no rows below its header"),
        (["just text", "more"], "its header has one field only"),
        (["a,ill", "inf,no", "2,yes"], "column 'a' has 'inf' in line 2, which is no finite number"),
        (["a,ill", "1e60,no", "2,yes"], "column 'a' has '1e60' in line 2"),
        (["a,ill", ",no", ",yes"], "no column is left to learn from"),
    ],
)
def test_defects_are_refused_in_one_line(lines, words):
    said = refused(lambda: table(*lines))
    assert said.startswith("t.csv: ")
    assert words in said


def test_one_slip_among_numbers_is_named_with_its_line():
    said = refused(lambda: table("a,ill", *(f"{value},no" for value in range(19)), "12o,yes"))
    assert "column 'a' holds numbers, but '12o' in line 21" in said
    assert "missing=a=12o" in said


def test_free_text_and_identifiers_are_refused_by_name():
    said = refused(lambda: table("name,ill", *(f"patient {value},no" for value in range(60))))
    assert "column 'name' holds 60 different texts in 60 rows, such as 'patient 0'" in said
    assert "ignore=name" in said


def test_bytes_that_are_no_text_are_refused():
    assert "line 2 is not UTF-8 text" in refused(lambda: parse_csv(b"a,ill\n\xe9,no\n", where="t.csv"))
    assert "holds zero bytes" in refused(lambda: parse_csv(b"a,ill\n\0,no\n", where="t.csv"))
    assert "is empty" in refused(lambda: parse_csv(b"\xef\xbb\xbf \n", where="t.csv"))


def run_of(path: Path, **settings):
    return crad.run(crad.Experiment(dataset=str(path), clients=2, rounds=1, **settings))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "say which column is the label, such as label=ward; the columns are a, b, ill, ward"),
        ({"label": "il"}, "unknown column 'il'"),
        ({"label": "ill", "site": "hospital"}, "unknown column 'hospital'"),
        ({"label": "ill", "site": "ill"}, "column 'ill' is both label and site"),
        ({"label": "ill", "ignore": "c"}, "unknown column 'c'"),
        ({"label": "ill", "missing": "a"}, "missing has 'a': expected column=code"),
        ({"label": "ill", "resize": 16}, "resize is for images"),
        ({"label": "a"}, "label column 'a' has 60 different values in 60 rows"),
        (
            {"label": "ill", "partition": "natural"},
            "the data does not say whose sample it is: name the column with site",
        ),
        ({"label": "ill", "partition": "natural", "site": "ward"}, "site 'lone' holds 1 samples to divide"),
        (
            {"label": "ill", "partition": "natural", "site": "b", "clients": 3},
            "clients is 3, but there are 2 sites (x, y)",
        ),
    ],
)
def test_settings_that_do_not_fit_the_file_are_refused_in_one_line(tmp_path, settings, words):
    lines = [
        f"{row},{'xy'[row % 2]},{['no', 'yes'][row // 2 % 2]},{'lone' if row == 5 else 'ward'}" for row in range(60)
    ]
    path = write(tmp_path / "t.csv", "a,b,ill,ward", *lines)
    said = {"clients": 10 if settings.get("site") == "ward" else 2} | settings
    assert words in refused(lambda: crad.run(crad.Experiment(dataset=str(path), rounds=1, **said)))


def test_one_class_and_rows_without_a_label_are_refused(tmp_path):
    one = write(tmp_path / "one.csv", "a,ill", "1,no", "2,no")
    assert "label column 'ill' has one class only, 'no'" in refused(lambda: run_of(one, label="ill"))
    gap = write(tmp_path / "gap.csv", "a,ill", "1,no", "2,", "3,yes", "4,NA")
    assert "2 rows have no label in column 'ill', the first in line 3" in refused(lambda: run_of(gap, label="ill"))


def test_columns_are_for_tables_alone(tiny_npz):
    assert "label is for tables (.csv, .parquet)" in refused(lambda: run_of(tiny_npz, label="ill"))
    assert "no such file" in refused(lambda: run_of(tiny_npz.parent / "none.csv", label="ill"))


# --- whole files


def test_test_rows_are_a_fifth_of_every_class_of_every_site_and_always_the_same(tmp_path):
    lines = [f"{row},{'ab'[row % 2]},{['no', 'yes'][row // 2 % 2]}" for row in range(80)]
    path = write(tmp_path / "t.csv", "x,ward,ill", *lines)
    first, again = (
        kind_of_source(str(path)).read(str(path), crad.data.kinds.ReadOptions(table=TableOptions("ill", "ward")))
        for _ in range(2)
    )
    assert (len(first.train_labels), len(first.test_labels)) == (64, 16)
    assert np.bincount(first.test_labels).tolist() == [8, 8]
    assert first.train_sites is not None
    assert np.bincount(first.train_sites).tolist() == [32, 32]
    np.testing.assert_array_equal(first.test_samples, again.test_samples)


def test_a_frame_is_read_as_its_file_would_be(tmp_path):
    pandas = pytest.importorskip("pandas")
    lines = [f"{row / 4},{'ab'[row % 2]},{['no', 'yes'][row // 2 % 2]}," for row in range(40)]
    path = write(tmp_path / "t.csv", "x,sex,ill,empty", *lines)
    frame = pandas.read_csv(path)
    frame.loc[3, "x"] = None
    data = crad.Dataset.from_frame(frame, label="ill", test=frame[:8])
    assert [one.name for one in data.columns] == ["x", "sex"]
    assert data.test_samples[:2].tolist() == [[0.0, 0.0], [0.25, 1.0]]
    assert np.isnan(data.test_samples[3, 0])
    assert data.class_names == ("no", "yes")


def test_a_parquet_file_is_the_table_that_its_csv_file_is(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = {"a": [1.0, None, 3.5] * 8, "b": ["x", "y", None] * 8, "n": [7, 8, 9] * 8, "ill": ["no", "yes", "no"] * 8}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(content), path)
    report = check_table(read_raw_table(path), LABEL)
    assert [(one.name, one.holds, one.gaps) for one in report.columns] == [
        ("a", "number", 8),
        ("b", "category", 8),
        ("n", "number", 0),
        ("ill", "label", 0),
    ]
    rows = zip(*content.values(), strict=True)
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    same = write(tmp_path / "t.csv", ",".join(content), *lines)
    read, plain = (load_dataset(str(one), table=LABEL, seed=1) for one in (path, same))
    assert np.array_equal(read.train_samples, plain.train_samples, equal_nan=True)
    assert np.array_equal(read.test_samples, plain.test_samples, equal_nan=True)
    assert read.train_labels.tolist() == plain.train_labels.tolist()
    assert read.columns == plain.columns


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"a,b\n1,2\n"])
def test_a_parquet_file_that_is_none_is_refused_by_its_name(tmp_path, content):
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    said = refused(lambda: check_table(read_raw_table(path), LABEL))
    assert "t.parquet" in said
    assert "\n" not in said


def test_without_pyarrow_a_line_says_what_to_install(tmp_path, monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1")
    assert "reading Parquet needs pyarrow: pip install" in refused(lambda: check_table(read_raw_table(path), LABEL))


def test_check_says_what_was_understood(tmp_path, crad_command):
    lines = [f"{row % 5 + 80 if row % 3 else 0},m,{['no', 'yes'][row % 2]},{'ab'[row % 2]}" for row in range(30)]
    path = write(tmp_path / "t.csv", "chol,sex,ill,ward", *lines)
    code, out, err = crad_command("data", "check", path, "--label", "ill", "--site", "ward")
    assert code == 0
    assert "30 rows, 1 columns to learn from" in out
    assert "classes: no 15, yes 15" in out
    assert "sites: a 15, b 15" in out
    assert "constant: always 'm'" in out
    assert "column 'chol' is 0 in 10 rows and 80 or more in all others" in err
    code, out, err = crad_command("data", "check", path, "--missing", "chol=0", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["columns"][0] == {"name": "chol", "holds": "number", "gaps": 10, "values": "80 to 84, median 82"}
    assert said["warnings"] == ["no column is the label yet: a run needs label, such as label=ward"]
    code, _, err = crad_command("data", "check", path, "--label", "chl")
    assert code == 2
    assert "unknown column 'chl'" in err


@settings(max_examples=50, derandomize=True, database=None, deadline=None)
@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4), max_size=4))
def test_packed_texts_are_the_texts(blocks):
    packed, plain = PackedTexts(), [text for block in blocks for text in block]
    for block in blocks:
        packed.append_block(block)
    assert (len(packed), list(packed), packed[:]) == (len(plain), plain, plain)
    assert [packed[place] for place in range(-len(plain), len(plain))] == plain * 2
    for text in plain:
        assert packed.index(text) == plain.index(text)
    with pytest.raises(IndexError):
        packed[len(plain)]


def test_a_separator_inside_a_text_divides_nothing():
    packed = PackedTexts()
    packed.append_block(["a", f"b{SEPARATOR}c"])
    packed.append_block([""])
    assert list(packed) == ["a", f"b{SEPARATOR}c", ""]


def test_a_table_of_several_blocks_is_read_whole_with_its_lines(monkeypatch):
    rows = [f"{place},{'yes' if place % 3 else 'no'}" for place in range(25)]
    whole = parse_csv("\n".join(["n,ill", *rows]).encode(), where="t.csv")
    monkeypatch.setattr("crad.data.readers.table_file.ROWS_PER_BLOCK", 10)
    packed = parse_csv("\n".join(["n,ill", *rows]).encode(), where="t.csv")
    assert [list(texts) for texts in packed.texts] == [list(texts) for texts in whole.texts]
    assert list(packed.lines) == list(whole.lines) == list(range(2, 27))
    with pytest.raises(DataError, match="line 14 has 3 fields, the header 2"):
        parse_csv("\n".join(["n,ill", *rows[:12], "1,2,3", *rows]).encode(), where="t.csv")
