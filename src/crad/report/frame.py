"""The frame around every page: head, style, headline, parts as tabs, scripts. It is `templates/page.html`."""

from __future__ import annotations

from crad.report.markup import render


def framed_page(
    template: str,
    *,
    title: str,
    sentence: str,
    versions: str,
    data: object,
    library: str = "",
    status: str | None = None,
    **view: object,
) -> str:
    """Return a page that needs nothing beside itself, from a template that extends `page.html`.

    `view` is what the template shows in its parts; `data` and `library` are for the page's script. `status` is said
    only of a live page, which may then ask its own server for news; a page on disk asks nobody for anything.
    """
    frame = {"title": title, "sentence": sentence, "versions": versions, "status": status}
    return render(template, **frame, data=data, library=library, **view)
