"""Measured results as markdown: `python -m benchmarks.page RESULT.json [--into docs/performance.md]`."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

BEGIN = "<!-- measured: begin (written by python -m benchmarks.page, do not edit) -->"
END = "<!-- measured: end -->"


def main() -> None:
    """Print the tables, or put them between the marks of a page, with the pictures beside it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=main.__doc__)
    parser.add_argument("result", type=Path, help="the JSON file of a run of python -m benchmarks")
    parser.add_argument("--into", type=Path, help="a page with the marks of the generated part")
    options = parser.parse_args()
    result = json.loads(options.result.read_text(encoding="utf-8"))
    if options.into is None:
        print(render(result))
        return
    replace_generated(options.into, render(result))
    pictures = [name for section in result["sections"] for name in section["pictures"] if name.endswith(".svg")]
    for picture in pictures:
        source, target = options.result.parent / picture, options.into.parent / picture
        if source.is_file() and source.resolve() != target.resolve():
            shutil.copyfile(source, target)


def render(result: dict[str, Any]) -> str:
    """All sections, with the hardware and the command that measured them."""
    head = f"Hardware: {result['hardware']}. Command: `{result['command']}`."
    return "\n\n".join([head, *(_section(section) for section in result["sections"])])


def replace_generated(path: Path, text: str) -> None:
    """Write the text between the marks, leaving everything around them."""
    page = path.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        raise SystemExit(f"{path} lacks the marks of the generated part: {BEGIN} and {END}")
    before, rest = page.split(BEGIN, maxsplit=1)
    after = rest.split(END, maxsplit=1)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def _section(section: dict[str, Any]) -> str:
    lines = [f"### {section['title']}", "", _row(section["columns"]), _row(["---"] * len(section["columns"]))]
    lines += [_row(row) for row in section["rows"]]
    for note in section["notes"]:
        lines += ["", note]
    for picture in section["pictures"]:
        if picture.endswith(".svg"):
            lines += ["", f"![{section['title']}]({picture})"]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
