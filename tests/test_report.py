"""The page without a browser: complete, escaped, self-contained, and every number from the records."""

from __future__ import annotations

import json
import math
import re
import shlex
import statistics
from dataclasses import replace
from html import unescape

import pytest

import crad
from crad.analysis.gains import client_gains
from crad.analysis.intervals import t_quantile
from crad.errors import RunError
from crad.report import charts
from crad.report.markup import as_data, as_script
from crad.report.page import report_page
from crad.report.sections import inspector_tab
from crad.runs.run_records import load_run
from tests.conftest import change
from tests.pages import PARTITION, Page, run_of, script_data, summary

HOSTILE = "<script>alert('&\"')</script>"


@pytest.fixture
def without_charts(monkeypatch):
    """As where the extra crad[report] is not installed: hand-made records need no rounds then."""
    monkeypatch.setattr(charts, "charts_available", lambda: False)


@pytest.fixture(scope="module")
def compared(tiny, tmp_path_factory):
    """Two methods with two seeds, really run."""
    folder = tmp_path_factory.mktemp("compared")
    runs = []
    for seed in (1, 2):
        for method in ("local", "crad"):
            settings = {"method": method, "seed": seed, "committee": True, "metrics": True}
            experiment = change(tiny, rounds=2, models=("cnn6",), **settings)
            crad.run(experiment, output=folder / f"{method}-{seed}")
            runs.append(load_run(folder / f"{method}-{seed}"))
    return runs


def page_of(*summaries, **settings):
    return report_page([run_of(one, **settings) for one in summaries])


ALONE_AND_JOINED = (summary("crad", overall=60.0), summary("local", overall=50.0, local=82.0))
PAGES = {"one run": (summary(),), "comparison": ALONE_AND_JOINED}
every_page = pytest.mark.parametrize("summaries", PAGES.values(), ids=PAGES)


