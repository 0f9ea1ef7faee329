"""Measure how easy the source tree is to live in, so that a reorganisation can be compared before and after.

    python tools/house.py                             # a table; a minute or two, most of it for the two traced runs
    python tools/house.py --json after.json --before docs/house-before.json
    python tools/house.py --static                    # what can be read off the files alone; a second
    python tools/house.py --source ../other/src/crad  # another tree, with today's script

Nothing here knows a package by name, only `crad.run`, `crad.Experiment` and the command line, and torch's optimisers.

*package*: the first folder level below the source folder. A module that lies beside the packages is *loose*, and a
    package of its own wherever changes of package are counted. *folder* counts the same with every level: a
    reorganisation that only nests everything more deeply lowers the first figure, not the second.
*import edge*: module A names module B in an import, anywhere in the file, also in a function or for type checking only;
    once, however often. `from package import name` leads to the module of that name if there is one, else to the
    package's `__init__`. Imports by string are not seen.
*function, edge* (traced): a function, method or lambda of the source that ran; and that one of them called another,
    with nothing of the source between the two on the stack (torch and others may be). Module and class bodies and
    comprehensions do not count: what they call is called by whoever runs them. Generated methods are not of the source.
*crossing edge*: an edge whose ends lie in different packages, once each over the whole process. The stable figure.
*way of one image*: all that happens between the last optimiser step of round 1 and the last one of round 2, on all
    threads. Every shard is smaller than a batch, so each learner takes one step a round, and between the two steps
    comes every stage once per learner: measurement, record, checkpoint, snapshots, teachers, target, step.
    `way_changes` counts the calls from one package into another, a resumed generator being called again; `way_walks`
    leaves out those that only look at a value (a property, a length, an item); `way_edges` are the different ones.
    Under `peer join` all include looking for the others, hence vary with the waiting.
*run*: `crad.run` with three clients in one process. *join*: one of three members of `crad peer join`, over a folder;
    from the command to the report, as its process runs it. Both want what `pip install '.[dev]'` brings: a report
    without charts calls less.
*public*: no name on the path to it begins with an underscore; magic methods are left out.
*not a verb*: a docstring that begins with one of a dozen words that are none; the others are taken for verbs.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import json
import math
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Record = dict[str, Any]
Spot = tuple[str, str]  # a function: its file below the source folder, its qualified name
Function = ast.FunctionDef | ast.AsyncFunctionDef

SOURCE = Path(__file__).resolve().parents[1] / "src" / "crad"
FLAT_FILES = 15  # a folder with more is hard to look over
MANY_IMPORTERS = 15
FAMILIAR = 3  # modules that define a function of one name
NO_VERB = {"What", "Whether", "Who", "How", "The", "A", "An", "Where", "When", "Which"}
LEARNERS = 3
ROUNDS = 2
SHARDS = {"dataset": "digits", "partition": "iid", "clients": LEARNERS, "seed": 1, "train_limit": 120, "proxy_size": 0}
ONE_BATCH = 64  # more than any shard of these
PATIENCE_S = 900
WIDTH = 120
INDENT = " " * 6


def main() -> int:
    """Measure what was asked for, show it, and write it down."""
    words = _read_words()
    source: Path = words.source.resolve()
    if words.traced:
        trace_here(words.traced, source, words.json, words.rest)
        return 0
    found = measure_files(source)
    if not words.static:
        found |= {"run": trace_run(source), "join": trace_join(source)}
    print(table(found, json.loads(words.before.read_text(encoding="utf-8")) if words.before else None))
    if words.json:
        words.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _read_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how easy the source tree is to live in.")
    parser.add_argument(
        "--source", type=Path, default=SOURCE, help="the folder of the package crad [the one beside us]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--before", type=Path, metavar="FILE", help="figures of an earlier --json to show beside ours")
    parser.add_argument("--static", action="store_true", help="run nothing, only read the files")
    parser.add_argument("--traced", choices=sorted(TRACED), help=argparse.SUPPRESS)  # how this script calls itself
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args()


# What can be read off the files.


@dataclass(frozen=True)
class Module:
    """Hold one file of the source: its place below the source folder, its lines and its syntax."""

    path: Path
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        """Return the name below the source's own, as an import spells it; empty for the source itself."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        """Return its package; a loose module's own name."""
        return package_of(self.path.as_posix())


def package_of(path: str) -> str:
    """Return the package of a file below the source folder; a loose module is one of its own."""
    return path.partition("/")[0].removesuffix(".py")


def folder_of(path: str) -> str:
    """Return the innermost folder of a file below the source folder; a loose module is one of its own."""
    return path.rpartition("/")[0] or package_of(path)


def read_modules(source: Path) -> list[Module]:
    """Read every Python file of the source."""
    modules = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        modules.append(Module(path.relative_to(source), len(text.splitlines()), ast.parse(text)))
    return modules


def measure_files(source: Path) -> Record:
    """Return everything that needs no run."""
    modules = read_modules(source)
    return {
        "tree": measure_tree(modules),
        "imports": measure_imports(modules, root=source.name),
        "names": measure_names(modules),
        "sizes": measure_sizes(modules),
        "docstrings": measure_docstrings(modules),
    }


def measure_tree(modules: Sequence[Module]) -> Record:
    """Count packages, loose modules, and files and lines in each."""
    files, lines = Counter[str](), Counter[str]()
    for module in modules:
        package = "loose" if len(module.path.parts) == 1 else module.package
        files[package] += 1
        lines[package] += module.lines
    flat = Counter(module.path.parent.as_posix() for module in modules)
    return {
        "files": files.total(),
        "lines": lines.total(),
        "packages": len(files.keys() - {"loose"}),
        "loose_modules": files["loose"],
        "largest_flat_folder": max(flat.values()),
        f"folders_over_{FLAT_FILES}_files": {name: n for name, n in flat.most_common() if n > FLAT_FILES},
        "files_per_package": dict(sorted(files.items())),
        "lines_per_package": dict(sorted(lines.items())),
    }


def measure_imports(modules: Sequence[Module], *, root: str) -> Record:
    """Count who imports whom."""
    by_name = {module.name: module for module in modules}
    edges = {(module.name, name) for module in modules for name in imported_names(module, by_name.keys(), root=root)}
    places = {(by_name[one].path.as_posix(), by_name[other].path.as_posix()) for one, other in edges if one != other}
    importers = Counter(other for one, other in sorted(edges) if one != other)  # sorted: ties keep their order
    return {
        "edges": len(places),
        "edges_across_packages": len(across(places, package_of)),
        "edges_across_folders": len(across(places, folder_of)),
        "pairs_of_packages": len({(package_of(one), package_of(other)) for one, other in across(places, package_of)}),
        "modules_with_one_importer": sorted(name or root for name, count in importers.items() if count == 1),
        f"modules_with_over_{MANY_IMPORTERS}_importers": {
            name or root: count for name, count in importers.most_common() if count > MANY_IMPORTERS
        },
    }


def across(edges: Iterable[tuple[str, str]], place: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return the edges between files that lie in different places."""
    return [(one, other) for one, other in edges if place(one) != place(other)]


