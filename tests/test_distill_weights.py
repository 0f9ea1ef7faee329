"""Lambda by round and by class: how much of its target a student learns, when, and where it lacks samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from crad.training.losses import BatchLabels, Loss, StudentLoss, distillation_loss
from crad.training.sample_weights import distill_weights, lacking_classes, schedule_factor
from tests.conftest import change
from tests.test_aggregation_properties import examples
from tests.test_losses import LABELS, LOGITS, TARGET


def test_lambda_by_round_by_hand():
    """Four rounds: quarters upwards and downwards, all of it in the last or the first."""
    quarters = [0.25, 0.5, 0.75, 1.0]
    assert [schedule_factor("rising", round_index=r, rounds=4) for r in (1, 2, 3, 4)] == quarters
    assert [schedule_factor("falling", round_index=r, rounds=4) for r in (1, 2, 3, 4)] == quarters[::-1]
    assert (
        schedule_factor("falling", round_index=1, rounds=1) == schedule_factor("rising", round_index=1, rounds=1) == 1
    )


def test_lambda_by_class_by_hand():
    """Lambda 0.6 with strength 1/2: targets on a class that is there, that is missing, and halfway."""
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    lacking = lacking_classes(torch.tensor([4, 0]))
    found = distill_weights(target, lacking, lowest=0.6, strength=0.5, temperature=1.0)
    assert found.tolist() == pytest.approx([0.6, 0.8, 0.7])
    # At T = 2 odds of two are odds of four: 4/5 of the target is on the missing class.
    softened = torch.tensor([[1 / 3, 2 / 3]])
    assert distill_weights(softened, lacking, lowest=0.6, strength=1.0, temperature=2.0).item() == pytest.approx(0.92)


def test_the_loss_of_samples_with_their_own_lambda_by_hand():
    """The two samples of test_losses, by hand there: CE 0.105361 and 2.302585, 4 KL 0.575364 and 5.545177."""
    loss = loss_of(LABELS, torch.tensor([0.5, 0.9]))
    wanted = (0.5 * 0.105361 + 0.5 * 0.575364 + 0.1 * 2.302585 + 0.9 * 5.545177) / 2
    assert loss.total.item() == pytest.approx(wanted, abs=1e-5)
    assert loss.cross_entropy.item() == pytest.approx((0.105361 + 2.302585) / 2, abs=1e-5)
    assert loss.distillation.item() == pytest.approx((0.575364 + 5.545177) / 2, abs=1e-5)


def loss_of(labels: torch.Tensor | BatchLabels, share: float | torch.Tensor, **more: torch.Tensor) -> Loss:
    return distillation_loss(LOGITS, labels, TARGET, temperature=2.0, distill_weight=share, **more)


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


@examples(20)
@given(share=st.floats(0, 1), mixed=st.booleans(), known=st.sampled_from([None, (True, False), (True, True)]))
def test_one_lambda_for_all_samples_is_that_of_the_batch(share: float, mixed: bool, known: tuple[bool, ...] | None):
    labels = BatchLabels(
        LABELS,
        torch.tensor([1, 1]) if mixed else None,
        torch.tensor([0.7, 1.0]) if mixed else None,
        None if known is None else torch.tensor(known),
    )
    more = {"log_prior_C": torch.tensor([0.3, 0.7]).log(), "weight_B": torch.tensor([0.5, 1.5])}
    whole, single = loss_of(labels, share, **more), loss_of(labels, torch.full((2,), share), **more)
    for name in ("total", "cross_entropy", "distillation"):
        assert getattr(single, name).item() == pytest.approx(getattr(whole, name).item(), rel=1e-5, abs=1e-6)


def test_a_stretch_is_cut_into_batches_with_its_lambdas_and_trees_get_them_too():
    own = torch.tensor([0.2, 1.0])
    loss = StudentLoss(BatchLabels(LABELS), TARGET, 2.0, own)
    second = loss(LOGITS[1:], slice(1, 2))
    assert second.total.item() == pytest.approx(second.distillation.item()), "lambda 1: labels do not count"
    mass_BC = loss.class_mass(2)
    # The label (1, 0), and the target (1/2, 1/2), which stays that at temperature 1.
    assert mass_BC[0].tolist() == pytest.approx([0.8 + 0.1, 0.1])
    assert mass_BC[1].tolist() == pytest.approx([1.0, 0.0])


def test_an_unlabelled_sample_pulls_at_nothing_through_its_filler():
    logits = LOGITS.clone().requires_grad_()
    labels = BatchLabels(torch.tensor([0, 1]), is_known_B=torch.tensor([True, False]))
    prior_C = torch.tensor([0.0, -1e9])
    distillation_loss(
        logits, labels, TARGET, temperature=2.0, distill_weight=torch.zeros(2), log_prior_C=prior_C
    ).total.backward()
    assert logits.grad is not None
    assert logits.grad[1].tolist() == [0.0, 0.0]


def test_a_share_is_one():
    with pytest.raises(ConfigError, match=r"distill_by_class = 1.5: input should be less than or equal to 1"):
        Experiment(distill_by_class=1.5)
