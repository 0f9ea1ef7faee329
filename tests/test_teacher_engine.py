"""The teacher engine gives the plain module's logits, whatever the module, the image size and the batch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.errors import ConfigError
from crad.inference import convolution, fused
from crad.inference import engine as engine_module
from crad.inference.engine import TEACHER_BATCH, PlainForward, TeacherEngine, soft_predictions
from crad.inference.winograd import WinogradConv, Workspace, is_winograd_faster
from crad.models import Architecture, build_model

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-4  # of the logits' standard deviation


@pytest.fixture
def one_thread():
    """As a client runs, and without waiting for a busy core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(model: nn.Module, inputs: Tensor, *, steps: int = 3) -> nn.Module:
    """A few steps, so that weights and running statistics are not those of a fresh model; then frozen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.02)
        model.train()
        for _ in range(steps):
            batch = inputs[torch.randint(0, len(inputs), (16,))] * 1.5 + 0.3
            logits = model(batch)
            optimiser.zero_grad()
            F.cross_entropy(logits, torch.randint(0, logits.shape[1], (16,))).backward()
            optimiser.step()
    return model.eval().requires_grad_(False)


def stirred(model: nn.Module, inputs: Tensor) -> nn.Module:
    """Other weights and running statistics without a backward pass, which some odd modules do not have; then frozen."""
    generator = torch.Generator().manual_seed(2)
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        for _ in range(3):
            model(inputs * 1.5 + 0.3)
    return model.eval().requires_grad_(False)


def random_inputs(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(5))


def built(name: str, shape: tuple[int, int, int], *, width: float = 0.125, classes: int = 10) -> nn.Module:
    model = build_model(
        Architecture(name, width), num_classes=classes, in_channels=shape[0], image_size=shape[1:], seed=3
    )
    return trained(model, random_inputs(32, *shape))


def relative_error(logits: Tensor, expected: Tensor) -> float:
    assert logits.shape == expected.shape
    return ((logits - expected).abs().max() / expected.std().clamp_min(1e-12)).item()


def check(model: nn.Module, inputs: Tensor) -> None:
    with torch.no_grad():
        expected = copy.deepcopy(model)(inputs.clone())
    before = inputs.clone()
    run = TeacherEngine(device="cpu").prepare(model, key="m")
    assert relative_error(run(inputs), expected) < TOLERANCE
    assert relative_error(run(inputs), expected) < TOLERANCE  # and again, on memory that was used
    assert torch.equal(inputs, before)


def has_plan(model: nn.Module) -> bool:
    try:
        fused.make_fused_plan(model)
    except fused.UnplannableError:
        return False
    return True


SIZES = [(3, 32, 32), (1, 8, 8), (1, 28, 28), (3, 24, 40), (3, 30, 30), (2, 9, 11)]


@pytest.mark.parametrize("name", ["resnet18", "resnet18-half", "cnn6", "cnn6-wide"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_every_architecture_at_every_size(name, shape):
    model = built(name, shape, width=0.0625)
    assert has_plan(model)
    check(model, random_inputs(5, *shape))


@pytest.mark.parametrize("name", ["resnet18", "cnn6", "cnn6-wide"])
def test_full_width(name):
    check(built(name, (3, 16, 16), width=1.0, classes=100), random_inputs(7, 3, 16, 16))


@pytest.mark.parametrize("name", ["resnet18-half", "cnn6"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_with_winograd_wherever_it_is_possible(name, shape, monkeypatch):
    monkeypatch.setattr(convolution, "is_winograd_faster", lambda **_: True)
    check(built(name, shape), random_inputs(5, *shape))


@pytest.mark.parametrize("name", ["resnet18", "cnn6"])
def test_on_a_processor_without_the_packed_kernels(name, monkeypatch):
    monkeypatch.setattr(convolution, "_has_onednn", lambda: False)
    check(built(name, (3, 16, 16)), random_inputs(5, 3, 16, 16))


@pytest.mark.parametrize("batch", [1, 5, 64, 65, 130])
def test_any_number_of_inputs(batch):
    check(built("resnet18-half", (3, 8, 8)), random_inputs(batch, 3, 8, 8))


def test_an_image_size_that_comes_later_is_right_too():
    model = built("cnn6-wide", (3, 16, 16), width=1.0)
    run = TeacherEngine(device="cpu").prepare(model, key="m")
    for size in (16, 24, 9):
        inputs = random_inputs(3, 3, size, size)
        assert relative_error(run(inputs), model(inputs)) < TOLERANCE


@pytest.mark.parametrize("winograd", [False, True])
def test_same_inputs_same_bits_and_batches_may_be_split_at_chunks(winograd, monkeypatch):
    monkeypatch.setattr(convolution, "is_winograd_faster", lambda **_: winograd)
    model = built("resnet18-half", (3, 12, 12))
    inputs = random_inputs(2 * TEACHER_BATCH + 9, 3, 12, 12)
    first = TeacherEngine(device="cpu").prepare(model, key="m")
    logits = first(inputs)
    assert torch.equal(first(inputs), logits)
    parts = [first(part) for part in (inputs[:TEACHER_BATCH], inputs[TEACHER_BATCH:])]
    assert torch.equal(torch.cat(parts), logits)
    assert torch.equal(TeacherEngine(device="cpu").prepare(model, key="m")(inputs), logits)


@pytest.mark.parametrize("name", ["resnet18", "cnn6"])
def test_a_teacher_stays_itself_when_the_model_gets_other_weights(name):
    inputs = random_inputs(5, 3, 16, 16)
    model = built(name, (3, 16, 16))
    engine = TeacherEngine(device="cpu")
    first = engine.prepare(model, key=name)
    with torch.no_grad():
        expected_first = model(inputs)
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1.1).add_(0.01)
    second = engine.prepare(model, key=name)
    assert relative_error(second(inputs), model(inputs)) < TOLERANCE
    assert relative_error(first(inputs), expected_first) < TOLERANCE
    third = engine.prepare(model, key=name)  # by now the plan knows the sizes of the maps
    assert torch.equal(third(inputs), second(inputs))
    assert third.nbytes == second.nbytes > sum(p.nbytes for p in model.parameters()) // 2


def test_the_plan_of_an_architecture_is_made_once(monkeypatch):
    made = []

    def counted(model: nn.Module) -> fused.FusedPlan:
        made.append(model)
        return fused.make_fused_plan(model)

    monkeypatch.setattr(engine_module, "make_fused_plan", counted)
    engine = TeacherEngine(device="cpu")
    model = built("cnn6", (1, 8, 8))
    for _ in range(3):
        engine.prepare(model, key="cnn6")
    assert len(made) == 1


class Odd(nn.Module):
    """A module with one oddity in the middle: two convolutions around `middle`, then the classes."""

    def __init__(self, middle: nn.Module, *, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.middle = middle
        self.last = nn.Conv2d(channels, 5, 3, padding=1, bias=False)

    def forward(self, images):
        return self.last(self.middle(self.first(images))).mean(dim=(2, 3))


class Residual(nn.Module):
    """`kind` says how the sum is written."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.full((1, 8, 1, 1), 1.5))
        self.offset = nn.Buffer(torch.full((8,), 0.3))

    def forward(self, maps):
        return getattr(self, self.kind)(maps)

    def iadd(self, maps):
        out = self.norm(self.conv(maps))
        out += maps
        return self.relu(out)

    def iadd_to_the_input(self, maps):
        out = self.conv(maps)
        maps += out
        return maps + out

    def iadd_seen_by_another_name(self, maps):
        out = self.conv(maps)
        same = out
        out += maps
        return same * out

    def twice(self, maps):
        out = self.conv(maps)
        return torch.add(out, out)

    def scaled(self, maps):
        return torch.add(self.conv(maps), maps, alpha=0.5)

    def several_users(self, maps):
        out = self.conv(maps)
        return self.norm(out) + F.relu(out)

    def broadcast(self, maps):
        return F.relu(self.conv(maps) + maps.mean(dim=(2, 3), keepdim=True))

    def parameter(self, maps):
        return F.relu(self.conv(maps) + self.scale) * (self.offset * 2).view(1, -1, 1, 1)

    def wider_type(self, maps):
        return F.relu(self.conv(maps) + maps.double()).float()

    def relu_of_the_input_between(self, maps):
        shifted = maps - 0.5
        out = self.conv(shifted)
        return out + self.relu(shifted)

    def write_through_a_view(self, maps):
        out = self.conv(maps)
        out.view(-1).clamp_(max=0.1)
        return out

    def write_an_item(self, maps):
        out = self.conv(maps)
        out[:, 0] = 0.25
        return out

    def shared(self, maps):
        return self.norm(self.conv(F.relu(self.norm(self.conv(maps)))))

    def norm_first(self, maps):
        return self.conv(F.relu(self.norm(maps)))

    def viewed(self, maps):
        batch, channels, height, width = maps.shape
        return self.conv(maps).view(batch, 2, channels // 2, height, width).transpose(1, 2).flatten(1, 2)

    def strides(self, maps):
        out = self.conv(maps)
        return out.as_strided(out.shape, out.stride()) * out.stride()[1] / out[0, 0].numel()

    def gated(self, maps):
        return self.conv(maps) * torch.sigmoid(self.norm(maps))

    def functional_dropout(self, maps):
        return F.relu(F.dropout(self.conv(maps), 0.5, self.training))

    def depends_on_data(self, maps):
        return self.conv(maps) if maps.sum() > 1e9 else self.norm(maps)

    def depends_on_data_and_views(self, maps):
        out = self.conv(maps) if maps.sum() < 1e9 else self.norm(maps)
        return out.view(len(out), -1).view(out.shape)

    def constant_from_weights(self, maps):
        return maps * torch.mul(dict(self.named_parameters())["scale"], 2)


KINDS = [name for name in vars(Residual) if not name.startswith("_") and name != "forward"]
PLAIN = {"depends_on_data", "depends_on_data_and_views", "write_through_a_view", "write_an_item", "iadd_to_the_input"}
PLAIN |= {"iadd_seen_by_another_name", "relu_of_the_input_between", "constant_from_weights"}


@pytest.mark.parametrize("kind", KINDS)
def test_sums_views_and_writes(kind):
    model = stirred(Odd(Residual(kind)), random_inputs(32, 3, 12, 12))
    assert has_plan(model) == (kind not in PLAIN)
    check(model, random_inputs(6, 3, 12, 12))


MIDDLES = {
    "groups": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=4),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8),
    "dilation": lambda: nn.Conv2d(8, 8, 3, padding=2, dilation=2),
    "stride": lambda: nn.Conv2d(8, 8, 3, stride=2, padding=1),
    "oblong": lambda: nn.Conv2d(8, 8, (1, 5), stride=(1, 2), padding=(0, 2)),
    "circular": lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
    "same": lambda: nn.Conv2d(8, 8, 3, padding="same"),
    "unpadded": lambda: nn.Conv2d(8, 8, 3),
    "batch statistics": lambda: nn.Sequential(
        nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU()
    ),
    "norm without weights": lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, affine=False)),
    "dropout": lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.Dropout(), nn.BatchNorm2d(8), nn.Dropout2d(), nn.ReLU()),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(8, 8, 2, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
    "group norm": lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(inplace=True)),
    "shuffle": lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.PixelShuffle(2), nn.Upsample(scale_factor=2)),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1)),
    "subclass": lambda: Doubling(8, 8, 3, padding=1),
}