def imported_names(module: Module, known: Iterable[str], *, root: str) -> Iterator[str]:
    """Yield the modules of the source that a module imports, as often as it does."""
    names = {f"{root}.{name}" if name else root for name in known}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_base(node, module, root)
            wanted = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in wanted:
            nearest = name if name in names else name.rpartition(".")[0]
            if nearest in names:
                yield nearest.removeprefix(root).removeprefix(".")


def _absolute_base(node: ast.ImportFrom, module: Module, root: str) -> str:
    if not node.level:
        return node.module or ""
    folders = [root, *module.path.parent.parts]
    return ".".join([*folders[: len(folders) - node.level + 1], *([node.module] if node.module else [])])


def measure_names(modules: Sequence[Module]) -> Record:
    """List the names that stand for more than one thing."""
    classes: dict[str, list[str]] = defaultdict(list)
    functions: dict[str, list[str]] = defaultdict(list)
    stems: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        if module.path.stem != "__init__":
            stems[module.path.stem].append(module.name)
        for name in {node.name for node in module.tree.body if isinstance(node, ast.ClassDef)}:
            classes[name].append(module.name)
        for name in {node.name for node in module.tree.body if isinstance(node, Function)}:
            if not name.startswith("_"):
                functions[name].append(module.name)
    return {
        "classes_in_several_modules": _repeated(classes, 2),
        "file_names_used_again": _repeated(stems, 2),
        f"functions_in_{FAMILIAR}_or_more_modules": _repeated(functions, FAMILIAR),
    }


