"""How seconds and bytes of a round grow with the clients, the shard and the classes, beside the expected growth."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import crad
from benchmarks.data import models_for, noise_images
from benchmarks.harness import Section, Settings
from benchmarks.memory import model_bytes
from crad.config import Experiment

MIB = 2**20
NAMES = {"s": "seconds", "MiB": "MiB"}
WIDTH = 0.125
SHARD = 40  # images of a client where the shard is not what varies
CLIENTS = 5  # where the clients are not


@dataclass(frozen=True)
class Panel:
    """One small chart: what varies, what is measured, and the growth that is expected."""

    title: str
    across: str
    unit: str
    sizes: Sequence[int]
    measured: Sequence[float]
    expected: Callable[[float], float]
    law: str
    is_smooth: bool = True  # the law may be drawn between the sizes too


def run(settings: Settings) -> Section:
    """Narrow models and small shards of noise: the growth is the same, the wait is not."""
    by_clients = {n: _round(settings, clients=n) for n in settings.choose((5, 10, 20, 40), (4, 8, 12), (2, 3))}
    by_shard = {n: _round(settings, shard=n) for n in settings.choose((40, 80, 160, 320), (40, 80, 120), (20, 40))}
    by_classes = {n: _round(settings, classes=n) for n in settings.choose((10, 25, 50, 100), (10, 50, 100), (4,))}
    panels = _panels(models_for(settings), by_clients, by_shard, by_classes)
    rows = []
    for panel in panels:
        for size, value in zip(panel.sizes, panel.measured, strict=True):
            expected = panel.expected(size)
            rows.append([f"{panel.across} = {size}", f"{value:.2f} {panel.unit}", f"{expected:.2f} {panel.unit}"])
    return Section(
        "scale",
        f"Growth of a round (width {WIDTH}, {SHARD} images and {CLIENTS} clients where not varied)",
        ("varied", "measured", "expected"),
        rows,
        notes=[f"Expected, {panel.across} ({panel.unit}): {panel.law}." for panel in panels],
        numbers=[{"clients": by_clients, "shard": by_shard, "classes": by_classes}],
        pictures=draw(panels, settings),
    )


def _round(settings: Settings, *, clients: int = 0, shard: int = SHARD, classes: int = 10) -> dict[str, float]:
    clients = clients or settings.choose(CLIENTS, CLIENTS, 2)
    settings.say(f"{clients} clients, {shard} images each, {classes} classes")
    experiment = Experiment(
        dataset=noise_images(
            settings.output,
            num_classes=classes,
            num_train=max(clients * shard, 2 * classes),
            side=settings.choose(32, 32, 8),
        ),
        clients=clients,
        rounds=settings.choose(5, 3, 3),  # the first warms up, the last is tested
        eval_every=1000,
        test_limit=max(10, classes),
        proxy_size=0,
        partition="iid",
        width=WIDTH,
        models=models_for(settings),
        device="cpu",
        engine="serial",
    )
    lines = crad.run(experiment).rounds[1:-1]
    return {
        # The fastest: for a law of growth, what a busy neighbour adds is no part of it.
        "seconds": min(line["timing"]["seconds"] for line in lines),
        "bytes": lines[0]["payload_bytes"],
    }


Measured = dict[int, dict[str, float]]


def _panels(pool: Sequence[str], by_clients: Measured, by_shard: Measured, by_classes: Measured) -> list[Panel]:
    sizes = [model_bytes(name, WIDTH) for name in pool]

    def snapshot_mib(clients: float) -> float:
        return sum(sizes[k % len(sizes)] for k in range(int(clients))) * (clients - 1) / MIB

    flat = statistics.median(one["seconds"] for one in by_classes.values())
    return [
        _seconds_panel("Seconds by clients", "clients N", by_clients, lambda n: (n * (n - 1), n), "a N(N-1) + b N"),
        Panel(
            "Bytes by clients",
            "clients N",
            "MiB",
            list(by_clients),
            [one["bytes"] / MIB for one in by_clients.values()],
            snapshot_mib,
            "every snapshot to N-1 others; headers come on top",
            is_smooth=False,  # the pool is dealt out in turn, so the mean snapshot depends on N
        ),
        _seconds_panel("Seconds by shard", "images per client", by_shard, lambda n: (n, 1), "a n + b"),
        Panel(
            "Seconds by classes",
            "classes C",
            "s",
            list(by_classes),
            [one["seconds"] for one in by_classes.values()],
            lambda n: flat,
            "flat",
        ),
    ]


def _seconds_panel(
    title: str, across: str, measured: Measured, terms: Callable[[float], tuple[float, float]], law: str
) -> Panel:
    """The two constants of the law come from the measurement (least squares), its shape does not."""
    seconds = [one["seconds"] for one in measured.values()]
    (a, b), *_ = np.linalg.lstsq(np.array([terms(size) for size in measured]), np.array(seconds), rcond=None)

    def expected(size: float) -> float:
        first, second = terms(size)
        return float(a * first + b * second)

    return Panel(title, across, "s", list(measured), seconds, expected, f"{law}, fitted a = {a:.2g} s, b = {b:.2g} s")


def draw(panels: Sequence[Panel], settings: Settings) -> list[str]:
    """The panels as one picture, PNG and SVG; nothing where the drawing packages are not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401  # what altair saves pictures with
    except ImportError:
        settings.say("no picture: install '.[bench]' for altair and vl-convert-python")
        return []
    charts = [_chart(altair, panel) for panel in panels]
    grid = altair.concat(
        *charts, columns=2, align="all", bounds="flush", spacing={"row": 110, "column": 80}
    ).resolve_scale(color="shared")
    grid = grid.configure_axis(labelFontSize=12, titleFontSize=12, gridColor="#e6e6e6", domainColor="#888")
    grid = grid.configure_view(stroke=None).configure_title(fontSize=14, anchor="start")
    grid = grid.configure_legend(labelFontSize=12, orient="top", title=None, symbolSize=90, offset=14)
    settings.output.mkdir(parents=True, exist_ok=True)
    grid.save(str(settings.output / "scale.png"), scale_factor=2)
    grid.save(str(settings.output / "scale.svg"))
    return ["scale.png", "scale.svg"]


