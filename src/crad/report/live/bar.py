"""What the live page has that the file does not: the bar that says how far the run is and fetches what is new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape

from crad.config import Experiment
from crad.report.svg import partition_picture
from crad.runs.names import display_name
from crad.runs.records import Record

PLAIN_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1"><title>{title}</title><style>
:root{{--ink:#222;--paper:#fff;--grid:#ddd;color-scheme:light dark}}
@media(prefers-color-scheme:dark){{:root{{--ink:#e8e8e8;--paper:#16181c;--grid:#3a3d44}}}}
body{{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}}
body{{max-width:68rem;margin:auto;padding:1rem}} figure{{margin:1.5rem 0;overflow-x:auto}}
</style></head><body><main><h1>{title}</h1>{body}</main></body></html>
"""

# The page is loaded anew rather than changed in place: its scripts may then be written as for a file on disk.
# What a reader had open, chosen, focused and scrolled to is put back afterwards.
LIVE_BAR = """<style>
#crad-live{position:fixed;inset:auto 0 0 0;padding:.4rem 1rem;font:14px/1.4 system-ui,sans-serif;text-align:center;
background:#0b4f7c;color:#fff;z-index:9}
body{padding-bottom:3rem}
@media print{#crad-live{display:none}}
</style><aside id="crad-live" role="status"></aside><script>
(() => {
  const page = %s, key = "crad-live", bar = document.getElementById("crad-live");
  const say = text => { if (bar.textContent !== text) bar.textContent = text; };
  const fields = () => [...document.querySelectorAll("input[id],select[id],details[id]")];
  const isBox = one => one.matches("[type=checkbox],[type=radio]");
  const state = one => one.matches("details") ? one.open : isBox(one) ? one.checked : one.value;
  const keep = () => sessionStorage.setItem(key, JSON.stringify({
    x: scrollX, y: scrollY, focus: document.activeElement?.id, fields: fields().map(one => [one.id, state(one)])}));
  const putBack = ({x, y, focus, fields}) => {
    for (const [id, was] of fields) {
      const one = document.getElementById(id);
      if (!one || state(one) === was) continue;
      if (one.matches("details")) { one.open = was; continue; }
      if (isBox(one)) one.checked = was; else one.value = was;
      for (const kind of ["input", "change"]) one.dispatchEvent(new Event(kind, {bubbles: true}));
    }
    if (focus) document.getElementById(focus)?.focus({preventScroll: true});
    // Charts are drawn after the page has loaded: until it is long enough again, or the reader moves.
    const until = performance.now() + 3000;
    let moved = false;
    for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"])
      addEventListener(kind, () => { moved = true; }, {once: true, passive: true});
    const scroll = () => {
      if (moved) return;
      if (scrollX !== x || scrollY !== y) scrollTo({left: x, top: y, behavior: "instant"});
      if (performance.now() < until) requestAnimationFrame(scroll);
    };
    scroll();
  };
  history.scrollRestoration = "manual";
  const kept = sessionStorage.getItem(key);
  sessionStorage.removeItem(key);
  if (kept) addEventListener("load", () => putBack(JSON.parse(kept)));
  let pressed = false;
  addEventListener("pointerdown", () => { pressed = true; });
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => { pressed = false; });
  const isBusy = () => pressed || !getSelection().isCollapsed;
  let silent = 0, tag = "", newest = page.version;
  const ask = async () => {
    try {
      const reply = await fetch("version", {headers: tag ? {"If-None-Match": tag} : {}});
      silent = 0;
      if (reply.ok) {
        tag = reply.headers.get("ETag");
        const status = await reply.json();
        newest = status.version;
        say(status.text);
      }
      if (newest !== page.version && !isBusy()) { keep(); location.reload(); return; }
    } catch { if (++silent > 1) say(page.farewell); }
    setTimeout(ask, 1000 * page.poll_seconds);
  };
  say(page.text);
  if (!page.is_finished) setTimeout(ask, 1000 * page.poll_seconds);
})();
</script>"""


def with_live_bar(page: str, status: Mapping[str, object]) -> bytes:
    """The page with a bar at its foot that shows `status` and asks for a newer one."""
    bar = LIVE_BAR % json.dumps(status).replace("<", "\\u003c")
    before, end, after = page.rpartition("</body>")
    return f"{before}{bar}{end}{after}".encode() if end else f"{page}{bar}".encode()


def starting_page(label: str) -> str:
    """Before the data is divided."""
    return PLAIN_PAGE.format(title=escape(f"CRAD: {label}"), body="<p>The data is being read and divided.</p>")


def waiting_page(experiment: Experiment, partition: Record, *, label: str) -> str:
    """Until a round has been tested: who holds what, and when there will be more to see."""
    first = min(experiment.eval_every, experiment.rounds)
    sentence = (
        f"{display_name(experiment)} on {experiment.dataset}: {experiment.clients} clients, "
        f"{experiment.rounds} rounds. "
        f"The first result comes at round {first}."
    )
    body = f"<p>{escape(sentence)}</p><h2>Who holds what</h2><figure>{partition_picture(partition)}</figure>"
    return PLAIN_PAGE.format(title=escape(f"CRAD: {label}"), body=body)
