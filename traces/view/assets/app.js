// State lives in the address (#trace=…&tab=…&q=…), so every view is a link; this file draws it.

const DEFAULTS = { trace: "", with: "", part: "", tab: "conversation", q: "", reward: "", stop: "", error: "", file: "", env: "", model: "", sort: "" };
const FILTERS = ["q", "reward", "stop", "error", "file", "env", "model", "sort"];
const KEYS = [["j k ↓ ↑", "next, previous trace"], ["Enter", "open"], ["Esc", "close; leave the search"], ["/", "search"],
  ["1 … 5", "conversation, tokens, reward, timeline, details"], ["c", "compare with the next of its group"], ["← →", "in the token view: from token to token"], ["?", "this help"]];

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
  if (!COLUMNS.some(([key]) => key === next.sort.replace(/^-/, ""))) next.sort = "";
  return next;
}

// Change the view, and the address with it.
function go(change) {
  const next = { ...state, ...change };
  if ("trace" in change && !("with" in change)) next.with = "";
  if ("trace" in change) next.part = "";
  const hash = new URLSearchParams(Object.entries(next).filter(([key, value]) => value !== DEFAULTS[key])).toString();
  const opens = next.trace && !state.trace;
  history[embedded ? "replaceState" : opens || !next.trace ? "pushState" : "replaceState"](null, "", hash ? `#${hash}` : location.href.split("#")[0]);
  if (embedded) parent.postMessage({ address: hash, opens: Boolean(opens) }, "*");
  return draw(next);
}

function draw(next) {
  state = next;
  if (!filtered || FILTERS.some((key) => filtered[key] !== state[key])) {
    filtered = state;
    applyFilters(state);
    current = 0;
    grid.scrollTop = 0;
    drawControls();
    drawTable();
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

function drawControls() {
  const rows = index.rows;
  const count = (test) => rows.filter(test).length;
  const values = (key) => [...new Set(rows.map((row) => row[key]))].filter((value) => value !== "").sort();
  const set = (key) => (value) => go({ [key]: value });
  const some = (key, label, options) => (options.length > 1 ? [chooser(label, [["", "all"], ...options], state[key], set(key))] : []);
  const clip = (text) => (text.length > 48 ? `…${text.slice(-47)}` : text);
  const old = document.getElementById("search");
  const search = old ?? el("input", { id: "search", type: "search", placeholder: "Search: words, reward>=0.5, turns>3, -stop:terminated", "aria-label": "Search", spellcheck: "false" });
  if (!old) {
    let timer;
    search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => go({ q: search.value }), 120); });
  }
  if (document.activeElement !== search) search.value = state.q;
  const controls = el("div", { class: "selects" },
    ...some("reward", "Reward", [["full", "1"], ["part", "between"], ["zero", "0"], ["none", "none"]].map(([key, text]) => [key, `${text} (${count(REWARDS[key])})`])),
    ...some("stop", "Stop", values("stop").map((value) => [value, `${value.replaceAll("_", " ")} (${count((row) => row.stop === value)})`])),
    ...some("error", "Errors", [["none", "without"], ["any", `with (${count((row) => row.boundary)})`], ...values("boundary").map((value) => [`=${value}`, `${value} (${count((row) => row.boundary === value)})`])]),
    ...some("file", "File", index.files.map((file, i) => [String(i), `${clip(file.path)} (${file.read})`])),
    ...some("env", "Environment", values("environment").map((value) => [value, clip(value)])),
    ...some("model", "Model", values("model").map((value) => [value, clip(value)])));
  const active = document.activeElement?.closest?.(".selects") ? [...document.querySelectorAll(".selects select")].indexOf(document.activeElement) : -1;
  document.querySelector(".selects")?.replaceWith(controls);
  if (!old) document.getElementById("filters").append(search, controls, el("span", { id: "count", class: "faint", role: "status" }));
  if (active >= 0) document.querySelectorAll(".selects select")[active]?.focus();
  const rewards = shown.map((row) => row.reward).filter((reward) => typeof reward === "number");
  const mean = rewards.length ? `, mean reward ${(rewards.reduce((a, b) => a + b, 0) / rewards.length).toFixed(3)}` : "";
  document.getElementById("count").textContent = `${shown.length === rows.length ? plural(rows.length, "trace") : `${number(shown.length)} of ${plural(rows.length, "trace")}`}${mean}`;
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
    if (typing) event.target.blur();
    else if (!help.open && state.trace) { go({ trace: "", with: "" }); grid.focus(); }
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const inGrid = event.target === grid || event.target === document.body;
  const actions = {
    "/": () => document.getElementById("search").focus(),
    "?": () => help.showModal(),
    j: () => move(1), k: () => move(-1),
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
  drawHead();
  body.addEventListener("click", (event) => {
    const row = shown[event.target.closest(".row")?.dataset.at];
    if (row) go({ trace: row.id });
  });
  grid.addEventListener("scroll", () => requestAnimationFrame(drawRows), { passive: true });
  new ResizeObserver(drawRows).observe(grid);
  document.addEventListener("keydown", onKey);
  document.getElementById("clear").addEventListener("click", () => go({ ...DEFAULTS, trace: state.trace, with: state.with, tab: state.tab }));
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
