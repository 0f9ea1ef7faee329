"""What is particular to each compared method, against hand-worked numbers and slow readings of its definition."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crad.data.contact_sheet import GAP, contact_sheet
from crad.methods.dfml import Dfml, alpha_at, others_mean
from crad.methods.fedgd import Critic, FedGd, criticise, loss_parts
from crad.methods.fedmd import FedMd, consensus
from crad.methods.fedmkd import pooled, two_teacher_loss
from crad.methods.msfkd import entropy, plurality, select
from crad.models.generator import LATENT, Generator
from crad.training.batch_statistics import watched_statistics
from crad.training.clipping import Clipper
from crad.training.digest import absolute_difference, digest, logits_on, restore_optimizer, store_optimizer
from crad.training.losses import log_shares, private_cross_entropy

EXAMPLES = settings(max_examples=40, derandomize=True, database=None, deadline=None)


# --- FedMD


def test_the_consensus_is_the_plain_mean_of_raw_logits():
    logits = [torch.tensor([[2.0, -4.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[4.0, 0.0]])]
    assert consensus(logits).tolist() == [[2.0, -1.0]]


def test_the_digest_loss_is_the_mean_absolute_difference():
    """|2-1| + |0-3| + |-1+1| + |4-0| = 8 over four values."""
    logits, target = torch.tensor([[2.0, 0.0], [-1.0, 4.0]]), torch.tensor([[1.0, 3.0], [-1.0, 0.0]])
    assert absolute_difference(logits, target).item() == 2.0


def test_a_digest_draws_the_model_to_the_targets_and_sees_every_image_once():
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.randn(9, 1, 2, 2)
    target, seen = torch.randn(9, 2), []

    def loss_of(logits, wanted):
        seen.extend(wanted[:, 0].tolist())
        return absolute_difference(logits, wanted)

    before = absolute_difference(logits_on(model, inputs), target)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(30):
        seen.clear()
        digest(
            model,
            optimizer,
            inputs,
            target,
            loss_of=loss_of,
            batch_size=4,
            clipper=Clipper(5.0),
            seed=1,
            purpose=("digest", epoch),
        )
        # Batches of 4, 4 and 1: the last one is dropped, the order is another each time.
        assert len(seen) == len(set(seen)) == 8
    assert absolute_difference(logits_on(model, inputs), target) < 0.7 * before


def test_an_optimiser_goes_on_where_it_was_stored():
    """Two steps in a row equal a step, storing, restoring into a new optimiser, and a step."""
    torch.manual_seed(0)
    inputs, ends = torch.randn(5, 3), []
    for is_interrupted in (False, True):
        torch.manual_seed(1)
        model, memory = nn.Linear(3, 2), {"other": torch.zeros(1)}
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(2):
            if is_interrupted:
                optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
                restore_optimizer(memory, "digest", model, optimizer)
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
            store_optimizer(memory, "digest", model, optimizer)
        ends.append(model.weight.detach().clone())
    assert torch.equal(*ends)


# --- MSFKD

# Four clients, three images, two classes. Entropy falls with the distance from 1/2.
#   image 0: 0.9, 0.8, 0.6 vote 0, one votes 1 (0.3): plurality 0. Surer half of all four: |p - 1/2| = .4 .3 .1 .2;
#            the lower median entropy is the second surest's, so 0.9 and 0.8 stay: target (0.85, 0.15).
#   image 1: 0.6, 0.55, 0.7 vote 0, one votes 1 surely (0.01): the surer half is the third and the fourth; only the
#            third votes for the plurality: target (0.7, 0.3).
#   image 2: 0.45, 0.4, 0.95, 0.48: plurality 1 by three. The surer half is the third, which votes 0, and the second:
#            target (0.4, 0.6).
HAND_Q = torch.tensor([[0.9, 0.6, 0.45], [0.8, 0.55, 0.4], [0.6, 0.7, 0.95], [0.3, 0.01, 0.48]])
HAND_KBC = torch.stack([HAND_Q, 1 - HAND_Q], dim=2)


def test_selection_by_hand():
    chosen = select(HAND_KBC, keep_fraction=1.0)
    assert chosen.is_teacher_KB.T.tolist() == [
        [True, True, False, False],
        [False, False, True, False],
        [False, True, False, False],
    ]
    assert chosen.target_BC.numpy() == pytest.approx(np.array([[0.85, 0.15], [0.7, 0.3], [0.4, 0.6]]), abs=1e-6)
    assert chosen.kept.tolist() == [0, 1, 2]
    assert select(HAND_KBC, keep_fraction=0.67).kept.tolist() == [0, 1]
    assert select(HAND_KBC, keep_fraction=0.3).kept.tolist() == [0]


def test_where_no_sure_client_votes_for_the_plurality_all_that_do_are_chosen():
    """Two hardly sure clients vote 0, and one surely votes 1: the median is one of the two, so make both less sure."""
    q = torch.tensor([0.52, 0.53, 0.54, 0.01, 0.02])  # plurality 0 with three votes; the sure half are 0.01, 0.02, 0.54
    chosen = select(torch.stack([q, 1 - q], dim=1)[:, None, :], keep_fraction=1.0)
    assert chosen.is_teacher_KB[:, 0].tolist() == [False, False, True, False, False]
    q = torch.tensor([0.52, 0.52, 0.01, 0.99])  # 0 has three votes with 0.99 sure
    chosen = select(torch.stack([q, 1 - q], dim=1)[:, None, :], keep_fraction=1.0)
    assert chosen.is_teacher_KB[:, 0].tolist() == [False, False, False, True]
    q = torch.tensor([[0.4, 0.35, 0.25], [0.4, 0.35, 0.25], [0.02, 0.97, 0.01], [0.01, 0.01, 0.98]])
    chosen = select(q[:, None, :], keep_fraction=1.0)  # plurality 0 by two; both sure ones vote for others
    assert chosen.is_teacher_KB[:, 0].tolist() == [True, True, False, False]
    assert chosen.target_BC[0].tolist() == pytest.approx([0.4, 0.35, 0.25])


def test_entropy_by_hand():
    assert entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist() == pytest.approx([math.log(2), 0.0])


TIED = [[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1], [0.1, 0.7, 0.2], [0.35, 0.05, 0.6]]
TIED_KBC = torch.tensor(TIED)[:, None]


def test_a_tied_vote_goes_to_the_lowest_label_or_to_the_one_of_the_highest_mean_probability():
    """Two votes for 0, two for 1, one for 2; mean probabilities 0.33, 0.45 and 0.22. Voters of 0 are the least sure."""
    votes = TIED_KBC.argmax(dim=2)
    assert plurality(TIED_KBC, votes).tolist() == [0]
    assert plurality(TIED_KBC, votes, ties="probability").tolist() == [1]
    assert select(TIED_KBC, keep_fraction=1.0).is_teacher_KB[:, 0].tolist() == [True, False, True, False, False]
    chosen = select(TIED_KBC, keep_fraction=1.0, ties="probability")
    assert chosen.is_teacher_KB[:, 0].tolist() == [False, True, False, True, False]
    assert chosen.target_BC[0].tolist() == pytest.approx([0.1, 0.75, 0.15])


def test_a_label_without_a_tied_vote_never_wins_by_its_probability():
    """0 and 1 have two votes each, hardly sure; the fifth votes 2, which has the highest mean probability."""
    q_KC = [[0.4, 0.3, 0.3], [0.4, 0.2, 0.39], [0.2, 0.41, 0.39], [0.1, 0.5, 0.4], [0.0, 0.0, 1.0]]
    q_KBC = torch.tensor(q_KC)[:, None]
    assert q_KBC.mean(dim=0).argmax().item() == 2
    assert plurality(q_KBC, q_KBC.argmax(dim=2), ties="probability").tolist() == [1]


def test_of_the_same_mean_probability_the_lowest_label_wins_too():
    q_KBC = torch.tensor([[[0.25, 0.75]], [[0.75, 0.25]]])
    assert plurality(q_KBC, q_KBC.argmax(dim=2), ties="probability").tolist() == [0]


def test_a_digest_has_as_many_epochs_as_it_takes_to_see_so_many_samples():
    assert [FedMd(digest_samples=5000).epochs_over(size) for size in (500, 400, 250, 5000, 6000)] == [10, 13, 20, 1, 1]
    assert [FedMd(digest_epochs=3).epochs_over(size) for size in (500, 10)] == [3, 3]
    assert FedMd(digest_epochs=3, digest_samples=100).epochs_over(50) == 2


def slow_selection(q, keep_fraction, ties):
    """Image by image, with plain lists."""
    clients, images, classes = q.shape
    targets = []
    for b in range(images):
        votes = [max(range(classes), key=lambda c: (q[k, b, c], -c)) for k in range(clients)]
        means = [np.mean([q[k, b, c] for k in range(clients)]) if ties == "probability" else 0 for c in range(classes)]
        winner = max(range(classes), key=lambda c: (votes.count(c), means[c], -c))
        entropies = [-sum(p * math.log(p) for p in q[k, b] if p > 0) for k in range(clients)]
        median = sorted(entropies)[(clients - 1) // 2]
        voters = [k for k in range(clients) if votes[k] == winner]
        sure = [k for k in voters if entropies[k] <= median]
        targets.append(np.mean([q[k, b] for k in sure or voters], axis=0))
    measure = [-sum(p * math.log(p) for p in row if p > 0) for row in targets]
    count = max(1, round(keep_fraction * images))
    return np.array(targets), sorted(sorted(range(images), key=lambda b: (measure[b], b))[:count])


@EXAMPLES
@given(
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(2, 6),
    st.integers(0, 2**31),
    st.floats(0.05, 1.0),
    st.sampled_from(["lowest", "probability"]),
)
def test_selection_equals_the_slow_reading(clients, images, classes, seed, keep_fraction, ties):
    q = np.random.default_rng(seed).dirichlet(np.full(classes, 0.5), size=(clients, images))
    chosen = select(torch.from_numpy(q), keep_fraction=keep_fraction, ties=ties)
    targets, kept = slow_selection(q, keep_fraction, ties)
    assert chosen.target_BC.numpy() == pytest.approx(targets, abs=1e-12)
    assert chosen.kept.tolist() == kept
    assert chosen.is_teacher_KB.any(dim=0).all()


# --- DFML


def test_alpha_rises_from_zero_to_one_and_falls_again():
    values = [alpha_at(r, period=10) for r in range(1, 12)]
    assert values[0] == 0
    assert values[5] == pytest.approx(1)
    assert values[10] == pytest.approx(0)
    assert values[1] == pytest.approx((1 - math.cos(math.pi / 5)) / 2)
    assert values[1:5] == sorted(values[1:5])


def test_shares_of_the_data_in_use():
    """Two of class 0, one of class 2, none of class 1."""
    assert log_shares(torch.tensor([0, 2, 0]), num_classes=3).tolist() == pytest.approx(
        [math.log(2 / 3), -1e9, math.log(1 / 3)], rel=1e-6
    )


def test_the_reweighted_loss_by_hand():
    """Logits (ln 2, ln 3), shares (3/4, 1/4): masses 6/4 and 3/4, so class 1 has 1/3. Equal shares change nothing."""
    logits, labels = torch.tensor([[math.log(2), math.log(3)]]), torch.tensor([1])
    shares = torch.tensor([0.75, 0.25]).log()
    assert private_cross_entropy(logits, labels, shares).item() == pytest.approx(math.log(3), rel=1e-6)
    equal = torch.tensor([0.5, 0.5]).log()
    assert private_cross_entropy(logits, labels, equal).item() == pytest.approx(-math.log(3 / 5), rel=1e-6)


def test_a_class_that_is_not_there_is_not_pushed_down():
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    shares = log_shares(torch.tensor([0, 1]), num_classes=3)
    private_cross_entropy(logits, torch.tensor([0]), shares).backward()
    assert logits.grad is not None
    assert logits.grad[0, 2] == 0
    assert logits.grad[0, 0] < 0 < logits.grad[0, 1]


@EXAMPLES
@given(st.integers(2, 6), st.integers(1, 5), st.integers(2, 5), st.integers(0, 2**31))
def test_the_mean_of_the_others_equals_a_loop(models, samples, classes, seed):
    rng = np.random.default_rng(seed)
    q, weights = rng.dirichlet(np.ones(classes), size=(models, samples)), rng.uniform(0.1, 1.0, size=models)
    means = others_mean(torch.from_numpy(q), torch.from_numpy(weights)).numpy()
    for one in range(models):
        rest = [other for other in range(models) if other != one]
        assert means[one] == pytest.approx(np.average(q[rest], axis=0, weights=weights[rest]), abs=1e-10)


class Keeper:
    """A peer that notes in which rounds its peaks were taken."""

    def __init__(self):
        self.memory: dict[str, torch.Tensor] = {}
        self.taken: dict[str, list[int]] = {}
        self.round = 0

    def keep_variant(self, name):
        self.taken.setdefault(name, []).append(self.round)


def peaks_taken(peaks, *, rounds, period):
    peer, spec = Keeper(), Dfml(period=period, peaks=peaks)
    for peer.round in rounds:
        spec._keep_peaks(peer, peer.round)  # type: ignore[arg-type]
    return peer.taken


def test_the_peak_is_taken_while_alpha_rises_and_anew_in_every_cycle_or_kept_until_alpha_is_as_high_again():
    # alpha by round with a period of 6: 0, 1/4, 3/4, 1, 3/4, 1/4, then again.
    of_cycle, kept = [1, 2, 3, 4, 7, 8, 9, 10, 13], [1, 2, 3, 4, 10]
    rounds = range(1, 14)
    assert peaks_taken("cycle", rounds=rounds, period=6) == {"peak": of_cycle}
    assert peaks_taken("kept", rounds=rounds, period=6) == {"kept-peak": kept}
    assert peaks_taken("both", rounds=rounds, period=6) == {"peak": of_cycle, "kept-peak": kept}


def test_a_client_that_misses_the_height_keeps_a_lower_peak_until_it_is_there_for_one_as_high():
    """Away in rounds 4 and 5: its best is the 3/4 of round 3, and that of round 9 takes its place; then the 1."""
    assert peaks_taken("kept", rounds=(1, 3, 6, 8, 9, 10, 11), period=6) == {"kept-peak": [1, 3, 9, 10]}


@EXAMPLES
@given(st.integers(2, 15), st.sets(st.integers(1, 80), min_size=1))
def test_a_kept_peak_is_the_last_of_the_highest_alphas_whatever_the_period(period, present):
    """Alpha depends on the place in the cycle alone: on how far it is from the middle, which whole numbers compare."""
    height = {r: -abs(2 * ((r - 1) % period) - period) for r in present}
    rounds = sorted(present)
    expected = [r for r in rounds if height[r] == max(height[other] for other in rounds if other <= r)]
    assert peaks_taken("kept", rounds=rounds, period=period)["kept-peak"] == expected


# --- FedMKD


def test_two_teachers_by_hand():
    """T = 2; softmax(z / 2) = (3/4, 1/4). KL from (1/2, 1/2) is 0.143841, from (1, 0) it is ln(4/3) = 0.287682."""
    logits, labels = torch.tensor([[math.log(9), 0.0]]), torch.tensor([0])
    peers, own = torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]])
    loss = two_teacher_loss(logits, labels, peers, own, temperature=2.0, distill_weight=0.7, mu=0.25)
    from_peers, from_own = 4 * 0.1438410, 4 * 0.2876821
    assert loss.parts["from_peers"].item() == pytest.approx(from_peers, abs=1e-5)
    assert loss.parts["from_own"].item() == pytest.approx(from_own, abs=1e-5)
    distillation = 0.75 * from_peers + 0.25 * from_own
    assert loss.distillation.item() == pytest.approx(distillation, abs=1e-5)
    assert loss.total.item() == pytest.approx(0.3 * -math.log(0.9) + 0.7 * distillation, abs=1e-5)


def test_pooled_the_own_model_is_one_more_peer():
    """Three peers with the mean (0.6, 0.4) and the own (0.2, 0.8): (1.8 + 0.2) / 4."""
    target = pooled(torch.tensor([[0.6, 0.4]]), torch.tensor([[0.2, 0.8]]), peers=3)
    assert target[0].tolist() == pytest.approx([0.5, 0.5])


# --- FedGD


class Small(nn.Module):
    """Two batch norms with running statistics of their own."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.second, self.last = nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2)
        for norm in (self.norm, self.last):
            norm.running_mean = torch.randn(norm.num_features)
            norm.running_var = torch.rand(norm.num_features) + 0.5
        self.eval().requires_grad_(False)

    def forward(self, x):
        return self.last(self.second(F.relu(self.norm(self.first(x))))).mean(dim=(2, 3))


