// The charts: drawn as SVG when they come into view, in the page's own colours, so that they follow its scheme, and as
// wide as the page has room for, so that their letters have the same size on every screen.

const CHART_COLOURS = {
  background: null,
  axis: {
    labelColor: "var(--ink)", titleColor: "var(--ink)", gridColor: "var(--grid)",
    domainColor: "var(--muted)", tickColor: "var(--muted)",
  },
  legend: { labelColor: "var(--ink)", titleColor: "var(--ink)" },
  header: { labelColor: "var(--ink)", titleColor: "var(--ink)" },
  title: { color: "var(--ink)", subtitleColor: "var(--muted)" },
  text: { color: "var(--ink)" },
  rule: { color: "var(--ink)" },
  view: { stroke: "var(--line)" },
};

function merged(under, over) {
  const isPlain = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  if (!isPlain(under) || !isPlain(over)) return over;
  const result = { ...under };
  for (const [key, value] of Object.entries(over)) result[key] = merged(under[key], value);
  return result;
}

const WIDEST = 620; // of one panel's inside; wider, the eye loses the line
const NARROWEST = 130;
const BESIDE_FROM = 820; // pixels from which panels may stand beside each other
const BELOW_UNDER = 440; // pixels under which panels that stand beside each other go below
const LETTER = 7.3; // of 14 pixels, on average
const MOST_LETTERS = 24; // of a name in a legend, which is cut there
const SETTLE_MS = 150;

/** The specification for a page with so much room: panels beside or below each other. */
function arranged(spec, room) {
  const result = structuredClone(spec);
  if (result.vconcat && result.usermeta?.beside && room >= BESIDE_FROM) {
    result.hconcat = result.vconcat;
    result.spacing = 32;
    delete result.vconcat;
  } else if (result.hconcat && room < BELOW_UNDER) {
    result.vconcat = result.hconcat;
    delete result.hconcat;
  }
  result.config = merged(result.config ?? {}, CHART_COLOURS);
  delete result.background;
  return result;
}

const panelsOf = (spec) => spec.hconcat ?? spec.vconcat ?? [spec];

/** Give the inside of every panel another width, and whatever goes with it. */
function widen(spec, room, overhead) {
  const columns = spec.hconcat ? spec.hconcat.length : 1;
  for (const panel of panelsOf(spec)) {
    const width = Math.round(Math.min(WIDEST, Math.max(NARROWEST, (room - overhead) / columns)));
    panel.width = width;
    if (panel.title?.text) panel.title.text = inLines(panel.title.text, width);
    for (const { encoding } of [panel, ...(panel.layer ?? [])]) {
      for (const channel of Object.values(encoding ?? {})) {
        const legend = channel?.legend;
        if (legend?.gradientLength) legend.gradientLength = width;
        if (legend?.columns) legend.columns = columnsWithin(width, channel.scale?.domain ?? [], legend.columns);
        if (legend?.title) legend.title = inLines(legend.title, width);
      }
      if (encoding?.x?.title) encoding.x.title = inLines(encoding.x.title, width);
    }
  }
}

/** How many columns of names fit; a legend's own number is the most. */
function columnsWithin(width, names, most) {
  const longest = Math.min(MOST_LETTERS, Math.max(4, ...names.map((name) => String(name).length)));
  return Math.max(1, Math.min(most, Math.floor(width / (longest * LETTER + 26))));
}

/** A title as a list of lines that are not wider than this. */
function inLines(title, width) {
  if (typeof title !== "string" || title.length * LETTER <= width) return title;
  const lines = [""];
  for (const word of title.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (longer.length * LETTER <= width || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

async function embed(plot, spec) {
  plot.shown?.finalize();
  plot.shown = await window.vegaEmbed(plot, spec, { actions: false, renderer: "svg", ast: true, mode: "vega-lite" });
  return Number(plot.querySelector("svg").getAttribute("width"));
}

/** What the reader has chosen with the controls below a chart. */
function chosen(plot, spec) {
  const names = (spec.params ?? []).filter((one) => one.bind && one.bind !== "legend").map((one) => one.name);
  return plot.shown ? names.map((name) => [name, plot.shown.view.signal(name)]) : [];
}

async function draw(plot) {
  const room = plot.clientWidth;
  const original = DATA.charts[plot.dataset.chart];
  const choice = chosen(plot, original);
  const spec = arranged(original, room);
  plot.classList.add("is-drawn");
  plot.drawnFor = room;
  const natural = await embed(plot, spec);
  if (room && Math.abs(natural - room) > 3) {
    // Names and legends beside the panels are as wide as their letters; what is left is the panels'.
    const columns = spec.hconcat ? spec.hconcat.length : 1;
    const inside = columns * Math.max(...panelsOf(spec).map((panel) => panel.width));
    widen(spec, room, natural - inside);
    const reached = await embed(plot, spec);
    // Where what stands beside grew too, such as a title in two lines, once more.
    if (reached > room + 1) {
      widen(spec, room, reached - columns * Math.max(...panelsOf(spec).map((panel) => panel.width)));
      await embed(plot, spec);
    }
  }
  for (const [name, value] of choice) plot.shown.view.signal(name, value);
  if (choice.length) await plot.shown.view.runAsync();
  plot.dataset.room = room; // drawn, for so much room
}

/** Draw a chart unless it is drawn for this width; one at a time, the last width wins. */
function drawFor(plot) {
  plot.queue = (plot.queue ?? Promise.resolve()).then(async () => {
    if (plot.drawnFor === plot.clientWidth || (plot.drawnFor !== undefined && !plot.clientWidth)) return;
    try {
      await draw(plot);
    } catch (error) {
      plot.textContent = `This figure could not be drawn: ${error.message}`;
      console.error(error);
    }
  });
  return plot.queue;
}

function drawWhenSeen() {
  const plots = [...document.querySelectorAll(".plot")];
  const watcher = new IntersectionObserver(
    (seen) => seen.filter((one) => one.isIntersecting).forEach((one) => drawFor(one.target)),
    { rootMargin: "300px" },
  );
  let settled;
  const sizes = new ResizeObserver(() => {
    clearTimeout(settled);
    settled = setTimeout(() => {
      if (matchMedia("print").matches) return;
      plots.filter((plot) => plot.classList.contains("is-drawn") && plot.clientWidth).forEach(drawFor);
    }, SETTLE_MS);
  });
  plots.forEach((plot) => {
    watcher.observe(plot);
    sizes.observe(plot);
  });
  addEventListener("beforeprint", () => plots.filter((plot) => !plot.classList.contains("is-drawn")).forEach(drawFor));
}

if (window.vegaEmbed) drawWhenSeen();
