"""Teachers without a plan are compiled where the run is long enough, and give the plain module's logits."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.config import Experiment
from crad.federation import teachers as shelf
from crad.federation.context import build_run_context
from crad.federation.teachers import TeacherCache
from crad.inference import compiled
from crad.inference.compiled import is_worth_compiling
from crad.inference.engine import TEACHER_BATCH, PlainForward, TeacherEngine

LONG = 10**15  # expected samples


class Tiny(nn.Module):
    """Without a plan, because it writes through a view; `kind` is what makes it more than a function."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.kind, self.calls = kind, 0
        self.cache: Tensor | None = None
        self.conv, self.norm, self.classes = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.offset = nn.Buffer(torch.full((4, 1, 1), 0.3), persistent=False)
        self.seen = nn.Buffer(torch.zeros(()))

    def forward(self, images):
        maps = self.norm(self.conv(images)) + self.offset
        maps[:, 0].clamp_(max=0.1)
        if self.kind == "branches on data" and maps.sum() > 1e9:
            maps = maps * 2
        if self.kind == "counts" and not self.training:
            self.calls += 1
            maps = maps * self.calls
        if self.kind == "draws":
            maps = F.dropout(maps, 0.5, training=True)
        if self.kind == "writes" and not self.training:
            self.seen.add_(1)
        if self.kind == "keeps":
            if self.cache is None:
                self.cache = self.conv.weight.sum()
            maps = maps + self.cache
        return self.classes(F.relu(maps).mean(dim=(2, 3)))


def tiny(kind: str = "", *, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = Tiny(kind).eval().requires_grad_(False)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    return model


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(count))


@pytest.fixture
def compilations(monkeypatch, one_thread, tmp_path):
    """The compilations tried so far."""
    from torch._inductor import config  # a second, which collecting need not take

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    tried: list[object] = []
    genuine = compiled._compile

    def counted(*args, **keywords):
        tried.append(args)
        return genuine(*args, **keywords)

    monkeypatch.setattr(compiled, "_compile", counted)
    torch._dynamo.reset()
    # The processor is believed what it says of itself: trying its instructions would compile three programs more.
    with config.patch({"cpp.vec_isa_ok": True}):
        yield tried
    torch._dynamo.reset()


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_the_choice_by_hand():
    # 1e9 FLOP a sample at 1e11 a second: 0.01 s, of which 0.001 s is saved; 60 s are 60 000 samples.
    assert not is_worth_compiling(flops_per_sample=1e9, samples=59_000, device="cpu")
    assert is_worth_compiling(flops_per_sample=1e9, samples=61_000, device="cpu")
    # Another device is a hundred times as fast, so it takes a hundred times as many.
    assert not is_worth_compiling(flops_per_sample=1e9, samples=5_900_000, device="cuda")
    assert is_worth_compiling(flops_per_sample=1e9, samples=6_100_000, device="cuda")
    assert not is_worth_compiling(flops_per_sample=0, samples=LONG, device="cpu")


def test_the_operations_of_a_sample_are_counted():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    plain = PlainForward(model, device="cpu", precision="fp32")
    # 36 places x 4 channels x 27 products, and 144 x 5; a product and its addition are two.
    assert compiled._flops_per_sample(plain, torch.zeros(2, 3, 8, 8)) == 2 * (36 * 4 * 27 + 144 * 5)


def test_compiled_teachers_equal_plain_ones_each_with_its_own_weights(compilations):
    models = [tiny(seed=seed) for seed in range(3)]
    inputs = images(2 * TEACHER_BATCH + 9)
    with torch.no_grad():
        expected = [copy.deepcopy(model)(inputs) for model in models]
    engine = TeacherEngine(device="cpu", expected_samples=LONG)
    runs = [engine.prepare(model, key="tiny") for model in models[:2]]
    before = graphs()
    logits = [run(inputs) for run in runs]
    assert (len(compilations), graphs() - before) == (1, 1)
    with torch.no_grad():
        for tensor in models[0].parameters():
            tensor.fill_(7.0)  # a teacher is the model as it was
    runs.append(engine.prepare(models[2], key="tiny"))
    logits.append(runs[2](inputs))
    for one, other in itertools.pairwise(logits):
        assert not torch.allclose(one, other, rtol=0.01)
    for turn in (0, 2, 1, 1, 0):
        assert torch.equal(runs[turn](inputs), logits[turn])
        assert torch.allclose(logits[turn], expected[turn], rtol=1e-4, atol=1e-5)
    # Chunks of other sizes, and other images, run without compiling anything.
    assert torch.equal(runs[1](inputs[TEACHER_BATCH:]), logits[1][TEACHER_BATCH:])
    assert torch.allclose(runs[1](inputs[:3]), expected[1][:3], rtol=1e-4, atol=1e-5)
    assert runs[1](torch.zeros(TEACHER_BATCH, 3, 9, 9)).shape == (TEACHER_BATCH, 5)
    assert (len(compilations), graphs() - before) == (1, 1)