class Doubling(nn.Conv2d):
    """A subclass that does something else."""

    def forward(self, maps: Tensor) -> Tensor:
        return 2 * super().forward(maps)


@pytest.mark.parametrize("middle", MIDDLES)
def test_layers_of_every_kind(middle):
    model = stirred(Odd(MIDDLES[middle]()), random_inputs(32, 3, 12, 12))
    assert has_plan(model)
    check(model, random_inputs(6, 3, 12, 12))


def test_what_a_hook_does_is_not_lost():
    model = stirred(Odd(nn.Conv2d(8, 8, 1)), random_inputs(32, 3, 12, 12))
    next(model.children()).register_forward_hook(lambda module, args, output: output * 3)
    assert not has_plan(model)
    check(model, random_inputs(6, 3, 12, 12))


def test_double_precision_runs_as_it_is():
    check(stirred(Odd(nn.Identity()), random_inputs(32, 3, 8, 8)).double(), random_inputs(6, 3, 8, 8).double())


def test_inputs_that_are_not_images():
    model = nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 3))
    check(trained(model, random_inputs(32, 7)), random_inputs(70, 7))


def test_a_wrong_input_is_still_an_error():
    for middle in (nn.Identity(), Residual("depends_on_data")):
        run = TeacherEngine(device="cpu").prepare(Odd(middle), key="m")
        with pytest.raises(RuntimeError):
            run(torch.zeros(2, 4, 8, 8))


