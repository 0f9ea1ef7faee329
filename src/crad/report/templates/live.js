// Shows how far the run is, in the bar at the page's foot, and fetches the page when there is a newer one.
// The page is loaded again rather than changed in place: its scripts may then be written as for a file on disk.
// What a reader had open, chosen, focused and scrolled to is put back afterwards.

function followRun(page) {
  const key = "crad-live", bar = document.getElementById("crad-live");
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
}
