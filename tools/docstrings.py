"""How the reference of the Python names reads docstrings (an extension of griffe, named in mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Shows what stands under `Example:` as code; under that word in the plural alone griffe would see it itself."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ANN401  # griffe's own
        """Name the section as griffe knows it."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