def _chart(altair: Any, panel: Panel) -> Any:  # noqa: ANN401  # altair's own types are generated and huge
    low, high = min(panel.sizes), max(panel.sizes)
    places = np.linspace(low, high, 25) if panel.is_smooth else np.array(panel.sizes, dtype=float)
    line = [{"x": float(place), "y": panel.expected(float(place))} for place in places]
    points = [{"x": x, "y": y} for x, y in zip(panel.sizes, panel.measured, strict=True)]
    colour = altair.Color(
        "kind:N",
        scale=altair.Scale(domain=["measured", "expected"], range=["#1f5fa8", "#d1752a"]),
        legend=altair.Legend(),
    )
    x = altair.X("x:Q", title=panel.across, scale=altair.Scale(domain=[0, high * 1.05], nice=False))
    ceiling = 1.15 * max(*panel.measured, *(point["y"] for point in line))
    y = altair.Y("y:Q", title=f"{NAMES[panel.unit]} a round", scale=altair.Scale(domain=[0, ceiling]))
    expected = [{**point, "kind": "expected"} for point in line]
    measured = [{**point, "kind": "measured"} for point in points]
    under = altair.Chart(altair.Data(values=expected)).mark_line(
        strokeDash=[6, 4], strokeWidth=2, interpolate="monotone"
    )
    over = altair.Chart(altair.Data(values=measured)).mark_point(filled=True, size=80, opacity=1)
    layers = [layer.encode(x=x, y=y, color=colour) for layer in (under, over)]
    title = altair.TitleParams(panel.title, subtitle=f"expected: {panel.law}", subtitleFontSize=11)
    return altair.layer(*layers).properties(width=300, height=200, title=title)
