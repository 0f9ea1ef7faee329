"""What a first run does not wait for: modules that are never imported on its way. No clock is asked."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest
import torch

import crad
from crad.inference.fused import FusedPlan, make_fused_plan
from crad.models import FAMILIES
from crad.training.uncompiled import TIED, uncompiled
from tests.conftest import change

# Each costs a tenth of a second of processor time or more, some a whole one.
HEAVY = (
    *("torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "sklearn", "scipy", "pandas", "networkx"),
    *("altair", "vl_convert", "matplotlib", "PIL", "ray", "mlflow", "tensorboard", "onnx", "timm", "datasets"),
    *("cryptography", "httpx", "starlette", "uvicorn", "fsspec", "IPython", "mlxtend"),
)
TINY = ["--preset=demo", "--clients=3", "--rounds=1", "--train-limit=60", "--test-limit=30", "--width=0.125"]


def heavy_after(code: str, *arguments: str) -> list[str]:
    """The modules of the list that are there after a program has run, in a process of its own."""
    whole = f"import sys\n{code}\nprint('found', *[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", whole, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_the_functions_are_there_before_anything_heavy_is():
    assert heavy_after("import crad; crad.run, crad.aggregate, crad.Experiment") == []


COUNTING = """
import gc, json
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]) if phase == "start" else None)
"""


def after(code: str, shown: str) -> object:
    """What an expression is after a program has run, in a process of its own."""
    whole = f"{COUNTING}{code}\nprint(json.dumps({shown}))"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nobody_looks_for_garbage_in_what_is_being_imported():
    assert after("import crad; crad.run", "[seen.count(2), gc.isenabled()]") == [0, True]
    assert after("import gc; gc.disable(); import crad; crad.run", "gc.isenabled()") is False, "as its owner has it"
    faulty = "import sys, crad; sys.modules['crad.api'] = None\ntry: crad.run\nexcept ImportError: pass"
    assert after(faulty, "gc.isenabled()") is True


def test_a_command_imports_what_it_needs_while_nobody_looks_for_garbage(tmp_path):
    words = ["crad", "run", *TINY, "--workers=1", "--quiet", f"--output={tmp_path / 'run'}"]
    code = f"""
import sys
while_importing = []
def hear(phase, info):
    if phase == "start" and "torch" in sys.modules and gc.get_freeze_count() == 0:
        while_importing.append(info["generation"])
gc.callbacks.append(hear)
sys.argv = {words!r}
from crad.cli import main
try: main()
except SystemExit as end: assert not end.code
"""
    assert after(code, "[while_importing, gc.get_freeze_count() > 100_000]") == [[], True]


def test_a_command_never_looks_through_its_imports_again():
    frozen = after(
        "from crad.cli.run import import_run_loop; import_run_loop()", "[gc.get_freeze_count(), gc.isenabled()]"
    )
    assert isinstance(frozen, list)
    assert frozen[0] > 100_000, "torch alone has more"
    assert frozen[1] is True


def test_a_network_is_planned_once_for_all_engines_of_a_run(tiny, tmp_path, monkeypatch):
    """Those that teach, those that measure and the inspector: a plan takes longer than a small network's answers."""
    planned: list[str] = []

    def make(model: torch.nn.Module) -> FusedPlan:
        planned.append(f"{type(model).__name__} {sum(weight.numel() for weight in model.parameters())}")
        return make_fused_plan(model)

    monkeypatch.setattr("crad.inference.engine.make_fused_plan", make)
    crad.run(change(tiny, rounds=1), output=tmp_path / "run")
    assert len(planned) == len(set(planned)) == len(tiny.models)
    assert (tmp_path / "run" / "inspection.json").is_file()


@pytest.fixture
def cached_script(tmp_path, monkeypatch):
    """A cache that has the script pages draw with, as after the first page on a machine."""
    from importlib import metadata

    folder = tmp_path / "cache" / "crad"
    folder.mkdir(parents=True)
    (folder / f"vega-{metadata.version('vl-convert-python')}.js").write_text("// Vega")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cached_script")
def test_a_whole_small_run_with_its_page_imports_nothing_heavy(tmp_path):
    code = "from crad.cli import make_app; make_app(sys.argv[1:])(sys.argv[1:], standalone_mode=False)"
    assert heavy_after(code, "run", *TINY, "--workers=1", "-q", "-o", str(tmp_path / "run")) == []
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert '"accuracy":{"$schema"' in page  # the figures are there all the same


def test_methods_with_an_optimiser_of_their_own_need_no_compiler_either():
    code = (
        "import crad\nfor method in ('fedmd', 'fedgd'): "
        "crad.run(crad.Experiment(preset='demo', dataset='digits', clients=2, rounds=1, train_limit=60, "
        "test_limit=30, width=0.125, models=('cnn6',), workers=1, proxy_size=20, method=method))"
    )
    assert "torch._dynamo" not in heavy_after(code)


def test_what_a_network_of_images_costs_is_known_without_the_compiler():
    """Whoever joins or asks the doctor waits for it."""
    code = (
        "from crad.models import Architecture, InputShape, estimate_size\n"
        "for name in sys.argv[1:]: estimate_size(Architecture(name, 0.125), InputShape(10, 3, (32, 32)))"
    )
    assert heavy_after(code, *FAMILIES["image"]) == []


# --- optimisers without torch's compiler


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_an_uncompiled_optimiser_takes_the_same_steps_to_the_bit(kind):
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2)]
    settings = {"momentum": 0.9, "weight_decay": 0.01} if kind is torch.optim.SGD else {"weight_decay": 0.01}
    optimizers = [
        made([weight], lr=0.1, **settings) for made, weight in zip((kind, uncompiled(kind)), weights, strict=True)
    ]
    for _ in range(4):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            weight.pow(3).sum().backward()
            optimizer.step()
    assert torch.equal(*weights)
    first, second = (optimizer.state_dict() for optimizer in optimizers)
    assert first["param_groups"] == second["param_groups"]
    optimizers[1].load_state_dict(first)


def test_torchs_own_optimisers_stay_as_they_are():
    before = {name: getattr(torch.optim.SGD, name) for name in TIED}
    made = uncompiled(torch.optim.SGD)
    assert issubclass(made, torch.optim.SGD)
    assert {name: getattr(torch.optim.SGD, name) for name in TIED} == before
    assert all(inspect.unwrap(getattr(made, name)) is getattr(made, name) for name in TIED)
