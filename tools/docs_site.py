"""What mkdocs asks while it builds the site (`hooks` in mkdocs.yml).

It adds what does not lie in docs/: pages from elsewhere in the project, executed tutorials, and the references of
settings and commands, made from the code. Links work on the site and in the repository alike: they are written for the
repository and turned here. A page that would load anything from a network fails the build.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.notebooks import ROOT, executed, tutorials
from tools.reference import commands_page, settings_page

# Where a file or folder of the project stands on the site. A folder becomes one page with all its files.
ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "evidence/attacks/tables/attacks.md": "attack-tables.md",
    "evidence/committee/tables/committee.md": "committee-tables.md",
    "evidence/committee/tables/committee_rules.md": "committee-rule-tables.md",
    "evidence/kinds/tables/kinds.md": "kind-tables.md",
    "evidence/main/tables/main.md": "main-tables.md",
    "evidence/private/tables/private.md": "privacy-tables.md",
    "evidence/student/tables/student.md": "student-tables.md",
    "examples/three_hospitals/README.md": "three-hospitals.md",
    "examples/four_hospitals/README.md": "four-hospitals.md",
    "examples": "examples.md",
    "experiments": "experiments.md",
}
# Pages that are made from code: a reader of the repository is led to the code, one of the site to the page.
MADE_FROM = {"src/crad/config/experiment_fields.py": "reference/settings.md", "src/crad/cli": "reference/commands.md"}
LANGUAGES = {".py": "python", ".toml": "toml"}
INTRODUCTIONS = {
    "examples": "# Examples\n\nShort programs in `examples/`, each of which the tests run as it stands here.\n",
    "experiments": "# Experiments\n\nWhat `crad reproduce` runs: a file in `experiments/` for each table or figure, "
    "with the figures that the paper printed.\n",
}
LINK = re.compile(r"(\]\()([^()\s]+)(\))")
LOADED = re.compile(
    rb"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//"
    rb"|//(?:cdn\.|cdnjs\.|unpkg\.com|fonts\.)",  # in a script that a page brings with it
    re.IGNORECASE,
)
# Outputs as blocks of their own: by nbconvert's template they would be indented, and two in a row would run together.
OUTPUTS = """{% extends "markdown/index.md.j2" %}
{% block stream %}
```text
{{ output.text | strip_ansi | trim("\\n") }}
```
{% endblock %}
{% block data_text scoped %}
```text
{{ output.data["text/plain"] | strip_ansi | trim("\\n") }}
```
{% endblock %}
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write out `folder/*` in the navigation."""
    config.nav = expand_nav(config.nav or [], Path(config.docs_dir))
    return config


@event_priority(100)  # before plugins that look at the pages
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    pages = {site: _page_from(place) for place, site in ELSEWHERE.items() if place != "README.md"}
    pages |= {"reference/settings.md": settings_page(), "reference/commands.md": commands_page()}
    for site, text in pages.items():
        files.append(File.generated(config, site, content=text))
    for path in tutorials():
        for file in _tutorial(path, config):
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links, which are written for the repository, into those of the site."""
    site = page.file.src_uri
    origins = {target: place for place, target in ELSEWHERE.items() if target != "index.md"}
    place = origins.get(site, f"docs/{site}")
    here = place if (ROOT / place).is_dir() else posixpath.dirname(place)
    return LINK.sub(lambda found: f"{found[1]}{turn_link(found[2], here, site)}{found[3]}", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if a page would load something from a network."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        found = LOADED.search(page.read_bytes())
        if found:
            raise PluginError(f"{page.name} loads from a network: {found[0].decode()}...; the site must not")


def expand_nav(entries: Iterable[Any], docs: Path) -> list[Any]:
    """Return the navigation with `folder/*` as the folder's pages, its README apart."""
    nav: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            nav += [{k: expand_nav(v, docs) if isinstance(v, list) else v for k, v in entry.items()}]
        elif isinstance(entry, str) and entry.endswith("/*"):
            pages = sorted((docs / entry[:-2]).glob("*.md"))
            nav += [f"{entry[:-2]}/{path.name}" for path in pages if path.name != "README.md"]
        else:
            nav.append(entry)
    return nav


def _page_from(place: str) -> str:
    path = ROOT / place
    if path.is_file():
        return path.read_text(encoding="utf-8")
    files = [file for file in sorted(path.iterdir()) if file.suffix in LANGUAGES and file.name != "__init__.py"]
    return "\n".join([INTRODUCTIONS[place], *map(_as_code, files)])


def _as_code(file: Path) -> str:
    return f"## {file.name}\n\n```{LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}```\n"


def turn_link(link: str, here: str, site: str) -> str:
    """Return a link from a file in the folder `here` as one from the page `site`."""
    path, hash_mark, anchor = link.partition("#")
    if not path or "://" in path or path.startswith(("mailto:", "/")):
        return link
    target = posixpath.normpath(posixpath.join(here, path))
    if target == f"docs/{site.removesuffix('.md')}.ipynb":
        return link  # a tutorial's own notebook, to download
    page = _site_page(target)
    if page is None:
        return link  # which mkdocs then reports
    base, _, own_anchor = page.partition("#")
    end = own_anchor or anchor
    relative = os.path.relpath(base, PurePosixPath(site).parent).replace(os.sep, "/")
    return f"{relative}#{end}" if end or hash_mark else relative


def _site_page(target: str) -> str | None:
    """Return where a file of the project stands on the site, with the heading where it is one of several."""
    if target in ELSEWHERE or target in MADE_FROM:
        return (ELSEWHERE | MADE_FROM)[target]
    folder, name = posixpath.split(target)
    if folder in ELSEWHERE and (ROOT / target).is_file():
        return f"{ELSEWHERE[folder]}#{re.sub(r'[^a-z0-9_-]', '', name.lower())}"
    if target.startswith("docs/"):
        inside = re.sub(r"\.ipynb$", ".md", target.removeprefix("docs/"))
        return f"{inside}/README.md" if (ROOT / target / "README.md").is_file() else inside
    return None


def _tutorial(path: Path, config: MkDocsConfig) -> Iterable[File]:
    """Return a notebook's page, from its executed copy, and its pictures. The notebook itself is copied as it is."""
    import nbformat
    from nbconvert import MarkdownExporter

    notebook = nbformat.read(executed(path), as_version=4)
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        _make_plain(output)
    prefix = f"{path.stem}-files"
    body, resources = MarkdownExporter(raw_template=OUTPUTS).from_notebook_node(
        notebook, resources={"unique_key": path.stem, "output_files_dir": prefix}
    )
    note = f"*This page is a notebook, executed when the site was built: [download it]({path.name}).*"
    title, _, rest = body.lstrip().partition("\n")
    yield File.generated(config, f"tutorials/{path.stem}.md", content=f"{title}\n\n{note}\n{rest}")
    for name, data in resources["outputs"].items():
        yield File.generated(config, f"tutorials/{name}", content=data)


def _make_plain(output: Any) -> None:  # noqa: ANN401  # a node of a notebook
    """Let tables look like those of the site, not as pandas styles them."""
    data = output.get("data", {})
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        data["text/html"] = re.sub(r'<table border="1" class="dataframe">', "<table>", html)
