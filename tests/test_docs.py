"""What is written about the project stays true: pages, links, tutorials, versions, and the commands that CI calls.

That the site builds, with every link and anchor, is `make docs`; that a release works is `make release-check`.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import crad
from crad.cli import VERBS
from crad.config import Experiment
from crad.errors import install_hint
from tests.conftest import ROOT
from tools import docs_site, evidence_tables
from tools.across_table import across_table
from tools.column_table import column_table
from tools.notebooks import TUTORIALS, asks_for_onnx, executed, refuse_faults, tutorials
from tools.reference import commands_page, settings_page

PAGES = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/three_hospitals/README.md"]
# A screen is about fifty lines of a terminal or of a browser's window; two of them hold what, how and where next.
SOURCES = {".md", ".ipynb"}
PAGES_OF_SITE = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*") if path.suffix in SOURCES)
README_LINES, README_WIDTH = 100, 120
NOTEBOOKS = [
    "between-organisations",
    "first-federation",
    "own-data-and-model",
    "recordings",
    "series",
    "tables",
    "texts",
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_readme_is_at_most_two_screens():
    lines = read("README.md").splitlines()
    assert len(lines) <= README_LINES
    assert [line for line in lines if len(line) > README_WIDTH and not line.startswith("![")] == []


@pytest.mark.parametrize("page", [*PAGES, *PAGES_OF_SITE])
def test_links_lead_somewhere_in_the_repository(page: str):
    """`make docs` follows those of the site; a page is read in the repository too."""
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", read(page)) if "://" not in link]
    assert links or page != "README.md"
    assert [link for link in links if link and not ((ROOT / page).parent / link).exists()] == []


def test_what_is_installed_is_installed_as_the_errors_say():
    """Nothing is on PyPI yet: a reader's `pip install crad` would be somebody else's package, or none."""
    told = {page: re.findall(r"pip install [^`\n]*", read(page)) for page in [*PAGES, *PAGES_OF_SITE]}
    assert "pip install '.[net]'" in told["README.md"]
    assert install_hint("net").startswith("pip install '.[net]' in a clone")
    wrong = re.compile(r"pip install [^`]*\bcrad(\[|\b)")
    # docs/release.md says how it will be.
    assert [page for page, lines in told.items() if any(map(wrong.search, lines)) and page != "docs/release.md"] == []


def test_crad_against_local_is_what_the_tables_say():
    """`docs/results.md` turns the signs of what stands in `docs/beyond.md`, and repeats the demo's verdict."""
    number = r"([+-][\d.]+)"
    cell = rf"{number} \({number} to {number}\)"
    sections = dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^##)", read("docs/beyond.md"), re.MULTILINE | re.DOTALL))
    answer = read("docs/results.md").partition("## CRAD against training alone")[2].partition("\n## ")[0]
    rows = {row[0].strip(): row[1:] for row in re.findall(rf"^\| (.+?)\| {cell} +\| {cell}", answer, re.MULTILINE)}
    titles = {"CIFAR-10, twenty clients, ten active": "Twenty clients, ten active"}
    for name in ("CIFAR-10", "CIFAR-100", "PathMNIST", "CIFAR-10, twenty clients, ten active"):
        [line] = re.findall(r"^\| local .*$", sections[titles.get(name, name)], re.MULTILINE)
        overall, _, local = re.findall(cell, line)
        wanted = [-float(value) for mean, low, high in (overall, local) for value in (mean, high, low)]
        assert [float(value) for value in rows[name]] == wanted, name
    said = " ".join(read("docs/demo.md").split())
    verdict = said.partition("Whether joining with crad helps is not shown: ")[2].partition(";")[0]
    assert re.findall(number, verdict) == list(rows["digits, `crad demo`"])
    assert len(rows) == 5


def test_every_public_name_is_in_the_reference_and_nothing_else():
    named = re.findall(r"^::: crad\.(\w+)$", read("docs/reference/python.md"), flags=re.MULTILINE)
    assert sorted(named) == sorted(crad.__all__)


def test_the_references_have_every_setting_and_every_verb():
    settings, commands = settings_page(), commands_page()
    assert [name for name in Experiment.model_fields if f"| `{name}` |" not in settings] == []
    assert [verb for verb in VERBS if f"## `crad {verb}`" not in commands] == []


