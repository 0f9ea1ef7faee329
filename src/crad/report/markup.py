"""HTML from templates: the one environment that escapes every text, and what may stand in a script element.

Python makes plain values, the files in `templates/` make HTML of them; no tag stands in a Python string.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from crad.errors import install_hint

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, /, **values: object) -> str:
    """Return a template of `templates/` filled in; whatever text is put into it stays text."""
    return _environment().get_template(template).render(**values)


def as_data(content: object) -> str:
    """Return JSON for a script element; no text in it can end the element."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def as_script(code: str) -> str:
    """Return JavaScript for a script element; what would end the element, or hide its end, is written otherwise."""
    return re.sub(r"<(/script|!--)", r"<\\\1", code)


@cache
def _environment() -> Environment:
    # Imported when the first page is made: the command line starts without it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("crad.report"),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty place on the page
        finalize=_printable,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"as_data": as_data, "as_script": as_script}
    environment.globals |= {"file": _file, "install_hint": install_hint}
    return environment


def _printable(value: object) -> object:
    """Return a value as it may be shown: of a text, what no font can show is replaced."""
    if not isinstance(value, str) or value.isprintable() or hasattr(value, "__html__"):
        return value  # what has __html__ was escaped before: the HTML of a macro or a block, with its line ends
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in value)


@cache
def _file(name: str) -> str:
    """Return a style sheet or a script that lies beside the templates, as it is written there."""
    return resources.files("crad.report").joinpath("templates", name).read_text(encoding="utf-8")
