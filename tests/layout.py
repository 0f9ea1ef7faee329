"""Whether a page is readable as it lies on the screen: nothing cut, squeezed, tiny, pale or one over the other."""

from __future__ import annotations

from pathlib import Path

from tests.chromium import Tab

PROBE = Path(__file__).with_name("layout.js")


def layout_problems(tab: Tab) -> list[str]:
    """What is wrong with the part of the page that is open, in words."""
    found: list[str] = tab.value(PROBE.read_text(encoding="utf-8"))
    return found


def draw_all(tab: Tab) -> None:
    """Bring every chart of the open tab into view, and wait until it is drawn for the room that it has."""
    shown = "[...document.querySelectorAll('.plot')].filter(plot => plot.offsetParent)"
    for i in range(tab.value(f"{shown}.length")):
        tab.value(f"{shown}[{i}].scrollIntoView()")
        tab.wait_for(f"{shown}[{i}].dataset.room === String({shown}[{i}].clientWidth)")
    tab.value("scrollTo(0, 0)")


def open_part(tab: Tab, name: str) -> None:
    """Open a tab of the page with all its charts drawn."""
    tab.value(f"document.getElementById('to-{name}').click()")
    draw_all(tab)
