"""Build the wheel and the sdist and try them as a stranger would; `make release-check`, and so CI, runs this.

    python -m tools.release

The wheel is built from the sdist, checked, installed into an empty environment with the versions of constraints.txt,
and used in a folder outside the project: the demo in short, its page with charts, a model as a file, the paper's
experiments. Nothing is uploaded. What is built stays in build/dist.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from crad import __version__

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "build" / "dist"
ENVIRONMENT = ROOT / "build" / "wheel-venv"
# What is no module, and must be in the wheel all the same.
DATA = ("crad/py.typed", "crad/report/templates/page.css", "crad/experiments/table1.toml")
DEMO = shlex.split("demo --methods local,crad --rounds 2 --seeds 1 --workers 1 --output demo --quiet")
USE = """
import crad, json, pathlib
assert pathlib.Path(crad.__file__).is_relative_to({environment!r}), crad.__file__
assert crad.__version__ == {version!r}, crad.__version__
[run, *_] = sorted(pathlib.Path("demo").glob("*/summary.json"))
assert "<svg" in pathlib.Path("demo/report.html").read_text(encoding="utf-8"), "the page has no chart"
assert json.loads(run.read_text())["rounds"] == 2
file = crad.load(run.parent).export("safetensors", client=0, path="model.safetensors")
assert len(crad.load_model(file).classes) == 10
"""


def main() -> int:
    """Build, check, install, use."""
    for old in DIST.glob("crad-*"):
        old.unlink()
    _do("build", [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT)])
    wheel, sdist = DIST / f"crad-{__version__}-py3-none-any.whl", DIST / f"crad-{__version__}.tar.gz"
    _do("check", [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)])
    missing = set(DATA) - set(zipfile.ZipFile(wheel).namelist())
    if missing:
        raise SystemExit(f"not in the wheel: {', '.join(sorted(missing))}")
    python = _install(wheel)
    with tempfile.TemporaryDirectory(prefix="crad-wheel-") as folder:
        _do("demo", [str(python.with_name("crad")), *DEMO], folder=folder)
        use = USE.format(environment=str(ENVIRONMENT), version=__version__)
        _do("use", [str(python), "-c", use], folder=folder)
        _do("experiments", [str(python.with_name("crad")), "reproduce", "table1", "--only-show", "-q"], folder=folder)
    print(f"{wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)} are ready")
    return 0


def _install(wheel: Path) -> Path:
    """Put the wheel and what it needs into an empty environment; return its interpreter."""
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    python = ENVIRONMENT / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    _do("install", [*pip, "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[demo]"])
    return python


def _do(what: str, command: Sequence[str], *, folder: str | None = None) -> None:
    """Run a step in an environment that does not know the source tree; say how long it took."""
    hidden = ("PYTHONPATH", "CRAD_DATA", "VIRTUAL_ENV")
    started = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(  # noqa: S603  # our own commands
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(f"{what:12} {time.monotonic() - started:5.1f} s", flush=True)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\n{what} failed with exit code {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