@every_page
@pytest.mark.usefixtures("without_charts")
def test_a_page_is_well_formed_and_refers_to_nothing_outside(summaries):
    html = page_of(*summaries)
    assert html.startswith("<!doctype html>")
    page = Page(html)
    assert {"main", "h1", "h2", "table", "nav", "pre", "svg"} <= page.tags
    assert len(page.ids) == len(set(page.ids)), "ids are unique"
    without_namespace = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|url\(|@import", without_namespace)
    assert not re.search(r"<(link|iframe|object|embed|base)\b", html)
    assert set(re.findall(r'\bhref="([^"]*)"', html)) == {
        *(f"#{name}" for name in ("outcome", "tables", "figures", "cost", "inspector", "repeat"))
    }


@every_page
@pytest.mark.usefixtures("without_charts")
def test_a_page_says_what_was_run_on_what(summaries):
    text = Page(page_of(*summaries)).text
    for words in ("cifar10", "2 clients", "dirichlet alpha 0.3", "3 rounds", "preset mini", "Some <fast> CPU (cpu)"):
        assert words in text
    assert "python 3.11, torch 2.13.0" in text


@pytest.mark.usefixtures("without_charts")
def test_without_the_extra_the_page_says_how_to_get_figures_and_draws_the_partition():
    html = page_of(summary())
    assert "pip install '.[report]'" in Page(html).text
    assert {"11", "22", "33", "44"} <= set(re.findall(r">(\d+)</text>", html))
    assert json.loads(script_data(html))["charts"] == {}


@pytest.mark.usefixtures("without_charts")
def test_the_page_of_a_run_shows_its_outcome_and_every_client():
    page = Page(page_of(summary()))
    assert "crad at round 2 (highest validation accuracy)" in page.text
    assert "60.00 %" in page.text
    assert "3.00 MiB sent, per client and round" in page.text
    assert page.table("client") == [["0", "resnet18", "33", "61.25"], ["1", "cnn6@0.125", "77", "58.75"]]


@pytest.mark.usefixtures("without_charts")
def test_every_client_stands_beside_itself_alone():
    page = Page(page_of(*ALONE_AND_JOINED))
    # crad 60 against 50 alone; locally 80 against 82
    assert page.table("client") == [
        ["0", "resnet18", "33", "51.25", "61.25", "+10.00"],
        ["1", "cnn6@0.125", "77", "48.75", "58.75", "+10.00"],
    ]
    assert page.table("Δ global accuracy", column=1) == [
        ["crad", "+10.00", "2 of 2", "+10.00", "+10.00", "-2.00", "0 of 2", "-2.00", "-2.00"]
    ]
    assert "clients that gained 0 of 2 better on one accuracy, worse on neither" in page.text.lower()


@pytest.mark.usefixtures("without_charts")
def test_several_seeds_stand_below_each_other_and_are_paired():
    page = Page(
        page_of(
            *(summary("crad", seed=seed, overall=value) for seed, value in ((1, 60.0), (2, 40.0))),
            *(summary("local", seed=seed, overall=value) for seed, value in ((1, 50.0), (2, 45.0))),
        )
    )
    rows = page.table("seed")
    assert [row[:2] for row in rows] == [["1", "0"], ["1", "1"], ["2", "0"], ["2", "1"]]
    assert [row[-1] for row in rows] == ["+10.00", "+10.00", "-5.00", "-5.00"]
    assert page.table("Δ global accuracy", column=1)[0][:5] == ["crad", "+2.50", "2 of 4", "-5.00", "+10.00"]
    assert "seeds 1, 2" in page.text


@pytest.mark.usefixtures("without_charts")
def test_classes_are_ordered_by_what_clients_hold_and_one_without_test_images_has_no_accuracy():
    page = Page(page_of(*ALONE_AND_JOINED))
    assert page.table("class") == [["dog & <owl>", "66", "9", "-", "-"], ["cat", "44", "7", "65.00", "55.00"]]


@pytest.mark.usefixtures("without_charts")
def test_without_training_alone_the_page_says_how_to_add_it(tmp_path):
    page = page_of(summary("uniform"), path=tmp_path / "my run", temperature=4.0)
    assert "Whether joining helped is still open." in Page(page).text
    first, second, _ = commands_on(page)
    assert first[:4] == ["crad", "run", "--preset", "mini"]
    flags = dict(zip(first[4::2], first[5::2], strict=True))
    assert flags == {
        "--method": "local",
        "--clients": "2",
        "--rounds": "3",
        "--temperature": "4.0",
        "--seed": "1024",
        "--output": "LOCAL",
    }
    assert second == ["crad", "report", str(tmp_path / "my run"), "LOCAL"]


@pytest.mark.usefixtures("without_charts")
def test_a_page_of_training_alone_does_not_speak_of_joining():
    text = Page(page_of(summary("local"))).text
    assert "Nobody joined here." in text
    assert "train the same clients alone" not in text


@pytest.mark.usefixtures("without_charts")
def test_a_live_page_says_how_far_it_is_and_may_ask_its_own_server():
    run = run_of(summary(), num_rounds=2)
    live = report_page([run], is_live=True)
    assert "crad, seed 1024: round 2 of 3" in Page(live).text
    assert "The inspector comes when the run is complete." in Page(live).text
    assert "connect-src 'self'" in live
    still = report_page([run])
    assert "round 2 of 3" not in Page(still).text
    assert "connect-src 'none'" in still


@pytest.mark.usefixtures("without_charts")
def test_partial_participation_is_said():
    assert "2 clients, 1 active" in Page(page_of(summary(active=1))).text


@pytest.mark.usefixtures("without_charts")
def test_alpha_is_only_said_of_a_dirichlet_partition():
    text = Page(page_of(summary(partition="iid"))).text
    assert "2 clients, iid, 3 rounds" in text
    assert "alpha" not in text


@pytest.mark.usefixtures("without_charts")
def test_reconstructions_are_marked():
    assert (
        "msfkd (our reconstruction, no public code) on" in Page(page_of(summary("msfkd", is_reconstruction=True))).text
    )


@pytest.mark.parametrize("key", ["method", "dataset"])
@pytest.mark.usefixtures("without_charts")
def test_hostile_names_stay_text(key):
    html = page_of(summary(**{key: HOSTILE}))
    assert HOSTILE.partition("alert")[0] + "alert" not in html
    assert HOSTILE in Page(html).text


@pytest.mark.usefixtures("without_charts")
def test_dollars_and_braces_in_a_name_do_not_break_the_page():
    assert "$title {body} ${style}" in Page(page_of(summary(dataset="$title {body} ${style}"))).text


def test_data_and_scripts_cannot_end_their_element():
    assert "<" not in as_data({"name": HOSTILE})
    assert json.loads(as_data({"name": HOSTILE})) == {"name": HOSTILE}
    assert as_script("a = '</script><!--'") == "a = '<\\/script><\\!--'"


# --- the commands


def commands_on(html):
    """The commands of a page, as a shell would split them."""
    found = re.findall(r'<pre tabindex="0">(.*?)</pre>', html)
    return [shlex.split(unescape(re.sub(r"</?span>", "", text))) for text in found]


@pytest.mark.usefixtures("without_charts")
def test_the_command_of_a_run_names_whatever_differs_from_its_preset():
    words = commands_on(page_of(summary("uniform")))[-1]
    assert words[:4] == ["crad", "run", "--preset", "mini"]
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    assert flags == {"--method": "uniform", "--clients": "2", "--rounds": "3"}


@pytest.mark.parametrize("name", ["my data; rm -rf x", "it's <b>", HOSTILE])
@pytest.mark.usefixtures("without_charts")
def test_the_command_quotes_names_for_the_shell_and_the_page(name):
    html = page_of(summary(dataset=name))
    words = commands_on(html)[-1]
    assert words[words.index("--dataset") + 1] == name
    assert "<b>" not in html


@pytest.mark.usefixtures("without_charts")
def test_the_command_of_a_comparison_names_all_methods_and_seeds_and_whatever_differs_from_the_preset():
    summaries = [summary(method, seed=seed) for method in ("uniform", "local") for seed in (1, 2)]
    (words,) = commands_on(page_of(*summaries))
    assert words[:4] == ["crad", "compare", "--preset", "mini"]
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    assert flags == {"--methods": "uniform,local", "--seeds": "1,2", "--clients": "2", "--rounds": "3"}


@pytest.mark.usefixtures("without_charts")
def test_runs_that_differ_in_more_than_method_and_seed_are_repeated_one_by_one():
    runs = [run_of(summary("crad"), temperature=4.0), run_of(summary("local"))]
    assert [words[:2] for words in commands_on(report_page(runs))] == [["crad", "run"]] * 2


# --- which runs may stand together

OTHER = {**PARTITION, "counts": [[22, 11], [33, 44]]}
APART = {
    "other data set": (summary("local", dataset="cifar100"), {}, r"differ in their data set \(cifar10 and cifar100\)"),
    "same method on other data": (summary(dataset="cifar100"), {}, "differ in their data set"),
    "other clients": (summary("local", clients=3), {}, r"number of clients \(2 and 3\)"),
    "other partition": (summary("local"), {"partition": OTHER}, "another division of it: report them apart"),
    "twice": (summary("crad"), {}, "are both crad with seed 1024: leave one out"),
    "no common seed": (summary("local", seed=7), {}, "no seed was run with all of crad, local"),
}


@pytest.mark.parametrize(("other", "settings", "words"), APART.values(), ids=APART)
def test_runs_that_cannot_be_compared_are_refused(other, settings, words):
    with pytest.raises(RunError, match=words):
        report_page([run_of(summary("crad")), run_of(other, **settings)])


def test_no_run_at_all_is_refused():
    with pytest.raises(RunError, match="no run to report"):
        report_page([])


@pytest.mark.usefixtures("without_charts")
def test_seeds_that_not_every_method_has_are_left_out_and_named():
    page = Page(page_of(summary("crad", seed=1), summary("local", seed=1, overall=50.0), summary("crad", seed=2)))
    assert "not every method was run with their seed: crad, seed 2." in page.text
    assert "seed 1, on" in page.text
    assert [row[0] for row in page.table("client")] == ["0", "1"]


# --- what joining brought (what it shows: test_verdict.py)


def test_a_client_that_gains_nothing_has_not_gained():
    joined = summary("crad", global_accuracy_per_client=[61.0, 50.0])
    alone = summary("local", global_accuracy_per_client=[60.0, 50.0])
    gain = client_gains([run_of(joined), run_of(alone)])[0]
    assert (gain.metric, gain.values, gain.num_gained) == ("global_accuracy", (1.0, 0.0), 1)


# --- the inspections that fit


def test_crads_inspection_comes_first_and_what_does_not_fit_is_counted(monkeypatch):
    monkeypatch.setattr(inspector_tab, "MAX_CHARACTERS", 100)
    runs = [
        run_of(summary(method), inspection={"classes": ["x" * length]})
        for method, length in (("uniform", 30), ("stage1", 90), ("crad", 20))
    ]
    chosen = inspector_tab.inspector_data(runs)
    assert [one["title"] for one in chosen] == ["crad, seed 1024", "uniform, seed 1024"]
    assert "1 more would not fit here" in inspector_tab.inspector_section(runs, chosen, is_live=False).note


# --- how large a page may become


def large_run():
    """A hundred clients and classes over 300 rounds, everybody at work, with as much to inspect as a survey holds."""
    size, num_rounds, students, images = 100, 300, 10, 3
    names = [f"class number {i}" for i in range(size)]
    score = {"counts": [100] * size, "hits": [37] * size}
    trust = {str(teacher): [0.1234] * size for teacher in range(size - 1)}
    about = {"validation_accuracy": 41.234567, "local_accuracy": 42.345678, "global_accuracy": 43.456789}
    clients = [
        {
            "client": client,
            "architecture": "resnet18",
            "is_active": True,
            "losses": {},
            "notes": {},
            "sent_bytes": 1234567,
            "received_bytes": 1234567,
            **about,
            "validation": score,
            "local": score,
            "global": score,
            "trust": trust,
        }
        for client in range(size)
    ]
    timing = {"seconds": 1.5, "peak_memory_bytes": 2**30}
    rounds = [
        {"round": i, "active": list(range(size)), **about, "payload_bytes": 10**8, "published_bytes": 10**7}
        | {"clients": clients, "timing": timing}
        for i in range(1, num_rounds + 1)
    ]
    per_class = {"private_samples": 500, "test_samples": 100, "global_accuracy": 43.456789}
    outcome = summary(
        clients=size,
        active=size,
        rounds=num_rounds,
        global_accuracy_per_client=[43.456789] * size,
        local_accuracy_per_client=[42.345678] * size,
        architecture_per_client=["resnet18"] * size,
        per_class=[{"class": i, "name": name, **per_class} for i, name in enumerate(names)],
    )
    figures = [[0.01234] * size] * images
    shown = {
        "weights": [[[0.01234] * size] * (size - 1)] * images,
        "states": [["k" * size] * (size - 1)] * images,
        **dict.fromkeys(("consensus", "band", "target", "uniform"), figures),
    }
    survey = {
        "classes": names,
        "round": num_rounds,
        "searched_images": 100,
        "rules": {"success": "Success: so.", "failure": "Failure: so."},
        "cases": [{"kind": "success", "student": 0, "image": 1, "class": 99, "margin": 0.1}],
        "teachers": [
            {"client": i, "architecture": "resnet18", "counts": [12.0] * size, "accuracies": [0.12345] * size}
            for i in range(size)
        ],
        "images": [{"index": i, "label": 99, "png": "A" * 4000} for i in range(images)],
        "probabilities": [[[0.01234] * size] * size] * images,
        "students": [{"client": i, "teachers": [k for k in range(size) if k != i], **shown} for i in range(students)],
    }
    partition = {**PARTITION, "class_names": names, "counts": [[50] * size] * size}
    return replace(run_of(outcome, partition=partition, inspection=survey), rounds=rounds)


def test_the_largest_page_stays_well_under_ten_megabytes():
    assert len(report_page([large_run()]).encode()) < 7_000_000


# --- a real comparison


def numbers_in(record):
    """Every number anywhere in a record."""
    if isinstance(record, dict):
        return [one for value in record.values() for one in numbers_in(value)]
    if isinstance(record, list):
        return [one for value in record for one in numbers_in(value)]
    return [record] if isinstance(record, int | float) and not isinstance(record, bool) else []


def stated_metrics(summaries):
    """Means and deviations over seeds of the metrics beyond accuracy, of models and committees, where all have them."""
    groups = [one["metrics"] for one in summaries], [one["metrics"].get("committee", {}) for one in summaries]
    for group in groups:
        for test_set in {"global", "pooled"}.intersection(*group):
            for name in group[0][test_set]:
                series = [one[test_set][name]["value"] for one in group]
                if None not in series:
                    yield statistics.fmean(series)
                    yield statistics.stdev(series) if len(series) > 1 else 0.0


def stated(runs):
    """What a page may show beside the records: sums, means, spreads and paired differences that it names as such."""
    by_key = {(run.summary["method"], run.summary["seed"]): run.summary for run in runs}
    methods, seeds = (list(dict.fromkeys(parts)) for parts in zip(*by_key, strict=True))
    values: list[float] = [len(methods), 95]  # percent, of the intervals that a caption speaks of
    for metric in ("global_accuracy", "local_accuracy"):
        means = {m: [by_key[m, seed][metric] for seed in seeds] for m in methods}
        values += [statistics.fmean([by_key[m, seed][f"{metric}_spread"] for seed in seeds]) for m in methods]
        if len(methods) == 2:
            clients = {m: [one for seed in seeds for one in by_key[m, seed][f"{metric}_per_client"]] for m in methods}
            pairs = [a - b for a, b in zip(clients["crad"], clients["local"], strict=True)]
            values += [*pairs, statistics.fmean(pairs), sum(value > 0 for value in pairs), len(pairs)]
            means["over"] = [a - b for a, b in zip(means["crad"], means["local"], strict=True)]
            values += interval_of(means["over"], pairs)
        for series in means.values():
            values += [statistics.fmean(series), statistics.stdev(series) if len(seeds) > 1 else 0.0]
    for method in methods:
        own = [by_key[method, seed] for seed in seeds]
        for label in range(len(own[0]["per_class"])):
            values += [
                statistics.fmean(one["per_class"][label][key] for one in own)
                for key in ("global_accuracy", "private_samples")
            ]
        for key in ("round_seconds", "total_seconds"):
            values.append(statistics.fmean(one[key] for one in own))
        payload, published = (
            statistics.fmean(one[f"{key}_bytes_per_client_round"] for one in own) for key in ("payload", "published")
        )
        peak = max(one["peak_memory_bytes"] for one in own)
        values += [one / 2**20 for one in (payload, published, peak, own[0]["hardware"]["memory_bytes"])]
    values += [right_of(run, is_held=is_held) for run in runs for is_held in (True, False)]
    values += [10, *(one for method in methods for one in stated_metrics([by_key[method, seed] for seed in seeds]))]
    values.append(statistics.fmean(guess_of(run) for run in runs))
    return values + [sum(row) for run in runs for row in run.partition["counts"]]


def interval_of(by_seed, pairs):
    """The wider of the intervals over the seeds and over all pairs; its level, in percent."""
    halves = [
        t_quantile(len(some) - 1) * statistics.stdev(some) / math.sqrt(len(some)) if len(some) > 1 else 0.0
        for some in (by_seed, pairs)
    ]
    mean = statistics.fmean(by_seed)
    return [mean - max(halves), mean + max(halves), 95]


def guess_of(run):
    """What naming the commonest class of every client's own samples gets, mean over the clients, in percent."""
    return statistics.fmean(100 * max(row) / sum(row) for row in run.partition["counts"])


def right_of(run, *, is_held):
    """Percent that clients get right of the test images of classes that they hold validation samples of, or not."""
    cells = [
        (hits, count)
        for client in run.rounds[run.summary["best_round"] - 1]["clients"]
        for support, hits, count in zip(
            client["validation"]["counts"], client["global"]["hits"], client["global"]["counts"], strict=True
        )
        if (support > 0) == is_held
    ]
    return 100 * sum(hits for hits, _ in cells) / sum(count for _, count in cells)


def words_in(record):
    """Every text anywhere in a record that has a number in it: a version, a processor, a name."""
    if isinstance(record, dict):
        return [one for value in record.values() for one in words_in(value)]
    if isinstance(record, list):
        return [one for value in record for one in words_in(value)]
    return [record] if isinstance(record, str) and re.search(r"[A-Za-z.].*\d|\d.*[A-Za-z]|\..*\.", record) else []


class Known:
    """Everything that the files of some runs say, and what a page may compute of it."""

    def __init__(self, runs):
        settings = [run.experiment.model_dump(mode="json") for run in runs]
        files = [
            json.loads((run.path / name).read_text()) for run in runs for name in ("summary.json", "partition.json")
        ]
        files += [json.loads(line) for run in runs for line in (run.path / "rounds.jsonl").read_text().splitlines()]
        made = charts.make_charts(runs)  # a caption speaks of its chart, whose rows test_chart_rows.py counts by hand
        rows = [list(chart.rows) for chart in made]
        self.values = {*numbers_in([settings, files, rows]), *stated(runs)}
        self.words = sorted(set(words_in([settings, files])), key=len, reverse=True)

    def numbers_on(self, html):
        """Every number that a reader finds on a page, and those of them that stand nowhere."""
        text = Page(html).text
        for word in self.words:
            text = text.replace(word, " ")
        shown = set(re.findall(r"(?<![\w.@-])[+-]?\d+(?:\.\d+)?(?![\w@])", text))
        digits = {len(number.partition(".")[2]) for number in shown}
        spoken = {f"{value + 0.0:.{d}f}" for d in digits for value in self.values}
        spoken |= {f"-{one}" for one in spoken}  # a rounded -0.00
        return shown, {number for number in shown if number.removeprefix("+") not in spoken}


def test_every_number_on_a_page_stands_in_the_records_or_is_a_stated_mean_or_difference(compared):
    for runs, least in ((compared, 60), (compared[1:2], 30)):
        known, html = Known(runs), report_page(runs)
        shown, unknown = known.numbers_on(html)
        assert len(shown) > least
        assert unknown == set()
        # The net has no hole: a number that is nowhere is found, in a table and in a sentence.
        for place in ("<td>", '<p class="verdict">'):
            assert known.numbers_on(html.replace(place, f"{place}98.7654 ", 1))[1] == {"98.7654"}


def test_the_charts_in_the_page_are_those_of_the_runs_with_all_their_rows(compared):
    embedded = json.loads(script_data(report_page(compared)))["charts"]
    made = charts.make_charts(compared)
    assert [chart.name for chart in made] == list(embedded)
    assert embedded == json.loads(json.dumps({chart.name: chart.spec for chart in made}))
    assert {"accuracy", "gains", "classes", "context", "partition", "trust", "cost", "bytes"} <= set(embedded)


def test_every_chart_has_its_alternative_text_and_its_place(compared):
    html = report_page(compared)
    for chart in charts.make_charts(compared):
        assert html.count(f'data-chart="{chart.name}"') == 1
        assert chart.alt in Page(html).text


def test_the_inspections_in_the_page_are_those_of_the_runs(compared):
    embedded = json.loads(script_data(report_page(compared)))["inspections"]
    runs = [run for run in compared if run.inspection is not None]
    assert [one["run"] for one in embedded] == [str(run.path) for run in runs]
    assert [{**run.inspection} for run in runs] == [
        {key: value for key, value in one.items() if key not in ("title", "run")} for one in embedded
    ]