def test_overflow_stays_visible():
    model = built("resnet18", (3, 16, 16))
    next(model.parameters()).fill_(3e38)
    logits = TeacherEngine(device="cpu").prepare(model, key="m")(random_inputs(4, 3, 16, 16))
    assert not logits.isfinite().all(dim=1).any()


def test_winograd_is_chosen_by_size_alone():
    assert is_winograd_faster(in_channels=512, out_channels=512, height=4, width=4)
    assert is_winograd_faster(in_channels=128, out_channels=128, height=16, width=16)
    assert not is_winograd_faster(in_channels=3, out_channels=64, height=32, width=32)
    assert not is_winograd_faster(in_channels=16, out_channels=16, height=32, width=32)
    assert not is_winograd_faster(in_channels=512, out_channels=512, height=1, width=1)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sides", [(4, 4), (32, 32), (9, 11), (2, 5)])
def test_winograd_is_the_convolution(sides, relu):
    maps, other = random_inputs(20, 6, *sides), random_inputs(20, 5, *sides)
    weight, bias = random_inputs(5, 6, 3, 3), random_inputs(5)
    layout = torch.channels_last
    conv = WinogradConv(weight, bias, workspace=Workspace())
    made = conv(maps.contiguous(memory_format=layout), other.contiguous(memory_format=layout), relu=relu)
    expected = F.conv2d(maps.double(), weight.double(), bias.double(), padding=1) + other.double()
    assert made.is_contiguous(memory_format=layout)
    assert torch.allclose(made.double(), expected.relu() if relu else expected, atol=2e-4)


