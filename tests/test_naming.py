"""What runs are called: variants of a method are never taken for its seeds, in charts, tables, pages and commands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crad.analysis.chart_rows import gain_rows
from crad.analysis.comparable import comparable_runs
from crad.analysis.comparison import compare
from crad.analysis.gains import client_gains
from crad.analysis.groups import by_method, worlds
from crad.analysis.verdict import joining_verdict
from crad.config import Experiment
from crad.errors import RunError
from crad.paper.plan import one_page_of, stored_run
from crad.report.charts.style import method_styles
from crad.report.commands import alone_commands, repeating_commands
from crad.report.page import report_page
from crad.runs.names import display_name, names, title_of
from crad.runs.resolution import resolve_experiment
from tests.records import made_run

CALLED = {
    "crad": {"method": "crad"},
    "crad, balanced loss": {"local_loss": "balanced"},
    "crad, own evidence": {"evidence": "own"},
    "crad, weighted consensus": {"filter": "weighted-consensus"},
    "crad, support filter": {"filter": "support"},
    "crad, mixup": {"matching": "mixup"},
    "crad, priors removed": {"teacher_prior": "remove"},
    "crad, balanced loss, pooled evidence": {"evidence": "pooled", "local_loss": "balanced"},
    "crad-plus": {"method": "crad-plus"},
    "crad-plus, plain loss": {"method": "crad-plus", "local_loss": "plain"},
    "local, balanced loss": {"method": "local", "local_loss": "balanced"},
}


@pytest.mark.parametrize(("name", "settings"), CALLED.items(), ids=CALLED)
def test_a_run_is_called_by_its_method_and_what_was_changed_about_it(name, settings):
    experiment = Experiment(**settings)
    assert display_name(experiment) == name
    assert display_name(resolve_experiment(experiment)) == name, "a stored run says its whole recipe"
    assert title_of(experiment) == f"{name}, seed 1024"


def test_what_is_said_and_changes_nothing_is_not_in_the_name():
    assert display_name(Experiment(filter="median", local_loss="plain", evidence="reported", matching="same")) == "crad"
    assert display_name(Experiment(liars=2, private_counts=1.0)) == "crad", "a world, and no other recipe"


def test_variants_are_no_seeds_of_each_other():
    runs = [made_run(seed=1), made_run(seed=2, local_loss="balanced"), made_run(seed=2), made_run("crad-plus", seed=1)]
    found = by_method(runs)
    assert {name: [run.experiment.seed for run in own] for name, own in found.items()} == {
        "crad": [1, 2],
        "crad, balanced loss": [2],
        "crad-plus": [1],
    }
    assert one_page_of([runs[0], made_run(seed=1, local_loss="balanced")])[1].experiment.local_loss == "balanced"


def test_a_run_of_an_earlier_version_is_the_published_variant():
    now = made_run(seed=2, local_loss="plain", evidence="reported", matching="same")
    assert list(by_method([made_run(seed=1), now])) == ["crad"]
    old = replace(made_run(seed=1), summary={**made_run(seed=1).summary})
    del old.summary["name"]
    (row,) = compare([old.summary, now.summary])
    assert (row.name, row.method, row.seeds) == ("crad", "crad", (1, 2))
    assert len(comparable_runs([old, now])[0]) == 2


def test_other_settings_are_named_where_runs_of_one_name_differ():
    runs = [made_run(temperature=2.0), made_run(), made_run(matching="mixup")]
    assert names(runs) == ["crad (temperature=2.0)", "crad (temperature=3.0)", "crad, mixup"]


def test_lying_peers_are_another_world():
    honest, lying = made_run(clients=4), made_run(clients=4, liars=2)
    assert worlds([honest, lying]) == {"no attack": [honest], "attack noise, attackers 2": [lying]}
    with pytest.raises(RunError, match=r"differ in their attack \(None and noise\)"):
        comparable_runs([honest, made_run("uniform", clients=4, liars=2)])


def test_a_page_of_two_variants_has_both_with_the_same_seed():
    page = report_page([made_run(seed=1), made_run(seed=1, local_loss="balanced", better=3)])
    assert "<title>2 methods compared on digits</title>" in page
    for name in ("crad", "crad, balanced loss"):
        assert f'<th scope="row" class="words">{name}</th>' in page
    assert "crad, seed 1: the share of the say" in page


def test_variants_with_different_seeds_are_not_averaged():
    with pytest.raises(RunError, match="no seed was run with all of crad, crad, balanced loss"):
        report_page([made_run(seed=1), made_run(seed=2, local_loss="balanced")])
    with pytest.raises(RunError, match="missing: crad with seed 2, crad, mixup with seed 1"):
        compare([made_run(seed=1).summary, made_run(seed=2, matching="mixup").summary])
    with pytest.raises(RunError, match="are both crad, mixup with seed 1"):
        comparable_runs([made_run(matching="mixup"), made_run(matching="mixup")])


def test_training_alone_is_the_floor_also_as_a_variant():
    runs = [made_run("local", local_loss="balanced"), made_run(better=2), made_run("crad-plus", better=4)]
    shown = comparable_runs(runs)[0]
    found = joining_verdict(shown)
    assert found is not None
    assert [one.name for one in found.verdicts] == ["crad", "crad-plus"]
    assert list(dict.fromkeys(gain.name for gain in client_gains(shown))) == ["crad", "crad-plus"]
    assert {row["method"] for row in gain_rows(by_method(runs))} == {"crad", "crad-plus"}


def test_commands_say_what_is_not_the_methods_own():
    plus = resolve_experiment(Experiment(preset="demo", method="crad-plus"))
    (command,) = repeating_commands([replace(made_run(), experiment=plus)])
    assert command == "crad run --preset demo --method crad-plus"
    mixed = replace(
        made_run(), experiment=resolve_experiment(Experiment(preset="demo", matching="mixup", local_loss="balanced"))
    )
    assert alone_commands(replace(made_run(), experiment=plus))[0] == (
        "crad run --preset demo --method local --local-loss balanced --seed 1024 --output LOCAL"
    ), "the loss of crad-plus, though its name stands for it"
    assert repeating_commands([mixed]) == ["crad run --preset demo --local-loss balanced --distill-augment mixup"]
    assert alone_commands(mixed)[0] == (
        "crad run --preset demo --method local --local-loss balanced --seed 1024 --output LOCAL"
    )
    both = [
        replace(made_run(), experiment=resolve_experiment(Experiment(preset="demo", method=name)))
        for name in ("crad", "crad-plus")
    ]
    assert repeating_commands(both) == ["crad compare --preset demo --methods crad,crad-plus --seeds 1024"]
    assert len(repeating_commands([both[0], mixed])) == 2


def test_a_stored_run_is_named_by_its_variant(tmp_path):
    run = stored_run(tmp_path, Experiment(preset="demo", evidence="pooled", liars=1, seed=3))
    assert run.path.name.startswith("digits-crad-pooled-evidence-seed3-")
    assert run.label == "digits crad, pooled evidence, noise by 1, seed 3"
    assert stored_run(tmp_path, Experiment(preset="demo")).path.name.startswith("digits-crad-seed1024-")


def test_variants_look_different_from_each_other_and_from_the_method():
    styles = method_styles([*CALLED, "uniform"])
    assert len({(style.colour, style.dash, style.mark) for style in styles}) == len(styles)