def test_the_version_is_the_same_wherever_it_is_said():
    project = tomllib.loads(read("pyproject.toml"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/crad/__init__.py"
    assert yaml.safe_load(read("CITATION.cff"))["version"] == crad.__version__
    newest = re.search(r"^## (\S+)", read("CHANGELOG.md"), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == crad.__version__


def test_workflows_run_the_commands_of_ci_and_no_other_targets():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))
    called = {path.name: make_calls(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
    ci = re.findall(r"^make (\S+)$", read(".ci/run"), flags=re.MULTILINE)
    assert ci == ["test", "docs", "release-check"]
    assert called["test.yml"] == ci
    assert called["release.yml"] == ["release-check"]
    assert {target for calls in [ci, *called.values()] for target in calls} <= targets


def test_the_site_is_built_strictly_and_its_warnings_count():
    """With --quiet mkdocs does not count what it does not say, and a broken link passes."""
    [command] = re.findall(r"mkdocs build.*", read("Makefile"))
    assert command == "mkdocs build --strict"


def make_calls(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    lines = [line for job in jobs for step in job["steps"] for line in step.get("run", "").splitlines()]
    return [target for line in lines for target in re.findall(r"\bmake (\S+)", line)]


def test_the_workflow_tries_every_python_that_the_package_names():
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', read("pyproject.toml"))
    matrix = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert named[0] == "3.11"


def test_all_that_the_extras_of_the_site_need_is_pinned():
    """One that is not would be whatever is newest on the day of the build."""
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in read("constraints.txt").splitlines()}
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    wanted = [re.split(r"[\[><=]", name)[0] for extra in ("docs", "release", "notebook") for name in extras[extra]]
    assert [name for name in wanted if name != "crad" and name not in pinned] == []


# The tutorials


def test_tutorials_are_kept_without_outputs():
    assert [path.stem for path in tutorials()] == NOTEBOOKS
    for path in tutorials():
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert [cell for cell in cells if cell["outputs"] or cell["execution_count"]] == [], path.name


def test_a_tutorial_runs_from_top_to_bottom():
    """The first one, in a process of its own, for a kernel's libraries warn; `make docs` takes the outcome as it is.

    The others are executed by `make docs`, which fails where one of them does.
    """
    name = "first-federation"
    command = [sys.executable, "-m", "tools.notebooks", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    path = executed(TUTORIALS / f"{name}.ipynb")
    assert done.stdout.strip() == str(path.relative_to(ROOT))
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    refuse_faults(name, cells)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("crad: nowhere.csv: no such file", "cell 2 ended with an error"),
        ("sh: 1: crad: not found", "cell 2 ended with an error"),
        (None, "cell 2 was not executed"),
    ],
)
def test_a_tutorial_whose_command_fails_or_whose_cell_is_left_out_is_refused(said: str | None, fault: str):
    def cell(kind: str, text: str | None) -> dict[str, object]:
        outputs = [{"output_type": "stream", "text": text}]
        return {"cell_type": kind, "execution_count": None if text is None else 1, "outputs": outputs}

    refuse_faults("own", [cell("code", "fine"), {"cell_type": "markdown"}])
    with pytest.raises(RuntimeError, match=f"own: .*{fault}"):
        refuse_faults("own", [{"cell_type": "markdown"}, cell("code", said)])


@pytest.mark.parametrize(
    ("source", "fault"), [("1 / 0", "ZeroDivisionError"), ("print('crad: no')", "cell 1 ended with an error")]
)
def test_a_tutorial_that_fails_is_not_kept(tmp_path, source: str, fault: str):
    """In a process of its own as well."""
    cell: dict[str, object] = {"cell_type": "code", "execution_count": None, "source": source, "id": "a"}
    cell |= {"metadata": {}, "outputs": []}
    book: dict[str, object] = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "wrong.ipynb").write_text(json.dumps(book))
    code = (
        "import sys; from pathlib import Path; from tools import notebooks; notebooks.EXECUTED = Path(sys.argv[2]); "
        "notebooks._fingerprint = lambda path: 'x'; notebooks.executed(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "wrong.ipynb"), str(tmp_path / "kept")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert fault in done.stderr
    assert not (tmp_path / "kept").exists()


def test_a_tutorial_has_onnx_only_if_it_tells_to_install_it():
    assert [name for name in NOTEBOOKS if asks_for_onnx(TUTORIALS / f"{name}.ipynb")] == ["series"]


# How links become those of the site


@pytest.mark.parametrize(
    ("link", "here", "site", "turned"),
    [
        ("../ARCHITECTURE.md#the-tree", "docs", "index.md", "architecture.md#the-tree"),
        ("../../examples/own_rule.py", "docs/methods", "methods/README.md", "../examples.md#own_rulepy"),
        ("../experiments", "docs", "reproduction.md", "experiments.md"),
        ("../src/crad/cli", "docs", "index.md", "reference/commands.md"),
        ("../../src/crad/config/experiment_fields.py", "docs/how-to", "how-to/x.md", "../reference/settings.md"),
        ("docs/deploy.md#threat-model", "", "architecture.md", "deploy.md#threat-model"),
        ("../../docs/deploy.md", "examples/three_hospitals", "three-hospitals.md", "deploy.md"),
        ("tutorials/first-federation.ipynb", "docs", "index.md", "tutorials/first-federation.md"),
        ("first-federation.ipynb", "docs/tutorials", "tutorials/first-federation.md", "first-federation.ipynb"),
        ("https://example.org/a.md", "docs", "index.md", "https://example.org/a.md"),
        ("#here", "docs", "index.md", "#here"),
        ("../tests/test_docs.py", "docs", "index.md", "../tests/test_docs.py"),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(link: str, here: str, site: str, turned: str):
    assert docs_site.turn_link(link, here, site) == turned


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))
)
def test_no_link_of_a_page_leads_out_of_the_site(page: str):
    """`make docs` refuses one as well, minutes later."""
    folder = posixpath.dirname(page)
    links = [found[2] for found in docs_site.LINK.finditer((ROOT / "docs" / page).read_text(encoding="utf-8"))]
    turned = {link: docs_site.turn_link(link, posixpath.join("docs", folder).rstrip("/"), page) for link in links}
    assert [
        link for link, one in turned.items() if posixpath.normpath(posixpath.join(folder, one)).startswith("..")
    ] == []


def test_every_page_of_a_folder_is_in_the_navigation():
    nav = docs_site.expand_nav([{"Methods": ["methods/README.md", "methods/*"]}], ROOT / "docs")
    pages = nav[0]["Methods"]
    assert set(pages) == {f"methods/{path.name}" for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert len(pages) == len(set(pages))


@pytest.mark.parametrize(
    ("html", "is_loading"),
    [
        ('<script src="https://example.org/a.js">', True),
        ('<link rel="stylesheet" href=//example.org/a.css>', True),
        ('<script>load("https://cdn.jsdelivr.net/npm/vega")</script>', True),
        ('<a href="https://example.org">', False),
        ('<script src="assets/a.js">', False),
    ],
)
def test_a_page_that_loads_from_a_network_is_found(html: str, is_loading: bool):
    assert bool(docs_site.LOADED.search(html.encode())) is is_loading


# --- tables that are made of kept evidence


def test_tables_of_evidence_are_as_the_evidence_has_them_now():
    assert {"results.md", "texts.md", "recordings.md"} <= {path.name for path in evidence_tables.pages()}
    for path in evidence_tables.pages():
        text = path.read_text(encoding="utf-8")
        assert evidence_tables.rewritten(text) == text, f"{path.name}: python -m tools.evidence_tables"


def test_a_table_of_evidence_by_hand(tmp_path, monkeypatch):
    folder = tmp_path / "evidence" / "toy" / "tables"
    folder.mkdir(parents=True)
    (folder / "toy.csv").write_text(
        "name,column,metric,mean,seeds,paired_seeds,baseline,difference,interval_low,interval_high,verdict\n"
        "alone,here,acc,50.04,1 2,,alone,,,,\n"
        "all,here,acc,60.0,1 2,1 2,alone,9.96,8.0,12.0,better\n"
        "some,here,acc,51.0,1 2,1 2,alone,0.96,-1.0,3.0,\n"
        "all,there,acc,1.0,1 2,1 2,alone,,,,\n"
    )
    monkeypatch.setattr(evidence_tables, "ROOT", tmp_path)
    page = "before\n<!-- evidence: toy here acc=global -->\nearlier\n<!-- end of evidence -->\nafter\n"
    made = evidence_tables.rewritten(page)
    assert made.startswith("before\n<!-- evidence: toy here acc=global -->\n\n| | global | minus alone |\n")
    assert "| alone | 50.0 |  |\n| all | 60.0 | **+10.0 ± 2.0** |\n| some | 51.0 | +1.0 ± 2.0 |\n" in made
    assert "mean over seeds 1, 2;" in made
    assert made.endswith("<!-- end of evidence -->\nafter\n")
    assert "earlier" not in made
    assert evidence_tables.rewritten(made) == made
    with pytest.raises(SystemExit, match="no column 'nowhere'"):
        evidence_tables.rewritten(page.replace("here", "nowhere"))


def test_rows_of_fewer_seeds_stand_below_the_baseline_of_these_seeds_and_what_has_not_run_is_left_out(
    tmp_path, monkeypatch
):
    """The baseline has 40 and 60 with two seeds, so 50; with the first of them, which "all" has, 40."""
    folder = tmp_path / "evidence" / "toy" / "tables"
    folder.mkdir(parents=True)
    (folder / "toy.csv").write_text(
        "name,column,metric,mean,seeds,paired_seeds,baseline,difference,interval_low,interval_high,verdict\n"
        "alone,here,acc,50.0,1 2,,alone,,,,\n"
        "some,here,acc,51.0,1 2,1 2,alone,1.0,-1.0,3.0,\n"
        "all,here,acc,49.0,1,1,alone,9.0,,,\n"
        "later,here,acc,,,,alone,,,,\n"
    )
    monkeypatch.setattr(evidence_tables, "ROOT", tmp_path)
    lines = evidence_tables.made_table(["toy", "here", "acc=global"]).splitlines()
    assert lines[2:4] == ["| alone | 50.0 |  |", "| some | 51.0 | +1.0 ± 2.0 |"]
    assert (
        lines[5] == "Percent, mean over seeds 1, 2; ± half of the paired 95 % interval, bold where it leaves out zero."
    )
    assert lines[9:11] == ["| alone, the same | 40.0 |  |", "| all | 49.0 | +9.0 |"]
    assert lines[12] == "Percent, seed 1 alone, without an interval."


def test_a_row_is_not_compared_with_a_baseline_that_lacks_some_of_its_seeds(tmp_path):
    folder = tmp_path / "toy" / "tables"
    folder.mkdir(parents=True)
    (folder / "toy.csv").write_text(
        "name,row,column,metric,mean,seeds,paired_seeds,baseline,difference,interval_low,interval_high,verdict\n"
        "alone,alone,here,acc,50.0,1,,alone,,,,\n"
        "all,all,here,acc,60.0,1 2,1,alone,10.0,,,\n"
        "other,other,here,acc,60.0,1,1,alone,10.0,,,\n"
    )
    lines = column_table(tmp_path, "toy", "here", "acc=global", "rows=alone,all").splitlines()
    assert [line for line in lines if line.startswith("| a")] == ["| all | 60.0 |  |", "| alone | 50.0 |  |"]


def test_a_study_across_its_columns_by_hand(tmp_path):
    folder = tmp_path / "shared" / "tables"
    folder.mkdir(parents=True)
    glob, local = "asked_global_accuracy", "asked_local_accuracy"
    lines = [
        f"alone,cifar10,{glob},20.0,1 2 3,alone,",
        f"alone,cifar10,{local},50.0,1 2 3,alone,",
        f"alone-together,cifar10,{glob},40.04,1 2 3,alone,better",
        f"alone-together,cifar10,{local},45.0,1 2,alone,worse",
        f"alone,pathmnist,{glob},30.0,1 2 3,alone,",
        f"alone,pathmnist,{local},,,alone,",
        f"crad,cifar100,{glob},5.0,1,alone,",
    ]
    text = "\n".join(["row,column,metric,mean,seeds,baseline,verdict", *lines, ""])
    (folder / "committee.csv").write_text(text)
    made = across_table(
        tmp_path, "committee", f"{glob},{local}", "alone", "alone-together", f"best:{glob}"
    ).splitlines()
    assert made[0] == "| | alone | alone, all together | highest global |"
    assert made[2] == "| CIFAR-10 | 20.0 / 50.0 | **40.0** / *45.0* (2) | alone, all together, 40.0 |"
    assert made[3] == "| PathMNIST | 30.0 / - | - | alone, 30.0 |", "a column without the first row has no line"
    assert len(made) == 6
    assert made[5].startswith("Global / local, percent, mean over seeds 1, 2, 3; behind a cell with fewer")
