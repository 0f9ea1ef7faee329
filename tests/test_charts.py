"""The charts: valid, labelled, drawn without a complaint at any size, told in words, and saved for a paper."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import platformdirs
import pytest
import vl_convert

from crad.errors import ConfigError, RunError
from crad.federation.attacks import draw_attackers
from crad.methods import METHODS, PAPER_METHODS
from crad.report import charts
from crad.report.charts import vega_lite
from crad.report.charts.chart_files import to_svg
from crad.report.charts.scales import padded_domain, round_domain, round_ticks
from crad.report.charts.style import NAME_LETTERS, STYLES, method_styles, short_names, theme
from tests.conftest import change
from tests.records import made_run

LIE = {"clients": 4, "attack": "noise", "attackers": 1}

LONG = "organisation.department.federated.methods:WEIGHTED_BY_AGE"
HOSTILE = "</script><b>'\"&\\"
ORDER = ["gains", "clients", "accuracy", "classes", "support", "context", "partition", "trust", "cost", "bytes"]
# Titles of the axes (x, y) that a chart must have; numbers say their unit.
AXES = {
    "accuracy": [("round", "accuracy (%)")],
    "gains": [("gain over training alone (points)", "method")],
    "clients": [("accuracy (%)", "client")],
    "classes": [("global accuracy (%)", "class (private samples)")],
    "support": [("place in a client's own order of classes (mean private samples)", "global accuracy (%)")],
    "context": [("class", "client"), ("class", "client")],
    "partition": [("class", "client")],
    "trust": [("class", "teacher")],
    "cost": [("payload (MiB per client and round)", "method"), ("time (seconds per round)", "method")],
    "bytes": [("payload per client so far (MiB)", "global accuracy (%)")],
}


def paper_runs():
    return [
        made_run(method, clients=4, classes=5, rounds=6, eval_every=2, better=number % 3, trusts=method == "crad")
        for number, method in enumerate([*PAPER_METHODS, "local"])
    ]


CASES = {
    "one method, one seed": lambda: [made_run(clients=3, classes=4, rounds=4)],
    "one round, one client, alone": lambda: [made_run("local", clients=1, rounds=1, trusts=False, sent_bytes=0)],
    "all methods": paper_runs,
    "several seeds": lambda: [made_run(method, seed=seed) for method in ("crad", "local") for seed in (1, 2, 3)],
    "names": lambda: [made_run(name, trusts=False) for name in (LONG, f"{LONG}_2", HOSTILE, "x" * 60)],
    "hundred clients, hundred classes": lambda: [
        made_run("crad", clients=100, classes=100, rounds=3),
        made_run("local", clients=100, classes=100, rounds=3, trusts=False, sent_bytes=0),
    ],
}


@pytest.fixture(scope="module")
def made():
    """The charts of a case, made once."""
    known: dict[str, list[charts.ReportChart]] = {}

    def of(case):
        if case not in known:
            known[case] = charts.make_charts(CASES[case]())
        return known[case]

    return of


def chart_named(found, name):
    return next(chart for chart in found if chart.name == name)


def case_with(name):
    """A case that has the chart: what every client reached is shown where nobody trained alone."""
    return "one method, one seed" if name == "clients" else "all methods"


def views(spec):
    """Every view of a specification that has an encoding, layers and panels laid open."""
    inner = [spec, *(part for key in ("layer", "hconcat", "vconcat") for part in spec.get(key, []))]
    inner += [spec["spec"]] if "spec" in spec else []
    return [view for part in inner for view in ([part] if part is spec else views(part)) if "encoding" in view]


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


# --- every chart


@pytest.mark.parametrize("case", CASES)
def test_every_chart_is_told_in_words(case, made):
    found = made(case)
    names = [chart.name for chart in found]
    assert names == [name for name in ORDER if name in names]
    for chart in found:
        assert chart.title
        assert chart.caption.endswith(".")
        assert chart.alt.endswith(".")
        assert re.search(r"\d", chart.alt), chart.alt
        assert chart.spec["description"] == chart.alt
        assert chart.rows


@pytest.mark.parametrize("name", ORDER)
def test_every_chart_is_valid(name, made):
    spec = chart_named(made(case_with(name)), name).spec
    import altair  # late: every worker of pytest imports this file, and one of them runs it

    altair.Chart.from_dict({**spec, "datasets": {}})  # raises where the grammar is broken


@pytest.mark.parametrize("case", CASES)
def test_every_chart_is_drawn_without_a_warning(case, made, capfd):
    for chart in made(case):
        svg = vl_convert.vegalite_to_svg(chart.spec, config=theme(is_dark=True), show_warnings=True)
        ElementTree.fromstring(svg)
        assert not re.search(r"NaN|undefined|Infinity", svg), chart.name
        assert (chart.name, capfd.readouterr()) == (chart.name, ("", ""))


@pytest.mark.parametrize("name", ORDER)
def test_every_axis_has_a_title_with_its_unit(name, made):
    chart = chart_named(made(case_with(name)), name)
    titled = [
        (view["encoding"]["x"]["title"], view["encoding"]["y"]["title"])
        for view in views(chart.spec)
        if {"x", "y"} <= view["encoding"].keys() and "title" in view["encoding"]["y"]
        if "value" not in view["encoding"]["x"]  # the ground of a row goes from edge to edge
    ]
    assert set(titled) == set(AXES[name])
    shown = texts(to_svg(chart))
    for x, y in AXES[name]:
        assert shown.count(x) >= 1
        assert shown.count(y) >= 1


@pytest.mark.parametrize("case", CASES)
def test_a_chart_loads_nothing_and_holds_its_data(case, made):
    for chart in made(case):
        assert '"url"' not in json.dumps(chart.spec)
        assert chart.spec["datasets"]["rows"]
        named = set(re.findall(r'"data": \{"name": "(\w+)"\}', json.dumps(chart.spec)))
        assert named == {name for name, rows in chart.spec["datasets"].items() if rows}


def test_the_same_records_give_the_same_charts():
    assert charts.make_charts(paper_runs()) == charts.make_charts(paper_runs())


def test_numbers_in_a_chart_are_its_rows(made):
    for chart in made("all methods"):
        rows = chart.spec["datasets"]["rows"]
        assert sorted(map(str, rows)) == sorted(str(row) for row in chart.rows if row in rows)
        assert len(rows) in (len(chart.rows), sum(row.get("payload_bytes", 0) > 0 for row in chart.rows))


def test_no_colour_of_text_or_background_is_fixed(made):
    for chart in made("all methods"):
        assert chart.spec["background"] == "transparent"
        assert "olor" not in json.dumps(chart.spec["config"])
        for is_dark in (False, True):
            svg = vl_convert.vegalite_to_svg(chart.spec, config=theme(is_dark=is_dark))
            assert (theme(is_dark=is_dark)["axis"]["labelColor"] in svg) is True
            assert theme(is_dark=not is_dark)["axis"]["gridColor"] not in svg


# --- which charts there are


def test_a_single_run_that_exchanges_nothing_has_no_gains_trust_or_bytes(made):
    names = [chart.name for chart in made("one round, one client, alone")]
    assert names == ["clients", "accuracy", "classes", "support", "context", "partition", "cost"]


def test_all_methods_have_all_charts(made):
    assert [chart.name for chart in made("all methods")] == [name for name in ORDER if name != "clients"]


def test_without_a_tested_round_there_is_no_chart():
    run = made_run()
    rounds = [{**record, "global_accuracy": None, "local_accuracy": None} for record in run.rounds]
    assert charts.make_charts([replace(run, rounds=rounds)]) == []
    assert charts.make_charts([]) == []


def test_two_data_sets_have_charts_of_their_own():
    found = charts.make_charts([made_run(), made_run(dataset="my data/x.npz")])
    names = [chart.name for chart in found]
    assert len(set(names)) == len(names)
    assert "accuracy-digits" in names
    assert "accuracy-my-data-x.npz" in names
    assert {len({row["method"] for row in chart.rows}) for chart in found if "method" in chart.rows[0]} == {1}


def test_charts_without_their_libraries_say_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not charts.charts_available()
    with pytest.raises(ConfigError, match=re.escape("pip install '.[report]'")):
        charts.make_charts([made_run()])


def test_making_charts_imports_no_library_that_draws():
    code = (
        "import sys; from tests.records import made_run; from crad.report import charts\n"
        "assert charts.make_charts([made_run()])\nprint({'altair', 'vl_convert', 'pandas'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stderr


# --- Altair's words


def a_figure(words):
    """The same figure in Altair and in our own words: layers, panels, predicates, choices, expressions."""
    rows, zero = words.NamedData(name="rows"), words.NamedData(name="zero")
    picked = words.selection_point(name="picked", fields=["m"], bind="legend")
    chosen = words.param(name="chosen", value=1, bind=words.binding_range(min=0, max=9, step=1, name="chosen "))
    faint = words.when(picked).then(words.value(1)).otherwise(words.value(0.1))
    ink = words.when(words.datum["x"] > 0.5).then(words.value("red")).otherwise(words.value("black"))
    x = words.X("x:Q", title="x", scale=words.Scale(zero=False), axis=words.Axis(tickCount=3))
    hints = [words.Tooltip("m:N", title="m"), words.Tooltip("x:Q", title="x", format=".2f")]
    base = words.Chart(rows).encode(x=x, color=words.Color("m:N", legend=words.Legend(orient="bottom")))
    line = base.mark_line(clip=True).encode(y="y:Q", opacity=faint).properties(name="line").add_params(picked)
    marks = base.mark_point().encode(y="y:Q", tooltip=hints, color=ink)
    marks = marks.transform_filter(words.FieldOneOfPredicate(field="x", oneOf=[1, 2]))
    level = words.Chart(zero).mark_rule().encode(y=words.Y("low:Q"), y2="high:Q")
    cells = words.Chart(rows).mark_rect().encode(x="m:N", y="o:O").properties(width=90, height=80).add_params(chosen)
    cells = cells.transform_calculate(twice="datum.x * 2").transform_flatten(["ys"], as_=["y"])
    numbers = words.Chart(rows).mark_text().encode(text="x:Q")
    same_data = words.layer(line, marks).transform_filter("datum.x > chosen").properties(width=200, height=100)
    other_data = (words.layer(cells, numbers) + level).properties(title=words.TitleParams(text="t", frame="group"))
    panels = words.hconcat(same_data, other_data, spacing=7).resolve_scale(color="independent")
    return words.vconcat(panels, base.mark_bar().encode(y="y:Q"), spacing=9).configure(axis={"labelFontSize": 9})


def drawn_from(spec):
    rows = [{"m": name, "o": k, "x": k / 2, "y": k * k, "ys": [k, 2]} for k in range(6) for name in "ab"]
    data = {"rows": rows, "zero": [{"low": 1, "high": 3}]}
    svg = vl_convert.vegalite_to_svg({**spec, "datasets": data}, show_warnings=True)
    return re.sub(r"clip\d+|\bline(_\d)?_", "", svg)  # numbered anew for every drawing; Altair counts panels in names


def test_our_words_draw_what_altairs_draw():
    import altair

    ours, altairs = (a_figure(words).to_dict() for words in (vega_lite, altair))
    assert drawn_from(ours) == drawn_from(altairs)
    ours, altairs = ({one["name"]: one for one in spec["params"]} for spec in (ours, altairs))
    assert ours.pop("picked") | {"views": []} == altairs.pop("picked") | {"views": []}
    assert ours == altairs


# --- what is seen


def test_the_alternative_text_says_where_every_method_ends(made):
    text = chart_named(made("all methods"), "accuracy").alt
    runs = {run.experiment.method: run for run in paper_runs()}
    for method, run in runs.items():
        assert f"{method} ends at {run.summary['last_global_accuracy']:.1f} %" in text


def marks_of(chart):
    return {view["mark"]["type"] for view in views(chart.spec)}


def test_classes_are_names_so_no_line_joins_them(made):
    for case in ("one method, one seed", "several seeds", "all methods"):
        assert "line" not in marks_of(chart_named(made(case), "classes"))
        assert "point" in marks_of(chart_named(made(case), "classes"))
    assert "line" in marks_of(chart_named(made("all methods"), "accuracy"))


def test_few_clients_and_methods_have_a_row_per_client_and_others_a_tick_each(made):
    few, many = (chart_named(made(case), "gains") for case in ("several seeds", "all methods"))
    assert {"all clients", "client 0", "client 1"} <= set(texts(to_svg(few)))
    assert "tick" in marks_of(many)
    assert "tick" not in marks_of(few)
    assert [row["seeds"] for row in few.spec["datasets"]["means"]] == [3, 3]


def test_both_panels_of_gains_have_one_axis_that_holds_zero(made):
    for case in ("several seeds", "all methods"):
        domains = {
            tuple(view["encoding"]["x"]["scale"]["domain"])
            for view in views(chart_named(made(case), "gains").spec)
            if "scale" in view["encoding"]["x"]
        }
        ((low, high),) = domains
        assert low < 0 < high


def test_attackers_are_named_in_the_chart_of_clients():
    run = made_run(clients=3, attack="noise", attackers=1)
    run = replace(run, summary={**run.summary, "attackers": [2]})
    shown = texts(to_svg(chart_named(charts.make_charts([run]), "clients")))
    assert "client 2, lies" in shown
    assert "client 1" in shown


# --- axes of runs that have hardly begun


@pytest.mark.parametrize(
    ("last", "planned", "domain", "ticks"),
    [
        (1, 1, [0.5, 1.5], [1]),  # never an axis from 0 to 1 round
        (1, 300, [0.5, 10.5], list(range(1, 11))),
        (4, 6, [0.5, 6.5], list(range(1, 7))),
        (12, 300, [0, 20], [0, 5, 10, 15, 20]),
        (170, 300, [0, 200], [0, 50, 100, 150, 200]),
        (300, 300, [0, 300], [0, 50, 100, 150, 200, 250, 300]),
        (30, 30, [0, 30], [0, 5, 10, 15, 20, 25, 30]),
    ],
)
def test_an_axis_of_rounds_shows_where_the_run_is_and_grows_with_it(last, planned, domain, ticks):
    assert round_domain(last, planned) == domain
    assert round_ticks(domain) == ticks


@pytest.mark.parametrize("values", [[50.0], [0.0, 0.0], [100.0], [99.0, 100.0], [0.0, 100.0], [41.0, 73.0]])
def test_an_axis_of_percent_never_collapses_and_hardly_leaves_what_is_possible(values):
    low, high = padded_domain(values, least=10, bounds=(0, 100))
    assert low <= min(values) <= max(values) <= high
    assert high - low >= 9.99
    assert low >= -2.01
    assert high <= 102.01


def test_a_live_run_with_one_result_has_axes_in_percent_and_whole_rounds():
    run = made_run(clients=3, rounds=300)
    begun = replace(run, rounds=run.rounds[:1])
    chart = chart_named(charts.make_charts([begun]), "accuracy")
    scales = [(view["encoding"]["x"]["scale"], view["encoding"]["y"]["scale"]) for view in views(chart.spec)]
    for x, y in scales:
        assert x["domain"] == [0.5, 10.5]
        assert y["domain"][1] - y["domain"][0] == pytest.approx(10)
    shown = texts(to_svg(chart))
    assert {"1", "2", "10"} <= set(shown)
    assert "0.5" not in shown


def test_a_band_is_drawn_for_several_seeds_only(made):
    def has_band(case):
        return "area" in [view["mark"]["type"] for view in views(chart_named(made(case), "accuracy").spec)]

    assert has_band("several seeds")
    assert not has_band("one method, one seed")


def test_a_click_in_the_legend_picks_a_method(made):
    for name in ("accuracy", "classes", "support", "bytes"):
        (picked,) = chart_named(made("all methods"), name).spec["params"]
        assert picked["bind"] == "legend"
        assert picked["select"]["fields"] == ["method"]


def test_student_and_round_can_be_chosen_and_the_last_round_is_shown_at_first():
    chart = chart_named(charts.make_charts([made_run(clients=3, rounds=30, eval_every=7)]), "trust")
    student, shown = chart.spec["params"]
    assert student["bind"]["options"] == [0, 1, 2]
    assert (shown["bind"]["min"], shown["bind"]["max"], shown["bind"]["step"], shown["value"]) == (3, 30, 3, 30)
    assert {row["round"] for row in chart.rows} == set(range(3, 31, 3))
    assert "student 0 after round 30" in texts(to_svg(chart))


def test_every_built_in_method_of_the_paper_has_a_look_of_its_own():
    looks = [(style.colour, style.dash, style.mark) for style in STYLES.values()]
    assert len(set(looks)) == len(looks)
    assert set(PAPER_METHODS) <= set(STYLES)
    assert set(STYLES) <= set(METHODS)
    colours = [STYLES[method].colour for method in PAPER_METHODS]
    assert len(set(colours)) == len(colours)
    cues = [(style.dash, style.mark) for style in STYLES.values()]
    assert len(set(cues)) == len(cues), "colour alone tells two methods apart"


def test_a_method_looks_the_same_whoever_stands_beside_it():
    assert method_styles(["crad"])[0] == method_styles(["mine", "local", "crad"])[2] == STYLES["crad"]


def test_other_methods_get_colours_that_are_free():
    methods = [*PAPER_METHODS, "mine", "yours", "lcb"]
    colours = [style.colour for style in method_styles(methods)]
    assert len(set(colours)) == len(colours)


def test_names_are_cut_to_fit_and_stay_apart():
    methods = ["crad", LONG, f"{LONG}_2", "y" * 50 + "1" * 12, "y" * 50 + "1" * 13]
    names = short_names(methods)
    assert names["crad"] == "crad"
    assert names[LONG] == "WEIGHTED_BY_AGE"
    assert max(map(len, names.values())) <= NAME_LETTERS
    assert len(set(names.values())) == len(methods)


def test_cut_names_stand_in_the_picture_and_whole_ones_in_the_data(made):
    chart = chart_named(made("names"), "cost")
    shown = texts(to_svg(chart))
    assert "WEIGHTED_BY_AGE" in shown
    assert LONG not in shown
    assert LONG in {row["method"] for row in chart.rows}


@pytest.mark.parametrize("name", ["context", "partition", "trust", "classes", "support"])
def test_the_labels_of_a_hundred_clients_and_classes_do_not_overlap(name, made):
    svg = to_svg(chart_named(made("hundred clients, hundred classes"), name))
    root = ElementTree.fromstring(svg)
    seen = 0
    for group in (element for element in root.iter() if "role-axis-label" in element.attrib.get("class", "")):
        places = [
            tuple(map(float, re.findall(r"-?[\d.]+", text.attrib["transform"])[:2]))
            for text in group
            if text.attrib.get("opacity") != "0"
        ]
        steps = [abs(b[0] - a[0]) + abs(b[1] - a[1]) for a, b in pairwise(places)]
        assert min(steps, default=99) >= 11, f"labels {min(steps)} pixels apart"
        seen += len(places)
    assert seen >= 20


@pytest.mark.parametrize("name", ["context", "partition", "trust", "classes"])
def test_ten_classes_are_all_named(name):
    run = made_run(clients=10, classes=10)
    shown = texts(to_svg(chart_named(charts.make_charts([run]), name)))
    assert all(any(text.startswith(f"class {label}") for text in shown) for label in range(10))


def test_an_axis_of_bytes_far_apart_is_logarithmic_and_says_so():
    near = [made_run("crad", sent_bytes=2000), made_run("uniform", sent_bytes=1000)]
    far = [made_run("crad", sent_bytes=2_000_000), made_run("fedmd", sent_bytes=1000, trusts=False)]
    titles = [texts(to_svg(chart_named(charts.make_charts(runs), "bytes"))) for runs in (near, far)]
    assert "payload per client so far (MiB)" in titles[0]
    assert "payload per client so far (MiB, log scale)" in titles[1]


# --- files


def test_charts_are_saved_one_column_wide_with_the_right_magic(tmp_path, made):
    chart = chart_named(made("one method, one seed"), "accuracy")
    pdf, svg, png = charts.save_chart(chart, tmp_path / "new" / "figures")
    assert [path.name for path in (pdf, svg, png)] == ["accuracy.pdf", "accuracy.svg", "accuracy.png"]
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert re.match(r'<svg[^>]* width="3.4in" height="\d', svg.read_text())
    assert ElementTree.fromstring(svg.read_text()).attrib["viewBox"]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    (width,) = struct.unpack(">I", png.read_bytes()[16:20])
    assert width == pytest.approx(3.4 * 300, abs=2)
    box = re.search(rb"/MediaBox ?\[0 0 ([\d.]+)", pdf.read_bytes())
    assert box is not None
    assert float(box[1]) == pytest.approx(3.4 * 72, abs=1)


def test_a_saved_chart_stands_on_white(tmp_path, made):
    (path,) = charts.save_chart(chart_named(made("one method, one seed"), "cost"), tmp_path, ["svg"])
    assert re.search(r'<rect[^>]*fill="white"', path.read_text())


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path, made):
    with pytest.raises(ConfigError, match=r"unknown format of a chart 'pgn'\. Did you mean 'png'"):
        charts.save_chart(made("one method, one seed")[0], tmp_path / "figures", ["pdf", "pgn"])
    assert not (tmp_path / "figures").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, made):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write charts to .*file.*choose another folder"):
        charts.save_chart(made("one method, one seed")[0], tmp_path / "file" / "figures", ["svg"])


# --- the script of a page


@pytest.fixture
def bundles(monkeypatch, tmp_path):
    """A cache of our own and a bundler that counts."""
    made: list[str] = []

    def bundle():
        made.append("x")
        return "window.vegaEmbed = '</script>ü';"

    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    return made


def test_the_script_is_made_once_and_kept(bundles, tmp_path):
    first = charts.javascript()
    assert charts.javascript() == first == r"window.vegaEmbed = '<\/script>ü';"
    assert len(bundles) == 1
    assert [path.suffix for path in (tmp_path / "cache" / "crad").iterdir()] == [".js"]  # nothing half-written beside


def test_the_script_of_another_version_is_not_used(bundles, monkeypatch):
    charts.javascript()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99.0")
    charts.javascript()
    assert len(bundles) == 2


def test_without_a_writable_cache_the_script_is_made_every_time(bundles, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert charts.javascript() == charts.javascript()
    assert len(bundles) == 2


def test_the_real_script_draws_and_loads_nothing():
    script = vl_convert.javascript_bundle()
    assert "vegaEmbed" in script
    assert len(script) < 3_000_000


def test_a_curve_of_one_point_is_no_chart_once_the_runs_are_over():
    once = made_run(rounds=4, eval_every=4)
    names = [chart.name for chart in charts.make_charts([once])]
    assert "accuracy" not in names
    assert "classes" in names or "support" in names, "what was tested once is shown otherwise"
    running = replace(once, experiment=change(once.experiment, rounds=8))
    assert "accuracy" in [chart.name for chart in charts.make_charts([running])], "it goes on"
    assert "accuracy" in [chart.name for chart in charts.make_charts([made_run(rounds=1)])]


def test_clients_stand_in_their_order_whoever_attacks_with_the_first_seed():
    seeds = [seed for seed in range(1, 9) if 0 in draw_attackers(made_run(seed=seed, **LIE).experiment)][:1]
    seeds += [seed for seed in range(1, 9) if 0 not in draw_attackers(made_run(seed=seed, **LIE).experiment)][:1]
    runs = [made_run("local", seed=seed, clients=4) for seed in seeds] + [made_run(seed=seed, **LIE) for seed in seeds]
    (chart,) = [chart for chart in charts.make_charts(runs) if chart.name == "gains"]
    clients = list(dict.fromkeys(row["who"] for row in chart.rows))
    assert clients == sorted(clients)
    assert clients[0].startswith("client 0")