@pytest.mark.parametrize("kind", ["branches on data", "counts", "keeps", "writes"])
def test_what_is_more_than_a_function_of_weights_and_inputs_runs_as_it_is(kind, compilations, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **_: _eager(model))
    check_plain(kind)
    assert len(compilations) == (kind != "writes")


def test_a_hook_is_not_lost_to_what_was_compiled_without_it(compilations, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **_: _eager(model))
    inputs = images(TEACHER_BATCH)
    for place, factor in ((None, 1), ("", 3), ("conv", 3), ("conv", 5)):
        model = tiny(seed=0)
        if place is not None:
            model.get_submodule(place).register_forward_hook(lambda module, args, output, by=factor: output * by)
        engine = TeacherEngine(device="cpu", expected_samples=LONG)
        logits = engine.prepare(model, key="tiny")(inputs)
        assert engine._shared["tiny"]._compiled is not None
        assert torch.allclose(logits, model(inputs), rtol=1e-4, atol=1e-5)


def test_choosing_draws_no_random_numbers(compilations, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **_: _eager(model))
    engine = TeacherEngine(device="cpu", expected_samples=LONG)
    run = engine.prepare(tiny("draws", seed=0), key="tiny")
    logits = []
    for _ in range(2):  # the choice is made in the first
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            logits.append(run(images(TEACHER_BATCH)))
    assert engine._shared["tiny"]._compiled is not None
    assert torch.equal(*logits)


def _eager(model):
    return torch._dynamo.optimize("eager", nopython=True, dynamic=False)(model)  # traced, but not built


def check_plain(kind: str = "") -> None:
    inputs = images(TEACHER_BATCH + 1)
    engine = TeacherEngine(device="cpu", expected_samples=LONG)
    for seed in range(2):
        model = tiny(kind, seed=seed)
        never = TeacherEngine(device="cpu").prepare(model, key="tiny")
        run = engine.prepare(model, key="tiny")
        assert all(torch.equal(run(inputs), never(inputs)) for _ in range(2))
    assert engine._shared["tiny"]._compiled is None


def test_without_a_compiler_it_runs_as_it_is(compilations, monkeypatch):
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "no-such-compiler"))
    asked: list[nn.Module] = []
    monkeypatch.setattr(torch, "compile", lambda model, **_: asked.append(model))
    check_plain()
    assert (len(compilations), asked) == (1, [])


def test_a_failure_to_compile_is_tried_once_and_runs_as_it_is(compilations, monkeypatch):
    def failing(model, **_):
        raise RuntimeError("no headers")

    monkeypatch.setattr(torch, "compile", failing)
    check_plain()
    assert len(compilations) == 1


def test_a_short_run_compiles_nothing(compilations):
    for samples in (0, 1_000_000):
        TeacherEngine(device="cpu", expected_samples=samples).prepare(tiny(seed=0), key="t")(images(TEACHER_BATCH))
    assert not compilations


def test_a_run_says_how_many_inputs_its_teachers_see(monkeypatch):
    experiment = Experiment(
        dataset="digits", clients=6, active=4, rounds=5, local_epochs=2, models=("cnn6", "resnet18-half"), device="cpu"
    )
    context = build_run_context(experiment)
    images_of_one = sum(len(shard.train) for shard in context.data.shards) / 6
    # 3 peers of 2 architectures, 2 epochs, active in 4 of 6 of 5 rounds
    assert shelf._expected_samples(context) == int(images_of_one * 1.5 * 2 * 5 * 4 / 6)
    assert TeacherCache(context)._engine._samples == shelf._expected_samples(context)
