"""Rules of the house: imports point one way, the heavy parts come late, nothing unpickles foreign bytes."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "crad"

PURE = {"aggregation"}  # tensors in, tensors out: no files, clocks or logs
FORBIDDEN_IN_PURE = {"os", "pathlib", "time", "logging", "io", "json", "random", "datetime"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} uses a relative import"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_aggregation_is_pure():
    for path in (SOURCE / "aggregation").glob("*.py"):
        touched = {name.split(".")[0] for name in imports_of(path)} & FORBIDDEN_IN_PURE
        assert not touched, f"{path.name} imports {touched}"


@pytest.mark.parametrize("package", ["analysis", "report"])
def test_figures_and_pages_never_touch_models(package: str):
    for path in (SOURCE / package).rglob("*.py"):
        forbidden = {
            name for name in imports_of(path) if name.split(".")[0] == "torch" or name.startswith("crad.models")
        }
        assert not forbidden, f"{path.name} imports {forbidden}"


# Whoever is refused there has typed a command: their modules are used by the command line alone.
OF_THE_COMMAND_LINE = (
    "cli/",
    "paper/",
    "site/",
    "report/live/",
    "runs/tracking/",
    "data/fetch.py",
    "data/readers/input_files.py",
)


def test_errors_name_settings_as_python_has_them():
    """`crad.run(output=...)` refuses with the same words as `crad run --output`: "output" is right for both."""
    shown = {}
    for path in modules():
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(OF_THE_COMMAND_LINE) or name == "inspection/inspector.py":  # crad explain
            continue
        raised = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise)]
        texts = [ast.unparse(node) for node in raised]
        if flags := [flag for text in texts for flag in re.findall(r"(?<!crad run )(?<!ray start )--[a-z-]+", text)]:
            shown[name] = flags
    assert shown == {}


def test_attacks_come_in_through_the_context_alone():
    """Whoever trains, publishes or measures asks the run's adversary; the records and the page may name attacks.

    Models that are read back from a run, without its data, ask what their owner published.
    """
    naming = {"runs/summary.py", "report/sections/detail_tables.py"}
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in modules()
        if "crad.federation.attacks" in imports_of(path) and path.name != "attacks.py"
    }
    assert users == {"federation/context.py", "prediction/run_models.py"} | naming


def test_nothing_unpickles_or_evaluates_except_the_restricted_cifar_reader():
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not calls & {"eval", "exec", "torch.load", "pickle.load", "pickle.loads"}, path.name
        if "pickle" in imports_of(path):
            assert path.name == "cifar.py"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["reproduce", "--help"], ["data", "list", "--json"], ["advise"]]
)
def test_help_and_listing_import_neither_torch_nor_templates(arguments: list[str]):
    assert not {"torch", "jinja2"} & packages_imported_by(*arguments)


def test_the_list_of_verbs_needs_nothing_but_typer():
    heavy = {"torch", "numpy", "pydantic", "rich", "safetensors", "jinja2", "ray", "matplotlib"}
    assert not heavy & packages_imported_by("--help")


@functools.cache
def packages_imported_by(*arguments: str) -> set[str]:
    """The top-level packages that a process has imported when the command line has done its work."""
    code = f"import sys; sys.argv = ['crad', *{arguments!r}]; from crad.cli import main\n"
    code += "try: main()\nfinally: print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


# An element that opens or closes, or a comment; not `<class>` in words about a folder, not a comparison.
ELEMENTS = (
    "a|article|aside|b|base|body|br|button|code|circle|dd|details|div|dl|dt|em|embed|fieldset|figcaption|figure|footer"
    "|form|g|h[1-6]|head|header|hr|html|i|iframe|img|input|label|legend|li|line|link|main|meta|nav|noscript|object|ol"
    "|option|p|path|pre|rect|script|section|select|small|span|strong|style|summary|svg|table|tbody|td|text|th|thead"
    "|title|tr|u|ul"
)
MARKUP = re.compile(rf"<!--|<!doctype|</?({ELEMENTS})(?![\w-])", re.IGNORECASE)
SEARCHED_FOR = {"report/live/bar.py": ["</body>"]}  # where the bar goes in a page that is finished, perhaps from disk


def test_html_is_in_templates_and_in_no_python_string():
    found = {str(path.relative_to(SOURCE)): markup_in(path.read_text(encoding="utf-8")) for path in modules()}
    assert {name: strings for name, strings in found.items() if strings} == SEARCHED_FOR


@pytest.mark.parametrize("code", ["'<p>'", "f'<td{kind}>'", "x + '</svg>'", "'<a href='", "'<!-- x -->'", "b'<svg'"])
def test_html_in_a_python_string_is_found(code: str):
    assert markup_in(f"def f(x, kind):\n    'Return a `<p>`.'\n    return {code}\n") != []


def test_words_in_angle_brackets_and_comparisons_are_no_html():
    assert markup_in("def f(x, p):\n    'Return a `<p>`.'\n    return x <p, '<class>/<member>', 'x <y'\n") == []


def markup_in(code: str) -> list[str]:
    """The strings with HTML in them, docstrings apart."""
    tree = ast.parse(code)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in docstrings]
    texts = [node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value for node in constants]
    return [text for text in texts if isinstance(text, str) and MARKUP.search(text)]


def test_templates_take_only_files_of_our_own_and_guarded_data_as_they_are():
    trusted = re.compile(r'file\("[a-z]+\.css"\) \| safe|[^{}]+ \| as_(data|script) \| safe')
    folder = SOURCE / "report" / "templates"
    templates = [path for path in sorted(folder.iterdir()) if path.suffix in (".html", ".svg")]
    assert len(templates) > 5
    for path in templates:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"{%-?\s*(autoescape|filter)|Markup", text), path.name
        for place in re.findall(r"{{(.*?)}}", text, flags=re.DOTALL):
            assert not re.search(r"\bsafe\b", place) or trusted.fullmatch(place.strip()), (path.name, place)
    assert not any("markupsafe" in name for path in modules() for name in imports_of(path))


def test_every_public_name_is_there():
    import crad

    for name in crad.__all__:
        assert getattr(crad, name) is not None
    with pytest.raises(AttributeError, match="aggregat"):
        crad.aggregat  # noqa: B018


def test_the_tree_in_the_docs_is_the_tree():
    """Every module outside `cli` is named in ARCHITECTURE.md, and nothing that is not there."""
    text = (SOURCE.parent.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tree = text[text.index("src/crad/\n") : text.index("experiments/  ")]
    named = re.findall(r"\b(\w+\.py)\b", tree)
    there = [path.name for path in modules() if path.name not in ("__init__.py", "__main__.py")]
    outside = [path.name for path in modules() if path.parent.name != "cli" and path.name in there]
    assert set(outside) - set(named) == set(), "not named"
    assert set(named) - set(there) == set(), "named and not there"


def test_the_layers_in_the_docs_are_those_that_are_checked():
    text = (SOURCE.parent.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawn = text[text.index("```\ncli\n") + 4 : text.index("`aggregation` is pure")].split("```")[0]
    settings = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    [contract] = settings["tool"]["importlinter"]["contracts"]
    checked = [sorted(layer.split(" | ")) for layer in contract["layers"]]
    assert [sorted(line.split()) for line in drawn.strip().splitlines()] == checked
