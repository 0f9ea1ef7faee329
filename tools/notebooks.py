"""Execute the tutorials for the site and for a test, kept until something they depend on changes.

A cell that raises, one that was not executed or a command that ended with an error fails `make docs`, and so CI.

    python -m tools.notebooks                       # all of docs/tutorials, into build/notebooks
    python -m tools.notebooks first-federation      # one of them

The committed notebooks have no outputs (docs/decisions/0017-notebooks-without-outputs.md).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
EXECUTED = ROOT / "build" / "notebooks"
# As where a reader has what the tutorial asks for and no more: writing ONNX when `peer join` ends takes longer than all
# the rest.
WITHOUT_ONNX = "import sys\nsys.modules['onnx'] = None\n"
ASKS_FOR_ONNX = re.compile(r"pip install '\.\[[^]]*\bonnx\b")
FAULTS = ("crad: ", "not found")  # a line of ours for bad input; the shell's about a command that is not there
CELL_TIMEOUT_S = 300  # a machine with other work on it; each of them takes seconds


def main() -> int:
    """Execute the notebooks that were named, or all; say where each one is."""
    parser = argparse.ArgumentParser(description="Execute the tutorials.")
    parser.add_argument("names", nargs="*", help="file names without .ipynb [default: all]")
    names = parser.parse_args().names
    paths = [TUTORIALS / f"{name}.ipynb" for name in names] or tutorials()
    for path in paths:
        print(executed(path).relative_to(ROOT), flush=True)
    return 0


def tutorials() -> list[Path]:
    """Return the notebooks of the site."""
    return sorted(TUTORIALS.glob("*.ipynb"))


def executed(path: Path) -> Path:
    """Return the notebook with its outputs, executed now unless this very state of everything was before."""
    kept = EXECUTED / f"{path.stem}.{_fingerprint(path)}.ipynb"
    if not kept.is_file():
        text = _execute(path)
        EXECUTED.mkdir(parents=True, exist_ok=True)
        for older in EXECUTED.glob(f"{path.stem}.*"):
            older.unlink(missing_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(kept)
    return kept


def asks_for_onnx(path: Path) -> bool:
    """Return whether a tutorial tells its reader to install what writes ONNX."""
    return ASKS_FOR_ONNX.search(path.read_text(encoding="utf-8")) is not None


def _execute(path: Path) -> str:
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix=f"{path.stem}-") as folder, tempfile.TemporaryDirectory() as hiding:
        if not asks_for_onnx(path):
            Path(hiding, "sitecustomize.py").write_text(WITHOUT_ONNX)
        # Sockets in a folder of ours: between choosing a port and listening there another kernel can take it.
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=f"{hiding}/kernel.json")
        client = NotebookClient(
            notebook,
            km=kernel,
            timeout=CELL_TIMEOUT_S,
            startup_timeout=CELL_TIMEOUT_S,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=_environment(hiding))
    refuse_faults(path.name, notebook.cells)
    return str(nbformat.writes(notebook))


def refuse_faults(name: str, cells: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a notebook of which a cell was left out, or a command said that it failed: its cell does not raise."""
    for number, cell in enumerate(cells, start=1):
        if cell["cell_type"] != "code":
            continue
        if not cell["execution_count"]:
            raise RuntimeError(f"{name}: cell {number} was not executed")
        said = json.dumps(cell["outputs"])
        for fault in FAULTS:
            if fault in said:
                raise RuntimeError(
                    f"{name}: a command of cell {number} ended with an error ({fault!r} in {said[-500:]})"
                )


def _environment(hiding: str) -> dict[str, Any]:
    """Return the kernel's environment: `!crad` is this interpreter's, and no data lies where readers have none."""
    modules = os.pathsep.join([hiding, *filter(None, [os.environ.get("PYTHONPATH")])])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "PYTHONPATH": modules, "CRAD_DATA": "", "COLUMNS": "110", "NO_COLOR": "1"}


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for file in (path, ROOT / "constraints.txt", Path(__file__), *_package_files()):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _package_files() -> Iterator[Path]:
    files = (ROOT / "src" / "crad").rglob("*")
    return (file for file in sorted(files) if file.is_file() and "__pycache__" not in file.parts)


if __name__ == "__main__":
    sys.exit(main())
