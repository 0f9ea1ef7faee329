"""Lambda by round: how much of its target a student learns, and when."""

from __future__ import annotations

import pytest

import crad
from crad.training.sample_weights import rising_share
from tests.conftest import change


def test_lambda_by_round_by_hand():
    """Four rounds: quarters upwards, all of it in the last; all of it in the only one."""
    assert [rising_share(round_index=r, rounds=4) for r in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert rising_share(round_index=1, rounds=1) == 1


def test_the_round_says_how_much_is_distilled(shallow):
    """The first of two rounds has half of lambda: the losses are what they were, and their sum is another."""
    whole, half = (
        [client["losses"] for client in crad.run(change(shallow, rounds=2, distill_schedule=one)).rounds[0]["clients"]]
        for one in ("constant", "rising")
    )
    lambdas = [
        (losses["total"] - losses["cross_entropy"]) / (losses["distillation"] - losses["cross_entropy"])
        for losses in (whole[0], half[0])
    ]
    assert lambdas == pytest.approx([0.7, 0.35], abs=1e-4)
