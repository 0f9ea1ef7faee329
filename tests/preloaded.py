"""What members of a federation would each import and prepare, done once in the process that they are forked from.

A quarter of what a small member computes is that, and looking for garbage in it. Nothing is computed here on tensors
that have memory, so there is no thread that a fork would lose.
"""

from __future__ import annotations

import gc
import importlib

from crad.models import Architecture, InputShape
from crad.models.allowance import estimate_size
from crad.report.markup import _environment

MODULES = (
    "certifi",
    "crad.analysis.durations",
    "crad.cli.peer",
    "crad.cli.terminal.progress",
    "crad.cli.terminal.terminal_tables",
    "crad.site.join",
    "encodings.idna",
    "httpcore",
    "tests.faults",
    "tests.hostile",
    "uvicorn.lifespan.off",
)

for name in MODULES:
    importlib.import_module(name)
for name in _environment().list_templates(["html"]):
    _environment().get_template(name)  # compiled, and kept
estimate_size(Architecture.parse("cnn6@0.125"), InputShape(10, 1, (8, 8)))  # on torch's meta device
gc.freeze()
