"""Pieces of HTML: text that is safe, tables that scroll inside themselves, data that a script reads."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from crad.report.svg import escape_html


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, num_heads: int = 1) -> str:
    """A table whose first columns name the row; it can be scrolled by keyboard where it is too wide."""
    kinds = [' class="words"' if _is_words(column, rows) else "" for column in range(len(header))]
    head = "".join(f'<th scope="col"{kind}>{escape_html(cell)}</th>' for kind, cell in zip(kinds, header, strict=True))
    body = "".join(f"<tr>{_cells(row, kinds, num_heads)}</tr>" for row in rows)
    # The words stand outside of what scrolls, or a narrow screen would cut them.
    name = f"caption-{zlib.crc32(caption.encode())}"
    return (
        f'<p class="caption" id="{name}">{escape_html(caption)}</p>'
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}"><table aria-labelledby="{name}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def paragraph(text: str, kind: str = "") -> str:
    """A sentence or two."""
    return f'<p class="{kind}">{escape_html(text)}</p>' if kind else f"<p>{escape_html(text)}</p>"


def commands(lines: Sequence[str]) -> str:
    """Command lines, each to be copied whole."""
    return "".join(f'<pre tabindex="0">{escape_html(line)}</pre>' for line in lines)


def as_data(content: object) -> str:
    """JSON for a script element; no text in it can end the element."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def as_script(code: str) -> str:
    """JavaScript for a script element; what would end the element, or hide its end, is written otherwise."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _is_words(column: int, rows: Sequence[Sequence[str]]) -> bool:
    """Whether a column is read as text, and so begins at the left; the first one always is."""
    return column == 0 or any(row[column][:1].isalpha() for row in rows)


def _cells(row: Sequence[str], kinds: Sequence[str], num_heads: int) -> str:
    cells = list(zip(kinds, row, strict=True))
    heads = "".join(f'<th scope="row"{kind}>{escape_html(cell)}</th>' for kind, cell in cells[:num_heads])
    return heads + "".join(f"<td{kind}>{escape_html(cell)}</td>" for kind, cell in cells[num_heads:])
