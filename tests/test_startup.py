"""What a first run does not wait for: modules that are never imported on its way. No clock is asked."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

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


# A program counts from its beginning how often garbage is looked for, and says in the end what `shown` has become.
COUNTING = f"""
import gc, json, sys
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]) if phase == "start" else None)
def heavy():
    return [name for name in {HEAVY!r} if name in sys.modules]
shown = {{}}
"""


def after(code: str) -> dict[str, Any]:
    """What a program has noted in `shown`, in a process of its own."""
    whole = f"{COUNTING}{code}\nprint(json.dumps(shown))"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    """What a program sees that takes the functions, and then asks what networks of images cost."""
    return after(
        f"""
import crad
crad.run, crad.aggregate, crad.Experiment
shown |= {{"whole": seen.count(2), "enabled": gc.isenabled(), "heavy": heavy()}}
from crad.models import Architecture, InputShape, estimate_size
for name in {list(FAMILIES["image"])!r}: estimate_size(Architecture(name, 0.125), InputShape(10, 3, (32, 32)))
shown["heavy after counting"] = heavy()
"""
    )


def test_the_functions_are_there_before_anything_heavy_is(imported):
    assert imported["heavy"] == []


def test_what_a_network_of_images_costs_is_known_without_the_compiler(imported):
    """Whoever joins or asks the doctor waits for it."""
    assert imported["heavy after counting"] == []


def test_nobody_looks_for_garbage_in_what_is_being_imported(imported):
    assert (imported["whole"], imported["enabled"]) == (0, True)
    done = after(
        """
gc.disable()
import crad
sys.modules["crad.api"] = None
try: crad.run
except ImportError: shown["failed, disabled"] = gc.isenabled()
gc.enable()
try: crad.run
except ImportError: shown["failed"] = gc.isenabled()
gc.disable()
del sys.modules["crad.api"]
crad.run
shown["disabled"] = gc.isenabled()
"""
    )
    # As its owner has it, also where nothing could be imported.
    assert done == {"failed, disabled": False, "failed": True, "disabled": False}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> tuple[dict[str, Any], Path]:
    """What a program sees that is `crad run` with its page, and goes on with methods that have an optimiser.

    In its cache is the script that pages draw with, as after the first page on a machine.
    """
    folder = tmp_path_factory.mktemp("startup")
    cache = folder / "cache" / "crad"
    cache.mkdir(parents=True)
    (cache / f"vega-{metadata.version('vl-convert-python')}.js").write_text("// Vega")
    words = ["crad", "run", *TINY, "--workers=1", "--quiet", f"--output={folder / 'run'}"]
    shown = after(
        f"""
import os
os.environ["XDG_CACHE_HOME"] = {str(folder / "cache")!r}
while_importing = []
def hear(phase, info):
    if phase == "start" and "torch" in sys.modules and gc.get_freeze_count() == 0:
        while_importing.append(info["generation"])
gc.callbacks.append(hear)
sys.argv = {words!r}
from crad.cli import main
try: main()
except SystemExit as end: assert not end.code
shown |= {{"while importing": while_importing, "frozen": gc.get_freeze_count(), "enabled": gc.isenabled()}}
shown["heavy"] = heavy()
import crad
for method in ("fedmd", "fedgd"):
    crad.run(crad.Experiment(preset="demo", dataset="digits", clients=2, rounds=1, train_limit=60, test_limit=30,
        width=0.125, models=("cnn6",), workers=1, proxy_size=20, method=method))
shown["heavy after others"] = heavy()
"""
    )
    return shown, folder / "run"


def test_a_command_imports_what_it_needs_while_nobody_looks_for_garbage(whole_run):
    assert whole_run[0]["while importing"] == []


def test_a_command_never_looks_through_its_imports_again(whole_run):
    shown, _ = whole_run
    assert shown["frozen"] > 100_000, "torch alone has more"
    assert shown["enabled"] is True


def test_a_whole_small_run_with_its_page_imports_nothing_heavy(whole_run):
    shown, run = whole_run
    assert shown["heavy"] == []
    page = (run / "report.html").read_text(encoding="utf-8")
    assert '"accuracy":{"$schema"' in page  # the figures are there all the same


def test_methods_with_an_optimiser_of_their_own_need_no_compiler_either(whole_run):
    assert "torch._dynamo" not in whole_run[0]["heavy after others"]


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