def _repeated(places: dict[str, list[str]], least: int) -> dict[str, list[str]]:
    return {name: found for name, found in sorted(places.items()) if len(found) >= least}


def measure_sizes(modules: Sequence[Module]) -> Record:
    """Return how long files and functions are, in lines; a function without its decorators."""
    files = [module.lines for module in modules]
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    ]
    return {
        "file_median": statistics.median(files),
        "file_p90": percentile(files, 90),
        "file_longest": max(files),
        "functions": len(functions),
        "function_median": statistics.median(functions),
        "function_p90": percentile(functions, 90),
        "function_longest": max(functions),
    }


def percentile(values: Sequence[int], percent: int) -> int:
    """Return the smallest value that so many percent of the values do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def measure_docstrings(modules: Sequence[Module]) -> Record:
    """Return how much of what is public has a docstring, and how docstrings begin."""
    public = [node for module in modules for node in public_nodes(module)]
    nodes = [node for module in modules for node in ast.walk(module.tree)]
    functions = [text for node in nodes if isinstance(node, Function) and (text := ast.get_docstring(node))]
    others = [
        text for node in nodes if isinstance(node, ast.ClassDef | ast.Module) and (text := ast.get_docstring(node))
    ]
    return {
        "public_names": len(public),
        "public_documented_percent": _percent(ast.get_docstring(node) is not None for node in public),
        "docstrings": len(functions) + len(others),
        "not_a_verb_percent": _percent(map(opens_without_verb, functions + others)),
        "docstrings_of_functions": len(functions),
        "functions_not_a_verb_percent": _percent(map(opens_without_verb, functions)),
    }


def public_nodes(module: Module) -> Iterator[ast.Module | ast.ClassDef | Function]:
    """Yield a module, and the classes, functions and methods in it that others may use."""
    if any(part.startswith("_") and not part.startswith("__") for part in module.path.parts):
        return
    yield module.tree
    yield from _public_below(module.tree)


def _public_below(parent: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | Function]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public_below(node)


def opens_without_verb(text: str) -> bool:
    """Tell whether the first word of a docstring is one of those that are no verbs."""
    first = re.match(r"\w+", text)
    return first is not None and first[0] in NO_VERB


def _percent(answers: Iterable[bool]) -> float:
    told = list(answers)
    return round(100 * sum(told) / max(1, len(told)), 1)


# What a run shows.


@dataclass
class Trace:
    """Listen to the interpreter, and keep which functions of the source ran and who called them."""

    source: Path
    functions: set[Spot] = field(default_factory=set)
    edges: set[tuple[Spot, Spot]] = field(default_factory=set)
    changes: list[tuple[Spot, Spot]] = field(default_factory=list)  # every call into another package, in order
    looks: set[Spot] = field(default_factory=set)  # functions that only show a value
    steps: list[int] = field(default_factory=list)  # how many changes there were at each optimiser step
    _spots: dict[CodeType, Spot | None] = field(default_factory=dict)

    def hear(self, frame: FrameType, event: str, arg: object) -> None:
        """Take down a call, if it is one of a function of the source."""
        if event != "call" or (callee := self._spot(frame.f_code)) is None:
            return
        if callee not in self.functions and _only_shows(frame):
            self.looks.add(callee)
        self.functions.add(callee)
        if (caller := self._caller(frame)) is not None:
            self.edges.add((caller, callee))
            if package_of(caller[0]) != package_of(callee[0]):
                self.changes.append((caller, callee))

    def step(self, *_: object) -> None:
        """Take down that an optimiser has made a step."""
        self.steps.append(len(self.changes))

    def summary(self, *, learners: int) -> Record:
        """Return the figures; so many learners of the process take one step each in a round."""
        steps = self.steps
        assert len(steps) >= ROUNDS * learners, f"{len(steps)} optimiser steps: too few for {learners} learners"
        way = self.changes[steps[learners - 1] : steps[2 * learners - 1]]
        files = [(one[0], other[0]) for one, other in self.edges]
        crossing = across(files, package_of)
        pairs = Counter(f"{package_of(one)} > {package_of(other)}" for one, other in crossing)
        return {
            "functions": len(self.functions),
            "modules": len({spot[0] for spot in self.functions}),
            "packages": len({package_of(spot[0]) for spot in self.functions}),
            "edges": len(self.edges),
            "crossing_edges": len(crossing),
            "edges_across_folders": len(across(files, folder_of)),
            "way_learners": learners,
            "way_changes": len(way),
            "way_changes_per_learner": round(len(way) / learners),
            "way_walks_per_learner": round(sum(callee not in self.looks for _, callee in way) / learners),
            "way_edges": len(set(way)),
            "optimiser_steps": len(steps),
            "most_crossed": dict(sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:10]),
        }

    def _caller(self, frame: FrameType) -> Spot | None:
        above = frame.f_back
        while above is not None and self._spot(above.f_code) is None:
            above = above.f_back
        return None if above is None else self._spot(above.f_code)

    def _spot(self, code: CodeType) -> Spot | None:
        if code not in self._spots:
            self._spots[code] = self._locate(code)
        return self._spots[code]

    def _locate(self, code: CodeType) -> Spot | None:
        is_function = code.co_flags & inspect.CO_OPTIMIZED and (code.co_name[0] != "<" or code.co_name == "<lambda>")
        path = Path(code.co_filename)
        if not is_function or not path.is_relative_to(self.source):
            return None
        return path.relative_to(self.source).as_posix(), code.co_qualname


def _only_shows(frame: FrameType) -> bool:
    """Tell whether a call reads a property, a length or an item of an object."""
    code = frame.f_code
    if code.co_name in ("__len__", "__getitem__"):
        return True
    owner: object = frame.f_globals
    for word in code.co_qualname.split(".")[:-1]:
        owner = owner.get(word) if isinstance(owner, dict) else inspect.getattr_static(owner, word, None)
    return isinstance(inspect.getattr_static(owner, code.co_name, None), property | functools.cached_property)


def trace_run(source: Path) -> Record:
    """Trace `crad.run` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return _trace_apart(source, Path(folder), "run", str(Path(folder) / "run"))


