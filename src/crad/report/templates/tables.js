// The tables: a cue where one is wider than its place, and every one as a file for a spreadsheet.

const CUT_PIXELS = 2;
// What a spreadsheet would compute rather than show, unless it is a number or a mean with its spread.
const FORMULA = /^[=+\-@\t\r]/;
const NUMBER = /^[+-]?\d[\d,]*(\.\d+)?( ± \d+(\.\d+)?)?$/;

// --- wide ones

function markCut(scroller) {
  const hidden = scroller.scrollWidth - scroller.clientWidth;
  const box = scroller.parentElement;
  const heads = [...(scroller.querySelector("tbody tr")?.cells ?? [])].filter((cell) => cell.tagName === "TH");
  box.style.setProperty("--first", `${heads[0]?.offsetWidth ?? 0}px`); // where the second of two that stay begins
  box.style.setProperty("--heads", `${heads.reduce((sum, cell) => sum + cell.offsetWidth, 0)}px`);
  box.classList.toggle("cut-left", scroller.scrollLeft > CUT_PIXELS);
  box.classList.toggle("cut-right", hidden - scroller.scrollLeft > CUT_PIXELS);
  const cue = box.parentElement.querySelector(":scope > .cue");
  if (cue) cue.hidden = hidden <= CUT_PIXELS;
}

function watchScrollers() {
  const watcher = new ResizeObserver((seen) => seen.forEach((one) => markCut(one.target.closest(".scroll, nav"))));
  for (const scroller of document.querySelectorAll(".wide > .scroll, .tabs > nav")) {
    watcher.observe(scroller);
    for (const inside of scroller.querySelectorAll(":scope > table")) watcher.observe(inside);
    scroller.addEventListener("scroll", () => markCut(scroller), { passive: true });
  }
}

// --- as files

function csvCell(text) {
  const plain = text.trim().replace(/\s+/g, " ");
  if (plain === "-") return ""; // nothing was measured
  const safe = FORMULA.test(plain) && !NUMBER.test(plain) ? `'${plain}` : plain;
  return /[",;\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** What is drawn rather than written has no column in a file. */
function csvOf(table) {
  const lines = [...table.rows].map((row) =>
    [...row.cells]
      .filter((cell) => !cell.classList.contains("axis"))
      .flatMap((cell) => [csvCell(cell.textContent), ...Array(cell.colSpan - 1).fill("")])
      .join(","),
  );
  return `${lines.join("\r\n")}\r\n`;
}

function fileName(name) {
  const words = `${document.title} ${name}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  return `${words}.csv`;
}

function saveTable(button) {
  const table = button.closest(".table").querySelector("table");
  // The mark at the beginning tells a spreadsheet that this is UTF-8.
  const address = URL.createObjectURL(new Blob(["\ufeff", csvOf(table)], { type: "text/csv;charset=utf-8" }));
  make("a", { href: address, download: fileName(button.dataset.name) }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

watchScrollers();
for (const button of document.querySelectorAll("button.csv")) {
  button.hidden = false;
  button.addEventListener("click", () => saveTable(button));
}
