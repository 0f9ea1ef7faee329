"""Vega-Lite specifications as plain dictionaries, written with Altair's words.

What our charts need of Altair and nothing else, under the same names and with the same outcome. Altair itself holds
every piece against the grammar and copies it at every step: half a second of processor time, in every run, for figures
that are mostly not looked at. Here they cost a few milliseconds; the tests hold them against Altair's grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal", "T": "temporal"}
UNTYPED = ("x2", "y2")  # the other end of a bar has the type of the first
INNER = frozenset({"layer", "hconcat", "vconcat"})  # where a specification holds others
OF_THE_FRAME = ("width", "height")  # of layers as a whole


class Part(dict[str, Any]):
    """A piece of a specification: its entries, by Vega-Lite's own names."""


class Axis(Part):
    """How an axis looks."""


class FieldEqualPredicate(Part):
    """Rows whose field has one value."""


class FieldOneOfPredicate(Part):
    """Rows whose field has one of some values."""


class Legend(Part):
    """How a legend looks."""


class NamedData(Part):
    """A data set by its name."""


class Parameter(Part):
    """What a reader can choose."""


class Scale(Part):
    """How values become places or colours."""


class TitleParams(Part):
    """A title and how it looks."""


class Channel(Part):
    """What a field of the rows is shown as; `"gain:Q"` is the field `gain`, a quantity."""

    def __init__(self, shorthand: str, **entries: object) -> None:
        field, _, kind = shorthand.rpartition(":")
        super().__init__(field=field, type=TYPES[kind], **entries)


class X(Channel):
    """A place from left to right."""


class Y(Channel):
    """A place from top to bottom."""


class Y2(Channel):
    """The other end from top to bottom."""


class YOffset(Channel):
    """A place within that of `Y`."""


class Color(Channel):
    """A colour."""


class Shape(Channel):
    """The shape of a mark."""


class StrokeDash(Channel):
    """The dashes of a line."""


class Tooltip(Channel):
    """What the pointer finds."""


class _Datum:
    """A row in an expression: `datum["samples"] > 3`."""

    def __init__(self, text: str = "datum") -> None:
        self._text = text

    def __getitem__(self, field: str) -> _Datum:
        return _Datum(f"datum[{field!r}]")

    def __gt__(self, other: float) -> str:
        return f"({self._text} > {other!r})"


datum = _Datum()


class _Then(Part):
    """A value under a condition, and what it is otherwise."""

    def otherwise(self, value: Mapping[str, Any]) -> Part:
        """Return the whole choice."""
        return Part({**self, **value})


class _When:
    def __init__(self, condition: Mapping[str, Any]) -> None:
        self._condition = condition

    def then(self, value: Mapping[str, Any]) -> _Then:
        """Say what holds where the condition does."""
        return _Then(condition={**self._condition, **value})


def when(condition: Parameter | Part | str) -> _When:
    """Begin a choice: by what the reader picked, by a predicate, or by an expression."""
    if isinstance(condition, Parameter):
        return _When({"param": condition["name"]})
    return _When({"test": condition})


def value(constant: object) -> Part:
    """Return a value that is the same for all rows."""
    return Part(value=constant)


def expr(text: str) -> Part:
    """Return a text that the page computes."""
    return Part(expr=text)


def param(**entries: object) -> Parameter:
    """Return a value that the reader can set."""
    return Parameter(entries)


def selection_point(*, name: str, bind: str | None = None, **select: object) -> Parameter:
    """Return what the reader can pick by clicking."""
    picked = Parameter(name=name, select={"type": "point", **select})
    return picked if bind is None else Parameter({**picked, "bind": bind})


def binding_select(**entries: object) -> Part:
    """Return a list to choose from."""
    return Part(input="select", **entries)


def binding_range(**entries: object) -> Part:
    """Return a slider."""
    return Part(input="range", **entries)