def test_the_plain_path_equals_the_module_and_takes_bf16_only_on_request():
    model = built("cnn6", (3, 16, 16))
    inputs = random_inputs(6, 3, 16, 16)
    assert relative_error(PlainForward(model, device="cpu", precision="fp32")(inputs), model(inputs)) < TOLERANCE
    logits = PlainForward(model, device="cpu", precision="bf16")(inputs)
    assert logits.dtype == torch.float32
    assert TOLERANCE < relative_error(logits, model(inputs)) < 0.2


def test_an_unknown_precision_is_refused():
    for precision in ("bf16", "int4"):
        with pytest.raises(ConfigError, match=f"precision '{precision}' is not available on 'cpu'; available: fp32"):
            TeacherEngine(device="cpu", precision=precision)


@pytest.mark.parametrize("is_native", [True, False])
def test_bf16_is_refused_where_a_gpu_emulates_it(monkeypatch, is_native):
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: is_native or including_emulation
    )
    if is_native:
        TeacherEngine(device="cuda", precision="bf16")
        return
    with pytest.raises(ConfigError, match="precision 'bf16' is not available on 'cuda'; available: fp32"):
        TeacherEngine(device="cuda", precision="bf16")


def test_soft_predictions_are_the_softened_logits_of_each_teacher():
    rows = [torch.tensor([[0.0, 2.0]]), torch.tensor([[4.0, 0.0]])]
    runs = [lambda: lambda inputs: rows[0], lambda: lambda inputs: rows[1]]
    q_KBC = soft_predictions(runs, torch.zeros(1, 1), temperature=2.0)
    assert torch.allclose(q_KBC, torch.softmax(torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]]]), dim=2))
