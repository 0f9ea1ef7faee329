"""The benchmarks compare like with like: the naive loop does what the package does; the page shows what was written."""

from __future__ import annotations

import json

import pytest
import torch

import crad
from benchmarks import page
from benchmarks.aggregation import SORTED
from benchmarks.harness import Section, count_flops, interleave, speedup, write_json
from benchmarks.naive import NaiveFederation, class_loop_target
from crad.device import repeatable
from tests.federation import Federation
from tests.test_aggregation_properties import wide_case


def test_one_naive_round_ends_at_the_weights_and_losses_of_the_package(tiny):
    with repeatable(0, "cpu"):
        naive = NaiveFederation(tiny)
        losses = naive.run_round(1)
    federation = Federation(tiny)
    done = federation.next_round()
    assert losses == pytest.approx([done.learned[k].losses["total"] for k in range(tiny.clients)], rel=1e-3)
    for peer, client in zip(federation.peers(), naive.clients, strict=True):
        theirs = client.model.state_dict()
        for name, tensor in peer.model.state_dict().items():
            torch.testing.assert_close(tensor, theirs[name], rtol=2e-3, atol=2e-4)
        assert peer.statistics().counts == tuple(client.statistics[0].tolist())


@pytest.mark.parametrize("num_classes", [3, 100])
def test_the_slower_aggregations_give_the_same_target(num_classes):
    case = wide_case(3, num_teachers=9, num_samples=4, num_classes=num_classes)
    target = crad.aggregate(case.q, case.counts, case.accuracies)
    torch.testing.assert_close(class_loop_target(case.q, case.counts, case.accuracies), target)
    assert torch.equal(crad.aggregate(case.q, case.counts, case.accuracies, SORTED), target)


def test_variants_take_turns_and_ratios_are_paired():
    calls = []
    seconds = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmup=1)
    assert calls == ["a", "b"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}
    ratio = speedup([2.0, 30.0, 4.0], [1.0, 10.0, 1.0])
    assert (ratio.lower, ratio.median, ratio.upper) == (2.5, 3.0, 3.5)


def test_flops_of_a_matrix_product_are_counted():
    left, right = torch.rand(4, 5), torch.rand(5, 6)
    assert count_flops(lambda: left @ right) == 2 * 4 * 5 * 6


def test_page_renders_what_was_written(tmp_path):
    section = Section("teacher", "Teacher inference", ("model", "ratio"), [["cnn6", "1.50"]], notes=["One thread."])
    write_json(tmp_path / "result.json", hardware="a machine", command="python -m benchmarks", sections=[section])
    text = page.render(json.loads((tmp_path / "result.json").read_text()))
    assert "| cnn6 | 1.50 |" in text
    assert "a machine" in text
    assert "One thread." in text


def test_generated_part_of_the_page_is_replaced_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "performance.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.replace_generated(path, "new")
    assert path.read_text() == f"before\n{page.BEGIN}\n\nnew\n\n{page.END}\nafter\n"
