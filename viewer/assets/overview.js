// The overview: numbers asked for first, alarms, where the time goes, and curves.

const charts = new Map();
const parts = {};

function drawOverview() {
  const box = document.getElementById("overview");
  if (!parts.runs) {
    for (const name of ["waits", "tiles", "alarms", "runs", "controls", "curves", "time"]) box.append(parts[name] = el("section", { class: `o-${name}` }));
  }
  const runs = model.runs;
  runs.forEach((run, i) => { run.colour = i % 10; });
  const shown = visible();
  state.shown = shown;
  state.end = endOf(shown, state.by);
  parts.waits.replaceChildren(...waits(runs));
  parts.tiles.replaceChildren(...(shown.length === 1 ? tilesOf(shown[0]) : []));
  parts.alarms.replaceChildren(...alarmsOf(shown));
  drawRuns(parts.runs, runs);
  drawControls(parts.controls, shown);
  drawCurves(parts.curves, shown);
  parts.time.replaceChildren(...timeOf(shown));
}

const visible = () => model.runs.filter((run) => !state.hide.includes(run.name));

function waits(runs) {
  const said = model.missing.map((text) => el("p", { class: "notice wait" }, oneLine(text), state.live ? " This page shows it as soon as it is there." : ""));
  if (runs.length && !runs.some((run) => run.count)) said.push(el("p", { class: "notice wait" }, "The run has begun; no step has ended yet.", state.live ? " The first one appears here by itself." : ""));
  if (!runs.length && !said.length) said.push(el("p", { class: "notice wait" }, "There is no training run here: see the other views."));
  return said;
}

const tile = (value, name) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name));

function tilesOf(run) {
  const [steps, held] = pointsOf(run, "eval/reward/mean");
  const [rewardSteps, rewards] = pointsOf(run, "reward/mean");
  const tiles = [];
  if (held.length) {
    const last = held.length - 1, best = held.indexOf(Math.max(...held));
    tiles.push(tile(last ? `${held[0].toFixed(3)} → ${held[last].toFixed(3)}` : held[0].toFixed(3), `held-out reward, after step ${number(steps[last])}`));
    if (last) tiles.push(tile(held[best].toFixed(3), `best of them, after step ${number(steps[best])}`));
  }
  if (rewards.length) tiles.push(tile(rewards[rewards.length - 1].toFixed(3), `training reward in step ${number(rewardSteps[rewardSteps.length - 1])}`));
  const spent = lastOf(run, "time/total");
  if (spent !== null) tiles.push(tile(duration(spent), "for the last step"), tile(duration(sumOf(run, "time/total")), "in all steps"));
  if (sumOf(run, "tokens/sampled")) tiles.push(tile(short(sumOf(run, "tokens/sampled")), "tokens sampled for training"));
  return tiles.length ? [el("div", { class: "tiles" }, ...tiles)] : [];
}

function alarmsOf(runs) {
  const said = runs.flatMap((run) => (run.alarms ?? []).map((text) => el("li", {}, runs.length > 1 ? el("b", {}, oneLine(run.name), ": ") : null, oneLine(text))));
  return said.length ? [el("h2", {}, "Alarms"), el("div", { class: "alarms" }, el("ul", {}, ...said))] : [];
}

// Every control is made once, so that none loses the focus while data arrives.
function drawControls(box, runs) {
  if (!box.childElementCount) {
    const smooth = el("input", { type: "range", id: "smooth", min: "0", max: "0.98", step: "0.02", oninput: () => go({ smooth: Number(smooth.value) }) });
    const log = el("input", { type: "checkbox", id: "log", onchange: () => go({ log: log.checked }) });
    const by = el("select", { id: "by", onchange: () => go({ by: by.value, zoom: null }) }, el("option", { value: "step" }, "steps"), el("option", { value: "time" }, "time"));
    box.append(el("h2", {}, "Curves"), el("div", { class: "controls" },
      el("label", { for: "smooth" }, "Smoothing ", el("output", { id: "smooth-value" })), smooth,
      el("label", {}, log, " Logarithmic"), el("label", {}, "Over ", by),
      el("span", { class: "faint", id: "zoom-help" }, "Drag in a chart to zoom; double-click ends it."),
      el("button", { type: "button", id: "unzoom", onclick: () => go({ zoom: null }) }, "Show all")));
  }
  box.hidden = !runs.some((run) => run.count);
  document.getElementById("smooth").value = state.smooth;
  document.getElementById("smooth-value").textContent = state.smooth ? state.smooth.toFixed(2) : "off";
  document.getElementById("log").checked = state.log;
  document.getElementById("by").value = state.by;
  document.getElementById("unzoom").hidden = !state.zoom;
  document.getElementById("zoom-help").hidden = Boolean(state.zoom);
}