def slow_generator_loss(models, inputs, labels, weight):
    """As defined, with everything in one graph."""
    logits = torch.stack([model(inputs) for model in models]).mean(dim=0)
    distances = []
    for model in models:
        first = model.first(inputs)
        last = model.second(F.relu(model.norm(first)))
        per_layer = []
        for batch, norm in ((first, model.norm), (last, model.last)):
            mean, variance = batch.mean(dim=(0, 2, 3)), batch.var(dim=(0, 2, 3), unbiased=False)
            per_layer.append((mean - norm.running_mean).norm() + (variance - norm.running_var).norm())
        distances.append(sum(per_layer) / 2)
    return F.cross_entropy(logits, labels) + weight * sum(distances) / len(models)


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_going_through_one_critic_at_a_time_gives_the_gradient_of_the_whole_loss(weight):
    models = [Small(seed) for seed in range(3)]
    torch.manual_seed(9)
    pixels, labels = torch.rand(6, 1, 6, 6), torch.tensor([0, 1, 1, 0, 1, 0])
    whole, parts = pixels.clone().requires_grad_(), pixels.clone().requires_grad_()
    expected = slow_generator_loss(models, whole * 2 - 1, labels, weight)
    expected.backward()
    row = criticise([Critic(model, model) for model in models], parts * 2 - 1, labels, weight=weight)
    numbers = loss_parts(row.tolist(), weight=weight)
    assert numbers["total"] == pytest.approx(expected.item(), rel=1e-5)
    assert numbers["total"] == pytest.approx(numbers["cross_entropy"] + weight * numbers["statistics"])
    assert parts.grad is not None
    assert whole.grad is not None
    assert parts.grad.numpy() == pytest.approx(whole.grad.numpy(), abs=1e-6)


