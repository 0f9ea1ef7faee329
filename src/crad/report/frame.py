"""The frame around every page: head, style, headline, parts as tabs, scripts. Its pieces lie in `page/`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from string import Template

from crad.report.markup import as_data, as_script
from crad.report.svg import escape_html

Section = tuple[str, str, str]  # id, title, content


def framed_page(
    *,
    title: str,
    sentence: str,
    headline: str,
    sections: Sequence[Section],
    versions: str,
    data: object,
    library: str = "",
    status: str | None = None,
) -> str:
    """One page that needs nothing beside itself. `status` is HTML and said only of a live page."""
    return Template(_file("page.html")).substitute(
        title=escape_html(title),
        # A live page asks its own server for news; a page on disk asks nobody for anything.
        connections="'none'" if status is None else "'self'",
        style=_file("page.css"),
        status=status or "",
        sentence=escape_html(sentence),
        headline=headline,
        links="".join(f'<a href="#{name}" id="to-{name}">{heading}</a>' for name, heading, _ in sections),
        sections="".join(_section(*section) for section in sections),
        versions=escape_html(versions),
        data=as_data(data),
        library=as_script(library),
        script=as_script(_file("page.js") + _file("inspector.js")),
    )


def _file(name: str) -> str:
    return resources.files("crad.report").joinpath("templates", name).read_text(encoding="utf-8")


def _section(name: str, heading: str, content: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{heading}</h2>{content}</section>'
    )
