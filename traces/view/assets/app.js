// State lives in the address (#trace=…&tab=…&q=…), so every view is a link; this file draws it.

const DEFAULTS = {
  trace: "", with: "", part: "", branch: "", colour: "mask", update: "", tab: "conversation",
  q: "", split: "", step: "", reward: "", stop: "", error: "", run: "", file: "", env: "", model: "", sort: "", cols: "",
};
const FILTERS = ["q", "split", "step", "reward", "stop", "error", "run", "file", "env", "model", "sort"];
const KEYS = [["j k ↓ ↑", "next, previous trace"], ["Enter", "open"], ["Esc", "close; leave the search"], ["/", "search"], ["t", "all, train or eval"],
  ["1 … 6", "conversation, tokens, reward, timeline, details, what changed"], ["w", "what changed in this task, from step to step or run to run"], ["n p", "next, previous message or part"], ["c", "compare with the next of its group"],
  ["← →", "in the token view: from token to token"], ["v", "in the token view: colour by the next"], ["y", "copy the address of this view"], ["?", "this help"]];

// In a frame of the page of runs, that page has the title, the theme and the address.
const embedded = parent !== window;
document.documentElement.classList.toggle("embedded", embedded);
let state = { ...DEFAULTS };
let filtered = null; // the state that the table shows
const byId = new Map();

function read() {
  const found = new URLSearchParams(location.hash.slice(1));
  const next = { ...DEFAULTS };
  for (const key of Object.keys(DEFAULTS)) if (found.has(key)) next[key] = found.get(key);
  if (!TABS.some(([key]) => key === next.tab)) next.tab = DEFAULTS.tab;
  if (!COLUMNS[next.sort.replace(/^-/, "")]) next.sort = "";
  if (!COLOURINGS[next.colour]) next.colour = DEFAULTS.colour;
  return next;
}

// Change the view, and the address with it.
function go(change) {
  const next = { ...state, ...change };
  if ("trace" in change && !("with" in change)) next.with = "";
  if ("trace" in change) next.part = next.branch = "";
  if ("part" in change) next.branch = "";
  const hash = new URLSearchParams(Object.entries(next).filter(([key, value]) => value !== DEFAULTS[key])).toString();
  const opens = next.trace && !state.trace;
  history[embedded ? "replaceState" : opens || !next.trace ? "pushState" : "replaceState"](null, "", hash ? `#${hash}` : location.href.split("#")[0]);
  if (embedded) parent.postMessage({ address: hash, opens: Boolean(opens) }, "*");
  return draw(next);
}

async function draw(next) {
  state = next;
  if (!filtered || FILTERS.some((key) => filtered[key] !== state[key])) {
    filtered = next;
    if (!await applyFilters(next, () => filtered === next)) return;
    current = 0;
    grid.scrollTop = 0;
    drawTable();
    drawControls();
  } else if (columnsFor(grid.clientWidth).join() !== shownColumns.join()) {
    drawTable();
    drawControls();
  }
  const drawn = drawDetail(); // it makes the list narrower, before it waits
  const at = shown.findIndex((row) => row.id === state.trace);
  if (at >= 0) choose(at);
  else drawRows();
  return drawn;
}

function move(by) {
  if (!state.trace) choose(current + by);
  else {
    const row = shown[Math.max(0, Math.min(shown.length - 1, shown.findIndex((each) => each.id === state.trace) + by))];
    if (row) go({ trace: row.id });
  }
}

function drawHead() {
  document.title = `${index.title} – traces`;
  document.getElementById("title").replaceChildren(oneLine(index.title));
  const failed = index.rows.filter((row) => row.boundary).length;
  document.getElementById("facts").append(plural(index.files.length, "file"), failed ? el("span", { class: "bad-text" }, `, ${failed} failed`) : "");
  const bad = index.files.filter((file) => file.unreadable);
  if (!bad.length) return;
  const total = bad.reduce((sum, file) => sum + file.unreadable, 0);
  const list = el("ul", {}, ...bad.flatMap((file) => file.problems.map((problem) => el("li", {}, oneLine(`${file.path}, ${problem}`)))));
  document.getElementById("problems").append(el("details", { class: "notice" }, el("summary", {}, `${plural(total, "line")} could not be read as a trace, and ${total === 1 ? "is" : "are"} not shown`), list));
}