class TopLevelMixin:
    """A figure, or a part of one; what changes it returns another."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = dict(spec)

    def properties(self, **entries: object) -> Self:
        """Set a width, a height, a title and the like."""
        return type(self)._of({**self.spec, **entries})

    def configure(self, **config: object) -> Self:
        """Set how all parts of a kind look."""
        return self.properties(config=config)

    def add_params(self, *params: Parameter) -> Self:
        """Let the reader choose something."""
        return self.properties(params=[*self.spec.get("params", []), *params])

    def transform_filter(self, condition: Mapping[str, Any] | str) -> Self:
        """Keep some of the rows."""
        return self._transformed({"filter": condition})

    def transform_calculate(self, **expressions: str) -> Self:
        """Give every row more fields."""
        return self._transformed(*({"calculate": text, "as": name} for name, text in expressions.items()))

    def transform_flatten(self, fields: Sequence[str], *, as_: Sequence[str]) -> Self:
        """Make a row of every element of some lists."""
        return self._transformed({"flatten": list(fields), "as": list(as_)})

    def resolve_scale(self, **channels: str) -> Self:
        """Say which scales the panels share."""
        return self.properties(resolve={"scale": channels})

    def to_dict(self) -> dict[str, Any]:
        """Return the whole specification."""
        return {"$schema": SCHEMA, **_params_above(self.spec)}

    @classmethod
    def _of(cls, spec: Mapping[str, Any]) -> Self:
        made = cls.__new__(cls)
        made.spec = dict(spec)
        return made

    def _transformed(self, *steps: Mapping[str, Any]) -> Self:
        return self.properties(transform=[*self.spec.get("transform", []), *steps])


class Chart(TopLevelMixin):
    """One kind of mark for the rows of one data set."""

    def __init__(self, data: NamedData) -> None:
        super().__init__({"data": data})

    def __getattr__(self, name: str) -> Callable[..., Chart]:
        """Return `mark_line` and the like: with which mark, and how it looks."""
        if not name.startswith("mark_"):
            raise AttributeError(f"a chart has no {name!r}")
        return partial(self._mark, name.removeprefix("mark_"))

    def _mark(self, kind: str, **look: object) -> Chart:
        return self.properties(mark={"type": kind, **look})

    def encode(self, **channels: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str) -> Chart:
        """Say what the fields of the rows are shown as."""
        encoding = {name: _channel(name, shown) for name, shown in channels.items()}
        return self.properties(encoding={**self.spec.get("encoding", {}), **encoding})

    def __add__(self, other: Chart) -> LayerChart:
        return layer(self, other)


class LayerChart(TopLevelMixin):
    """Charts over each other."""

    def __add__(self, other: Chart) -> LayerChart:
        rest = {name: entry for name, entry in self.spec.items() if name not in ("layer", "data")}
        inner = [_with_data(part, self.spec) for part in self.spec["layer"]]
        return LayerChart({**rest, **layer(*map(Chart._of, [*inner, other.spec])).spec})


class Panels(TopLevelMixin):
    """Charts beside or below each other."""


def layer(*charts: Chart) -> LayerChart:
    """Lay charts over each other; what is the same in all is said once."""
    specs = [chart.spec for chart in charts]
    is_shared = all(spec.get("data") == specs[0].get("data") for spec in specs)
    parts = [_lifted(spec, (*OF_THE_FRAME, *(("data",) if is_shared else ()))) for spec in specs]
    outer = {name: entry for _, lifted in parts for name, entry in lifted.items()}
    return LayerChart({**outer, "layer": [part for part, _ in parts]})


def vconcat(*charts: TopLevelMixin, spacing: float) -> Panels:
    """Put figures below each other."""
    return _concatenated("vconcat", charts, spacing)


def hconcat(*charts: TopLevelMixin, spacing: float) -> Panels:
    """Put figures beside each other."""
    return _concatenated("hconcat", charts, spacing)


def _concatenated(direction: str, charts: Sequence[TopLevelMixin], spacing: float) -> Panels:
    return Panels({direction: [chart.spec for chart in charts], "spacing": spacing})


def _channel(name: str, shown: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str) -> object:
    if isinstance(shown, str):
        shown = Channel(shown)
    if name in UNTYPED and isinstance(shown, Mapping):
        return {key: entry for key, entry in shown.items() if key != "type"}
    return shown


def _lifted(spec: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a specification without some entries, and these."""
    kept = {name: entry for name, entry in spec.items() if name not in names}
    return kept, {name: spec[name] for name in names if name in spec}


def _with_data(part: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    return {**({"data": whole["data"]} if "data" in whole else {}), **part}


def _params_above(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with what a reader can choose at its top, where the grammar wants it from layers on.

    What is picked in one view says which: views without a name get one.
    """
    if "mark" in spec:
        return dict(spec)
    found: list[dict[str, Any]] = []
    inner = _without_params(spec, found)
    return {**inner, "params": found} if found else inner


def _without_params(spec: Mapping[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a specification without what a reader can choose, which is added to `found`."""
    rest = {name: entry for name, entry in spec.items() if name != "params"}
    for chosen in spec.get("params", []):
        if "select" in chosen:
            rest.setdefault("name", f"view_{len(found) + 1}")
        found.append({**chosen, "views": [rest["name"]]} if "select" in chosen else dict(chosen))
    for place in INNER & rest.keys():
        rest[place] = [_without_params(part, found) for part in rest[place]]
    return rest
