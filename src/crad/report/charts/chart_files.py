"""Charts as files for a paper, and the script that draws them in a page. Both without a network."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import platformdirs

from crad.errors import RunError, install_hint, unknown_name
from crad.files import replacing, write_atomically
from crad.report.charts.chart import ReportChart
from crad.report.charts.style import theme
from crad.report.markup import as_script

FORMATS = ("pdf", "svg", "png")
COLUMN_INCHES = 3.4  # the width of a paper's column
POINTS_PER_INCH = 72
DOTS_PER_INCH = 300
INSTALL = install_hint("report")


def charts_available() -> bool:
    """Tell whether the library of the extra `crad[report]` is installed."""
    return importlib.util.find_spec("vl_convert") is not None


def save_chart(chart: ReportChart, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the chart on white, one column wide, as `<name>.pdf` and so on; the paths in the order asked for."""
    for one in formats:
        if one not in FORMATS:
            raise unknown_name("format of a chart", one, FORMATS)
    svg = to_svg(chart)
    paths = [folder / f"{chart.name}.{one}" for one in formats]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, one in zip(paths, formats, strict=True):
            write_atomically(path, _converted(svg, one))
    except OSError as error:
        raise RunError(f"cannot write charts to {folder}: {error.strerror or error}; choose another folder") from error
    return paths


def to_svg(chart: ReportChart) -> str:
    """Return the chart as it is drawn at first, on white."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg({**chart.spec, "background": "white"}, config=theme(is_dark=False))
    return svg


def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script for a page, safe inside a script element.

    Bundling takes seconds, so the text is kept in the user's cache; without a cache it is made every time.
    """
    kept = Path(platformdirs.user_cache_dir("crad")) / f"vega-{metadata.version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8")
    import vl_convert

    script = as_script(vl_convert.javascript_bundle())
    with contextlib.suppress(OSError):
        _keep(kept, script)
    return script


def _converted(svg: str, form: str) -> bytes:
    import vl_convert

    if form == "svg":
        return _resized(svg, COLUMN_INCHES, "in").encode()
    in_points = _resized(svg, COLUMN_INCHES * POINTS_PER_INCH, "")
    if form == "pdf":
        return bytes(vl_convert.svg_to_pdf(in_points))
    return bytes(vl_convert.svg_to_png(in_points, ppi=DOTS_PER_INCH))


def _resized(svg: str, width: float, unit: str) -> str:
    """Return the picture as wide as asked; its view box makes the rest follow."""
    found = re.match(r'[^>]* width="([\d.]+)" height="([\d.]+)"', svg)
    assert found, "every picture says how large it is"
    opening = found[0].partition(" width=")[0]
    height = width * float(found[2]) / float(found[1])
    return f'{opening} width="{width:g}{unit}" height="{height:g}{unit}"{svg[found.end() :]}'


def _keep(path: Path, text: str) -> None:
    """Write under a name of its own and rename: several processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, by=str(os.getpid())) as beside:
        beside.write_text(text, encoding="utf-8")