def test_the_distance_of_statistics_by_hand():
    """One channel with the values 1 and 3: mean 2, variance 1, against a running mean of 5 and variance of 1.5."""
    norm = nn.BatchNorm2d(1).eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.fill_(5.0)
    norm.running_var.fill_(1.5)
    with watched_statistics(norm) as distances:
        norm(torch.tensor([1.0, 3.0]).view(2, 1, 1, 1))
    assert [distance.item() for distance in distances] == [3.5]
    norm(torch.zeros(2, 1, 1, 1))
    assert len(distances) == 1, "nobody watches any more"


def test_the_warm_up_is_a_share_of_the_rounds():
    spec = FedGd()
    assert [spec.warmup_rounds(rounds) for rounds in (300, 600, 150, 30, 3)] == [10, 10, 5, 1, 1]
    assert FedGd(generator_warmup=0).warmup_rounds(300) == 0


@pytest.mark.parametrize(("channels", "size"), [(3, (32, 32)), (1, (8, 8)), (3, (28, 30))])
def test_the_generator_paints_images_of_any_size(channels, size):
    generator = Generator(num_classes=4, out_channels=channels, image_size=size)
    pixels = generator(torch.randn(5, LATENT), torch.arange(5) % 4)
    assert pixels.shape == (5, channels, *size)
    assert 0 < pixels.min() < pixels.max() < 1


