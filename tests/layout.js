// What is wrong with the layout of the open part of a page, as a list of sentences. Read by tests/layout.py.
(() => {
  const SCROLLERS = ".scroll, nav"; // these may hold more than they show, and say so
  const CAPTIONS = "p, figcaption, dd, legend, li, h3";
  const LEAST_LETTERS = 12, LEAST_PIXELS = 10.5, LEAST_CONTRAST = 4.5, SLACK = 1.5;
  const found = [];
  const brush = document.createElement("canvas").getContext("2d");
  const name = (one) => {
    const words = (one.textContent ?? "").trim().replace(/\s+/g, " ").slice(0, 40);
    return `${one.tagName.toLowerCase()}.${one.getAttribute("class") ?? ""} '${words}'`;
  };
  const report = (one, what) => found.push(`${name(one)}: ${what}`);
  const isSeen = (one) => {
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    return one.checkVisibility() && style.visibility !== "hidden" && style.clipPath === "none" && box.width > 0;
  };
  const blockAround = (one) => {
    let around = one.parentElement;
    while (/^(inline|contents)$/.test(getComputedStyle(around).display)) around = around.parentElement;
    return around;
  };
  const hasOwnText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());

  function checkWidth(one, style) {
    if (one.parentElement.closest(SCROLLERS)) return;
    const box = one.getBoundingClientRect();
    if (box.right > innerWidth + SLACK || box.left < -SLACK) report(one, `leaves the screen (${box.left} to ${box.right})`);
    if (style.position !== "static" && style.position !== "relative" && style.position !== "sticky") return;
    const around = blockAround(one).getBoundingClientRect();
    if (box.right > around.right + SLACK || box.left < around.left - SLACK) report(one, "wider than its container");
    const mayHoldMore = one.matches(`${SCROLLERS}, .track, select, input`) || style.textOverflow === "ellipsis";
    if (!mayHoldMore && style.display !== "inline" && one.clientWidth && one.scrollWidth > one.clientWidth + SLACK)
      report(one, `holds ${one.scrollWidth} pixels in ${one.clientWidth}`);
  }

  // Names with hyphens and long paths may break; a plain word that does has no room.
  function checkWords(one) {
    for (const node of one.childNodes) {
      if (node.nodeType !== 3) continue;
      for (const word of [...node.data.matchAll(/(?<!\S)[\p{L}\d]{2,12}(?!\S)/gu)].slice(0, 12)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        if (lines.size > 1) return report(one, `the word '${word[0]}' is broken`);
      }
    }
  }

  function checkText(one, style) {
    checkWords(one);
    if (parseFloat(style.fontSize) < LEAST_PIXELS) report(one, `letters of ${style.fontSize}`);
    if (one.matches(CAPTIONS) && one.textContent.trim().length > LEAST_LETTERS) {
      brush.font = style.font;
      const least = brush.measureText("0".repeat(LEAST_LETTERS)).width;
      if (one.getBoundingClientRect().width < least) report(one, `narrower than ${LEAST_LETTERS} letters`);
    }
  }

  const channels = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
  function groundOf(one) {
    for (let at = one; at; at = at.parentElement) {
      const [r, g, b, alpha = 1] = channels(getComputedStyle(at).backgroundColor);
      if (alpha > 0.5) return [r, g, b];
    }
    return [255, 255, 255];
  }
  function brightness(colour) {
    const [r, g, b] = colour.slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  function checkContrast(one, colour) {
    const [dark, light] = [brightness(channels(colour)), brightness(groundOf(one))].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < LEAST_CONTRAST) report(one, `contrast ${contrast.toFixed(2)}`);
  }

  function checkDrawing(svg) {
    const frame = svg.getBoundingClientRect();
    const scale = frame.width / Number(svg.getAttribute("width"));
    const texts = [...svg.querySelectorAll("text")].filter(
      (one) => one.textContent.trim() && getComputedStyle(one).opacity !== "0" && getComputedStyle(one).display !== "none",
    );
    const boxes = texts.map((one) => one.getBoundingClientRect());
    const isTurned = texts.map((one) => {
      const { a, b } = one.getCTM();
      return Math.abs(a) > 0.01 && Math.abs(b) > 0.01;
    });
    texts.forEach((one, i) => {
      const box = boxes[i];
      const cut = [frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom];
      if (Math.max(...cut) > 2.5) report(one, `cut at the edge of its chart by ${Math.max(...cut).toFixed(1)}`);
      if (parseFloat(getComputedStyle(one).fontSize) * scale < LEAST_PIXELS) report(one, "letters too small in a chart");
      if (!one.closest(".mark-text.role-mark")) checkContrast(svg.parentElement, getComputedStyle(one).fill);
      for (let k = 0; k < i; k++) {
        if (isTurned[i] || isTurned[k]) continue;
        const other = boxes[k];
        const width = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const height = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (width > 1 && height > 4) report(one, `overlaps ${name(texts[k])}`);
      }
    });
  }

  for (const one of document.body.querySelectorAll("*")) {
    if (one.closest("script, style, noscript, .skip, #vg-tooltip-element, option") || one.ownerSVGElement) continue;
    if (!isSeen(one)) continue;
    const style = getComputedStyle(one);
    checkWidth(one, style);
    if (hasOwnText(one)) {
      checkText(one, style);
      if (!one.closest("[aria-hidden]") && !one.disabled) checkContrast(one, style.color);
    }
    if (one.matches(".plot svg")) checkDrawing(one);
  }
  return found;
})();