def trace_join(source: Path) -> Record:
    """Found a federation of three on a shared folder with the commands of `crad`, and trace one of its members."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sites = found_federation(source, folder)
        joins = [["peer", "join", "--site", str(site)] for site in sites]
        others = [
            _start(source, ["-m", "crad", *words], folder / f"{number}.log") for number, words in enumerate(joins[1:])
        ]
        try:
            return _trace_apart(source, folder, "crad", *joins[0])
        finally:
            for other in others:
                _end(other)


def found_federation(source: Path, folder: Path) -> list[Path]:
    """Divide the data, make keys and an agreement for everybody, and return everybody's peer.toml."""

    def crad(*words: object) -> None:
        _finish(_start(source, ["-m", "crad", *map(str, words)], folder / "crad.log"), folder / "crad.log")

    settings = [word for key, value in SHARDS.items() for word in (f"--{key.replace('_', '-')}", value)]
    crad("data", "split", *settings, "--output", folder / "data")
    homes = [folder / f"member-{number}" for number in range(LEARNERS)]
    for number, home in enumerate(homes):
        address = f"127.0.0.1:{8443 + number}"  # nobody listens there: they meet in the store
        crad("peer", "init", "--name", home.name, "--folder", home, "--address", address, "--model", "cnn6@0.25")
        _fill_in(home / "peer.toml", {"data": f"../data/client-{number}.npz", "agreement": "../federation.toml"})
    agreed = {"rounds": ROUNDS, "batch_size": ONE_BATCH, "deadline_s": 300, "exchange": f"file://{folder / 'store'}"}
    crad(
        *("peer", "invite", "--federation", "house", "--site", homes[0] / "peer.toml"),
        *("--member", homes[0] / "member.toml", "--output", folder / "federation.toml"),
        *(word for key, value in agreed.items() for word in ("--set", f"{key}={value}")),
    )
    crad("peer", "trust", folder / "federation.toml", *(home / "member.toml" for home in homes[1:]))
    return [home / "peer.toml" for home in homes]