def test_the_generator_has_the_layers_of_its_description():
    """256 -> 128 x 8 x 8, two convolutions after an upsampling each, one to three channels, a norm after each layer."""
    generator = Generator(num_classes=10, out_channels=3, image_size=(32, 32))
    assert generator.project.weight.shape == (128 * 8 * 8, 256)
    shapes = [tuple(m.weight.shape[:2]) for m in generator.modules() if isinstance(m, nn.Conv2d)]
    assert shapes == [(128, 128), (64, 128), (3, 64)]
    assert sum(isinstance(m, nn.Upsample) for m in generator.modules()) == 2


# --- the picture


def decoded(picture: bytes) -> np.ndarray:
    """A PNG without filters, read again."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(picture):
        (length,) = struct.unpack_from(">I", picture, at)
        kind, content = picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", picture, at + 8 + length)[0] == zlib.crc32(kind + content)
        chunks[kind] = content
        at += 12 + length
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_a_contact_sheet_holds_every_image_in_order():
    images = np.arange(5 * 2 * 3 * 3, dtype=np.uint8).reshape(5, 2, 3, 3)
    sheet = decoded(contact_sheet(images, columns=2, scale=1))
    assert sheet.shape == (3 * (2 + GAP) + GAP, 2 * (3 + GAP) + GAP, 3)
    assert (sheet[GAP : GAP + 2, GAP : GAP + 3] == images[0]).all()
    top, left = 2 * (2 + GAP) + GAP, GAP
    assert (sheet[top : top + 2, left : left + 3] == images[4]).all()
    assert (sheet[top : top + 2, left + 3 + GAP : left + 6 + GAP] == 255).all(), "nothing beside the last"


def test_a_gray_image_is_enlarged_and_stays_gray():
    sheet = decoded(contact_sheet(np.full((1, 2, 2, 1), 7, dtype=np.uint8), columns=1, scale=3))
    assert (sheet[GAP:-GAP, GAP:-GAP] == 7).all()
    assert sheet.shape == (6 + 2 * GAP, 6 + 2 * GAP, 3)