const THEMES = ["auto", "light", "dark"];
let theme = "auto";
function setTheme(next) {
  theme = THEMES.includes(next) ? next : "auto";
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  try { localStorage.setItem("vf-view-theme", theme); } catch { /* pages without an origin have none */ }
}

function onKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    const menu = event.target.closest?.(".menu[open]");
    if (menu) { menu.open = false; menu.firstChild.focus(); }
    else if (typing) event.target.blur();
    else if (!help.open && state.trace) { go({ trace: "", with: "" }); grid.focus(); }
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const inGrid = event.target === grid || event.target === document.body;
  const actions = {
    "/": () => document.getElementById("search").focus(),
    "?": () => help.showModal(),
    j: () => move(1), k: () => move(-1),
    v: () => {
      const select = [...document.querySelectorAll(".tokens .bar select")].find((each) => [...each.options].some((option) => option.value === "mask"));
      if (select) go({ colour: select.options[(select.selectedIndex + 1) % select.options.length].value });
    },
    w: () => (state.trace ? go({ tab: "changed" }) : shown[current] && go({ trace: shown[current].id, tab: "changed" })),
    n: () => toPart(1), p: () => toPart(-1),
    t: () => index.varied.has("split") && go({ split: SPLITS[(SPLITS.findIndex(([key]) => key === state.split) + 1) % SPLITS.length][0] }),
    y: () => copy(address()).then((done) => sayCopied(done, "the address of this view")),
    c: () => {
      const group = byId.has(state.trace) ? groupOf(byId.get(state.trace)).filter((row) => row.id !== state.trace) : [];
      const next = group[group.findIndex((row) => row.id === state.with) + 1];
      if (group.length) go({ with: next ? next.id : "" });
    },
  };
  if (inGrid) {
    const page = Math.max(1, Math.floor(grid.clientHeight / ROW) - 2);
    Object.assign(actions, {
      ArrowDown: () => move(1), ArrowUp: () => move(-1), PageDown: () => move(page), PageUp: () => move(-page),
      Home: () => move(-shown.length), End: () => move(shown.length),
      Enter: () => shown[current] && go({ trace: shown[current].id }),
    });
  }
  TABS.forEach(([key], i) => { actions[String(i + 1)] = () => state.trace && go({ tab: key }); });
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

const help = document.getElementById("help");
help.append(el("h2", {}, "Keys"), el("dl", {}, ...KEYS.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
  el("form", { method: "dialog" }, el("button", {}, "Close")));

async function start() {
  index = await inflateJson("index");
  index.rows.forEach((row, n) => {
    row.n = n;
    row.haystack = HAYSTACK.map((key) => row[key]).join("\n").toLowerCase();
    byId.set(row.id, row);
  });
  findGains(index.rows);
  index.varied = new Set(["split", "gain"].filter((key) => new Set(index.rows.map((row) => row[key])).size > 1));
  drawHead();
  startFilters();
  body.addEventListener("click", (event) => {
    const row = shown[event.target.closest(".row")?.dataset.at];
    if (row) go({ trace: row.id });
  });
  grid.addEventListener("scroll", () => requestAnimationFrame(drawRows), { passive: true });
  new ResizeObserver(resized).observe(grid);
  document.addEventListener("keydown", onKey);
  document.getElementById("clear").addEventListener("click", () => go(Object.fromEntries(FILTERS.filter((key) => key !== "sort").map((key) => [key, ""]))));
  document.getElementById("keys").addEventListener("click", () => help.showModal());
  document.getElementById("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
  addEventListener("popstate", () => draw(read()));
  await draw(read());
  document.body.dataset.ready = "true";
}

try { setTheme(localStorage.getItem("vf-view-theme")); } catch { setTheme("auto"); }
start().catch((error) => {
  document.getElementById("problems").append(el("p", { class: "notice bad-text" }, `The page cannot be shown: ${error.message}`));
});