function drawCurves(box, runs) {
  const groups = groupsFor(runs);
  const wanted = JSON.stringify(groups.map(([title]) => title));
  if (box.dataset.drawn !== wanted) {
    box.dataset.drawn = wanted;
    const there = new Map([...box.children].map((details) => [details.dataset.title, details]));
    box.replaceChildren(...groups.map(([title, , atFirst]) => there.get(title)
      ?? el("details", { open: atFirst, "data-title": title, ontoggle: () => drawCurves(box, visible()) },
        el("summary", {}, el("h2", {}, title), el("small", {})), el("div", { class: "grid" }))));
  }
  groups.forEach(([, specs], at) => drawGroup(box.children[at], specs, runs));
}

// The charts of a group, as far as it is open; those that were there before stay as they are.
function drawGroup(details, specs, runs) {
  details.querySelector("small").textContent = ` ${specs.length}`;
  const grid = details.querySelector(".grid");
  if (!details.open) return grid.replaceChildren();
  const found = specs.map((spec) => {
    const id = JSON.stringify([details.dataset.title, spec.title, spec.metrics]);
    if (!charts.has(id)) charts.set(id, makeChart(spec));
    return charts.get(id);
  });
  if (found.length !== grid.childElementCount || found.some((chart, i) => chart.node !== grid.children[i])) grid.replaceChildren(...found.map((chart) => chart.node));
  specs.forEach((spec, i) => {
    const single = spec.stacked && runs.length > 1; // several runs have bars below instead
    found[i].update(single ? [] : runs, { ...state, theme: ink.text });
  });
}

// Shares of the last steps' time as one bar for each run.
function timeOf(runs) {
  const bars = runs.map((run) => [run, sharesOf(run)]).filter(([, shares]) => shares.length);
  if (!bars.length) return [];
  const used = PARTS.filter((part) => bars.some(([, shares]) => shares.some(([name]) => name === part)));
  const rows = bars.map(([run, shares]) => {
    const said = shares.map(([part, share]) => `${NOUN[part]} ${percent(share)}`).join(", ");
    const bar = el("div", { class: "stack", role: "img", "aria-label": said });
    for (const [part, share] of shares) {
      const piece = el("i", { class: `p${PARTS.indexOf(part)}`, title: `${NOUN[part]} ${Math.round(100 * share)} %` });
      piece.style.width = `${100 * share}%`;
      bar.append(piece);
    }
    return el("div", { class: "stack-row" }, runs.length > 1 ? el("span", { class: "stack-name", title: run.name }, oneLine(run.name)) : null, bar);
  });
  const keys = used.map((part) => {
    const share = bars.length === 1 ? bars[0][1].find(([name]) => name === part)?.[1] ?? 0 : null;
    return el("span", { class: "key" }, el("i", { class: `p${PARTS.indexOf(part)}` }), NOUN[part], share === null ? null : el("b", {}, `${Math.round(100 * share)} %`));
  });
  const advice = runs.length === 1 ? (runs[0].advice ?? []).map((text) => el("li", {}, oneLine(text))) : [];
  return [el("h2", {}, "Where the time goes ", el("small", {}, "last 20 steps")), ...rows, el("p", { class: "keys" }, ...keys), advice.length ? el("ul", { class: "advice" }, ...advice) : ""];
}

function sharesOf(run) {
  const n = run.count ?? 0;
  const sums = PARTS.map((part) => [part, (run.columns[`time/${part}`] ?? []).slice(Math.max(0, n - 20)).reduce((a, b) => a + (b ?? 0), 0)]);
  const total = sums.reduce((a, [, seconds]) => a + seconds, 0);
  return total ? sums.filter(([, seconds]) => seconds > 0).map(([part, seconds]) => [part, seconds / total]) : [];
}
