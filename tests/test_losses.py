"""The student's loss, Eq. 9: (1 - lambda) CE + lambda T^2 KL(target || student), batch mean.

Worked by hand with T = 2. Sample 1 has the logits (ln 9, 0), sample 2 has (0, ln 9); both have label 0.
    softmax(z):      (9/10, 1/10)              (1/10, 9/10)
    softmax(z / 2):  (3/4, 1/4)                (1/4, 3/4)
    target:          (1/2, 1/2)                (1, 0)
    CE:              -ln 0.9 = 0.105361        ln 10 = 2.302585
    KL:              1/2 ln(2/3) + 1/2 ln 2    ln 4 = 1.386294
                     = 0.143841
    4 KL:            0.575364                  5.545177
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crad.inference.engine import TeacherEngine, soft_predictions
from crad.training.losses import distillation_loss, private_loss

EXAMPLES = settings(max_examples=25, derandomize=True, database=None, deadline=None)

LN9 = math.log(9)
LOGITS = torch.tensor([[LN9, 0.0], [0.0, LN9]])
LABELS = torch.tensor([0, 0])
TARGET = torch.tensor([[0.5, 0.5], [1.0, 0.0]])


def loss_of(logits=LOGITS, labels=LABELS, target=TARGET, *, temperature=2.0, distill_weight=0.7):
    return distillation_loss(logits, labels, target, temperature=temperature, distill_weight=distill_weight)


def test_one_sample_by_hand():
    loss = loss_of(LOGITS[:1], LABELS[:1], TARGET[:1])
    assert loss.cross_entropy.item() == pytest.approx(0.105361, abs=1e-6)
    assert loss.distillation.item() == pytest.approx(0.575364, abs=1e-6)
    assert loss.total.item() == pytest.approx(0.3 * 0.105361 + 0.7 * 0.575364, abs=1e-6)  # 0.434363


def test_a_target_of_zero_for_a_class_adds_nothing():
    loss = loss_of(LOGITS[1:], LABELS[1:], TARGET[1:])
    assert loss.cross_entropy.item() == pytest.approx(2.302585, abs=1e-6)
    assert loss.distillation.item() == pytest.approx(5.545177, abs=1e-6)


def test_a_batch_is_averaged_over_its_samples_not_its_classes():
    loss = loss_of()
    assert loss.cross_entropy.item() == pytest.approx((0.105361 + 2.302585) / 2, abs=1e-6)
    assert loss.distillation.item() == pytest.approx((0.575364 + 5.545177) / 2, abs=1e-6)
    assert loss.total.item() == pytest.approx(2.503381, abs=1e-6)


def test_lambda_zero_is_cross_entropy_alone():
    loss = loss_of(distill_weight=0.0)
    assert loss.total.item() == loss.cross_entropy.item() == private_loss(LOGITS, LABELS).total.item()


def test_lambda_one_is_distillation_alone():
    loss = loss_of(distill_weight=1.0)
    assert loss.total.item() == loss.distillation.item() == pytest.approx(3.060271, abs=1e-6)


def test_lambda_one_ignores_the_labels():
    one, other = (loss_of(labels=torch.tensor(labels), distill_weight=1.0) for labels in ([0, 0], [1, 1]))
    assert one.total.item() == other.total.item()


def test_the_labels_are_scored_at_temperature_one():
    assert loss_of(temperature=2.0).cross_entropy.item() == loss_of(temperature=5.0).cross_entropy.item()


def test_a_student_that_equals_its_target_has_no_distillation_loss():
    target = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    assert loss_of(target=target).distillation.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 3.0])
def test_the_divergence_is_multiplied_by_the_squared_temperature(temperature):
    # Logits scaled with T have the same softened probabilities (9/10, 1/10), so only the factor is left.
    target = torch.tensor([[0.5, 0.5]])
    loss = loss_of(LOGITS[:1] * temperature, LABELS[:1], target, temperature=temperature)
    plain = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)  # 0.510826
    assert loss.distillation.item() == pytest.approx(temperature**2 * plain, rel=1e-5)


def test_the_divergence_is_taken_from_the_target_to_the_student_not_back():
    # KL((1, 0) || (1/4, 3/4)) = ln 4; the other direction would be infinite.
    assert math.isfinite(loss_of().distillation.item())


def test_the_gradient_by_hand():
    # (1 - lambda) (softmax(z) - onehot) + lambda T (softmax(z / T) - target), for sample 1:
    # 0.3 (-0.1, 0.1) + 0.7 * 2 (0.25, -0.25) = (0.32, -0.32)
    logits = LOGITS[:1].clone().requires_grad_()
    loss_of(logits, LABELS[:1], TARGET[:1]).total.backward()
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([0.32, -0.32], abs=1e-6)


def test_gradients_reach_the_student_and_never_a_teacher():
    inputs, student, teacher = torch.eye(2, 3), nn.Linear(3, 2), nn.Linear(3, 2)
    (target,) = soft_predictions(
        [lambda: TeacherEngine(device="cpu").prepare(teacher, key="t")], inputs, temperature=2.0
    )
    assert not target.requires_grad
    loss_of(student(inputs), target=target).total.backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_the_private_loss_is_cross_entropy_without_distillation():
    loss = private_loss(LOGITS, LABELS)
    assert loss.total.item() == loss.cross_entropy.item() == pytest.approx(1.203973, abs=1e-6)
    assert loss.distillation.item() == 0.0


rows = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3)


@EXAMPLES
@given(logits=rows, wanted=rows, label=st.integers(0, 2), temperature=st.floats(0.5, 6), weight=st.floats(0, 1))
def test_any_loss_equals_the_equation_in_plain_python(logits, wanted, label, temperature, weight):
    def softmax(values):
        powers = [math.exp(value) for value in values]
        return [power / sum(powers) for power in powers]

    target = softmax(wanted)
    student = softmax([value / temperature for value in logits])
    divergence = sum(t * math.log(t / s) for t, s in zip(target, student, strict=True))
    expected = (1 - weight) * -math.log(softmax(logits)[label]) + weight * temperature**2 * divergence
    loss = loss_of(
        torch.tensor([logits], dtype=torch.float64),
        torch.tensor([label]),
        torch.tensor([target], dtype=torch.float64),
        temperature=temperature,
        distill_weight=weight,
    )
    assert loss.total.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert loss.distillation.item() >= -1e-9
