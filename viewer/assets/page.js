// The page: its address (#/overview?by=time…), its views, and where its data comes from.

const VIEWS = [["overview", "Overview"], ["evaluations", "Evaluations"], ["traces", "Traces"]];
const THEMES = ["auto", "light", "dark"];
const state = { view: "", rest: "", hide: [], by: "step", smooth: 0, log: false, zoom: null, of: "", base: "", live: document.body.dataset.mode === "live", shown: [], end: 1 };

function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const found = new URLSearchParams(query);
  const zoom = (found.get("zoom") ?? "").split("~").map(Number);
  Object.assign(state, {
    view: VIEWS.some(([name]) => name === path) ? path : "",
    rest: path === "traces" ? query : "",
    hide: found.getAll("hide"),
    by: found.get("by") === "time" ? "time" : "step",
    smooth: Math.min(0.98, Math.max(0, Number(found.get("smooth")) || 0)),
    log: found.get("log") === "1",
    of: found.get("of") ?? "",
    base: found.get("base") ?? "",
    zoom: zoom.length === 2 && zoom[1] > zoom[0] ? zoom : null,
  });
}

function address() {
  if (state.view === "traces") return `#/traces${state.rest ? `?${state.rest}` : ""}`;
  const query = new URLSearchParams();
  if (shownView() === "evaluations") {
    for (const name of ["of", "base"]) if (state[name]) query.set(name, state[name]);
    return `#/evaluations${query.size ? `?${query}` : ""}`;
  }
  for (const name of state.hide) query.append("hide", name);
  if (state.by !== "step") query.set("by", state.by);
  if (state.smooth) query.set("smooth", String(state.smooth));
  if (state.log) query.set("log", "1");
  if (state.zoom) query.set("zoom", state.zoom.map((value) => Number(value.toPrecision(6))).join("~"));
  return `#/${shownView()}${query.size ? `?${query}` : ""}`;
}

// Change what is shown, and the address with it.
function go(change) {
  const moves = "view" in change && change.view !== shownView();
  Object.assign(state, change);
  history[moves ? "pushState" : "replaceState"](null, "", address());
  draw();
}

// Without a choice: evaluations where there is no run, and traces where there is nothing else.
function shownView() {
  if (state.view) return state.view;
  if (model.runs.length) return "overview";
  if (model.evaluations.length) return "evaluations";
  return Object.keys(model.traces.files).length ? "traces" : "overview";
}

let planned = false;
function drawSoon() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => { planned = false; draw(); });
}

function draw() {
  const view = shownView();
  document.title = model.title || "vf-rl";
  document.getElementById("title").replaceChildren(oneLine(model.title));
  for (const [name] of VIEWS) {
    document.getElementById(name).hidden = name !== view;
    const link = document.getElementById(`to-${name}`);
    if (name === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.dataset.view = view;
  if (view === "overview") drawOverview();
  if (view === "evaluations") drawEvaluations();
  if (view === "traces") drawTraces();
}

let frame = null, framed = "", asked = 0, quietUntil = Infinity;

// The trace viewer is a page of its own in a frame; its address is the end of this page's.
function drawTraces() {
  const box = document.getElementById("traces");
  const samples = document.getElementById("samples");
  const there = state.live ? Object.keys(model.traces.files).length : document.getElementById("traces-page");
  if (!frame && there) {
    frame = el("iframe", { title: "Traces", onload: () => {
      if (!asked) return; // the empty page before the first
      document.getElementById("newer").hidden = true;
      quietUntil = performance.now() + Math.max(5000, 10 * (performance.now() - asked));
    } });
    box.replaceChildren(el("div", { id: "newer", class: "notice wait", role: "status", hidden: true }), frame);
    loadTraces();
  } else if (!frame) {
    box.replaceChildren(samples.childElementCount ? samples : el("p", { class: "notice wait" }, "There are no traces yet."));
    samples.hidden = false;
  } else if (state.live && JSON.stringify(model.traces.files) !== framed) {
    const newer = document.getElementById("newer");
    if (quietUntil < Infinity && newer.hidden) newer.replaceChildren("There are new traces. ", el("button", { type: "button", onclick: loadTraces }, "Show them"));
    newer.hidden = false;
    // By itself where nobody reads one, and seldom enough that many traces cost little.
    if (!/(^|&)(trace|q)=/.test(state.rest) && performance.now() > quietUntil) loadTraces();
  }
}

async function loadTraces() {
  framed = JSON.stringify(model.traces.files);
  asked = performance.now();
  quietUntil = Infinity;
  const newer = document.getElementById("newer");
  newer.replaceChildren("Reading the traces …");
  newer.hidden = false;
  const url = state.live ? `traces?${Math.round(asked)}` : URL.createObjectURL(new Blob([await inflated("traces-page")], { type: "text/html" }));
  frame.contentWindow.location.replace(new URL(`${url}#${state.rest}`, location.href));
}

async function inflated(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(text, (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

function apply(name, data) {
  if (name === "begin") Object.assign(model, { runs: [], evaluations: [], differences: {} });
  else if (name === "page") Object.assign(model, data);
  else if (name === "traces") model.traces = data;
  else if (name === "evaluations") Object.assign(model, data);
  else if (name === "run") merge(data);
}

function setTheme(next) {
  const theme = THEMES.includes(next) ? next : "auto";
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").replaceChildren(el("span", {}, "Theme: "), theme);
  try { localStorage.setItem("vf-view-theme", theme); } catch { /* pages without an origin have none */ }
  readColours();
  try { if (frame) frame.contentDocument.documentElement.dataset.theme = theme; } catch { /* an offline frame has its own */ }
}

function listen() {
  const status = document.getElementById("status");
  const source = new EventSource("events");
  for (const name of ["begin", "page", "traces", "run", "evaluations", "whole"]) {
    source.addEventListener(name, (event) => {
      apply(name, bare(JSON.parse(event.data)));
      status.textContent = "live";
      status.className = "live";
      if (name === "whole") { draw(); document.body.dataset.ready = "true"; }
      else if (name !== "begin" && document.body.dataset.ready) drawSoon();
    });
  }
  source.addEventListener("error", () => { status.textContent = "vf-rl view has ended"; status.className = "ended"; });
}

async function start() {
  const links = VIEWS.map(([name, text]) => el("a", { id: `to-${name}`, href: `#/${name}` }, text));
  document.getElementById("views").append(...links);
  let theme = "auto";
  try { theme = localStorage.getItem("vf-view-theme"); } catch { /* as above */ }
  setTheme(theme);
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  addEventListener("message", (event) => { // the trace viewer tells its address
    if (frame && event.source === frame.contentWindow && typeof event.data?.address === "string" && shownView() === "traces") {
      state.view = "traces";
      state.rest = event.data.address;
      history[event.data.opens ? "pushState" : "replaceState"](null, "", address());
    }
  });
  addEventListener("popstate", () => {
    const before = state.rest;
    readAddress();
    if (frame && state.view === "traces" && state.rest !== before) loadTraces();
    draw();
  });
  readAddress();
  if (state.live) return listen();
  for (const [name, data] of bare(JSON.parse(new TextDecoder().decode(await inflated("events"))))) apply(name, data);
  document.getElementById("status").textContent = "offline copy";
  draw();
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  document.getElementById("overview").append(el("p", { class: "notice bad-text" }, `The page cannot be shown: ${error.message}`));
});