def _fill_in(path: Path, values: dict[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for key, value in values.items():
        text = re.sub(rf"^{key} = .*$", f'{key} = "{value}"', text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")


def _trace_apart(source: Path, folder: Path, what: str, *words: str) -> Record:
    file, log = folder / "trace.json", folder / "trace.log"
    ours = [__file__, "--source", str(source), "--json", str(file), "--traced", what, "--", *words]
    _finish(_start(source, ours, log), log)
    found: Record = json.loads(file.read_text(encoding="utf-8"))
    return found


def _start(source: Path, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(source.parent), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        return subprocess.Popen(  # noqa: S603  # our own command
            [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env
        )


def _finish(process: subprocess.Popen[bytes], log: Path) -> None:
    try:
        code = process.wait(PATIENCE_S)
    finally:
        _end(process)
    if code:
        raise SystemExit(f"house: {process.args!r} ended with {code}:\n{log.read_text(encoding='utf-8')}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def trace_here(what: str, source: Path, file: Path, words: Sequence[str]) -> None:
    """Do one of the traced things in this process, and write its figures."""
    from torch.optim.optimizer import register_optimizer_step_post_hook  # only the traced process needs torch

    trace = Trace(source)
    register_optimizer_step_post_hook(trace.step)
    do, learners = TRACED[what]
    threading.setprofile(trace.hear)
    sys.setprofile(trace.hear)
    try:
        do(words)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    file.write_text(json.dumps(trace.summary(learners=learners)), encoding="utf-8")


def _do_run(words: Sequence[str]) -> None:
    import crad

    settings: Record = {**SHARDS, "rounds": ROUNDS, "batch_size": ONE_BATCH, "test_limit": 30, "eval_every": 1}
    crad.run(crad.Experiment(preset="demo", method="crad", workers=1, **settings), output=words[0])


def _do_crad(words: Sequence[str]) -> None:
    sys.argv = ["crad", *words]
    try:
        runpy.run_module("crad", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


# What is traced, and how many learners of the process it is in.
TRACED: dict[str, tuple[Callable[[Sequence[str]], None], int]] = {"run": (_do_run, LEARNERS), "crad": (_do_crad, 1)}


# What is shown.


def table(found: Record, before: Record | None) -> str:
    """Return the figures as lines of text, with the earlier ones in a column before them where there are any."""
    lines = []
    for section, figures in found.items():
        earlier = None if before is None else before.get(section, {})
        lines += ["", section if earlier is None else f"{section:<42}{'before':>10}{'now':>10}"]
        lines += [line for name, value in figures.items() for line in _rows(name, value, earlier)]
    return "\n".join(lines[1:])


def _rows(name: str, value: Any, earlier: Record | None) -> list[str]:  # noqa: ANN401  # any figure of the JSON
    past = "" if earlier is None else f"{_figure(earlier.get(name, '-')):>10}"
    items = [_item(*item) for item in value.items()] if isinstance(value, dict) else value
    text = ", ".join(items) if isinstance(items, list) else ""
    label = "  " + name.replace("_", " ")
    below = textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
    return [f"{label:<42}{past}{_figure(value):>10}", *below]


def _item(name: str, value: int | list[str]) -> str:
    return f"{name} {value}" if isinstance(value, int) else f"{name} ({' '.join(value)})"


def _figure(value: Any) -> str:  # noqa: ANN401  # as above
    if isinstance(value, dict | list):
        return str(len(value))
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main())
