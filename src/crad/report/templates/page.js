// The report's tabs and its colour scheme. Without this script all parts stand one below the other.

const DATA = JSON.parse(document.getElementById("data").textContent);
const TABS = [...document.querySelectorAll("nav a")];

/** A new element with attributes and children; text stays text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// --- tabs

function panelOf(tab) {
  return document.getElementById(tab.hash.slice(1));
}

function openTab(chosen) {
  for (const tab of TABS) {
    const isChosen = tab === chosen;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    panelOf(tab).hidden = !isChosen;
  }
  // On a narrow screen the tabs scroll: the open one shall be seen, between what fades out at both ends.
  const bar = chosen.parentElement;
  bar.scrollLeft = chosen.offsetLeft - bar.offsetLeft - (bar.clientWidth - chosen.offsetWidth) / 2;
  if (location.hash !== chosen.hash) history.replaceState(null, "", chosen.hash);
}

function tabOfHash() {
  return TABS.find((tab) => tab.hash === location.hash) ?? TABS[0];
}

function moveBetweenTabs(event) {
  const at = TABS.indexOf(event.currentTarget);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1 + TABS.length, Home: 0, End: TABS.length - 1 }[event.key];
  if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const tab = TABS[next % TABS.length];
  openTab(tab);
  tab.focus();
}

function makeTabs() {
  document.body.classList.add("tabbed");
  document.querySelector("nav").setAttribute("role", "tablist");
  for (const tab of TABS) {
    const panel = panelOf(tab);
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    panel.setAttribute("role", "tabpanel");
    tab.addEventListener("keydown", moveBetweenTabs);
    tab.addEventListener("click", (event) => {
      event.preventDefault();
      openTab(tab);
    });
  }
  addEventListener("hashchange", () => openTab(tabOfHash()));
  if (location.hash) openTab(tabOfHash());
  else {
    openTab(TABS[0]);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

// --- light and dark

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function makeThemeButton() {
  const button = document.getElementById("theme");
  const say = () => {
    button.textContent = isDark() ? "Light colours" : "Dark colours";
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    say();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
  say();
}

makeTabs();
makeThemeButton();
