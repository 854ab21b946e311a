// Evaluations: estimates with their intervals, rewards, pass@k, differences, and what failed.

const LEAST = 1e-9;
const short3 = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const interval = (e) => (e.low === null ? "" : ` [${short3(e.low)}, ${short3(e.high)}]`);

let drawnEvaluations = "";
function drawEvaluations() {
  const box = document.getElementById("evaluations");
  const all = model.evaluations;
  const now = JSON.stringify([all, model.differences, state.of, state.base, ink.text]);
  if (now === drawnEvaluations) return; // so that no menu closes while other data arrives
  drawnEvaluations = now;
  if (!all.length) return box.replaceChildren(el("p", { class: "notice wait" }, "No evaluation has begun yet.", state.live ? " It appears here by itself." : ""));
  const focus = document.activeElement?.id;
  const chosen = all.find((each) => each.id === state.of) ?? all[all.length - 1];
  box.replaceChildren(
    el("section", {}, el("h2", {}, all.length > 1 ? `${all.length} evaluations` : "Evaluation"), forest(all, chosen)),
    ...compared(all),
    el("section", {}, el("h2", {}, all.length > 1 ? "One of them: " : "Details", all.length > 1 ? chooserOf("of", all, chosen, (id) => go({ of: id })) : ""), ...detailsOf(chosen)));
  if (focus) document.getElementById(focus)?.focus();
}

function chooserOf(id, all, chosen, then) {
  const select = el("select", { id: `choose-${id}`, "aria-label": id === "of" ? "Evaluation" : "Compared with", onchange: () => then(select.value) },
    ...all.map((each) => el("option", { value: each.id, selected: each.id === chosen.id }, each.name)));
  return select;
}

const tracesOf = (each, more = {}) => `#/traces?${new URLSearchParams({ run: each.run, split: "eval", ...(each.step === null ? {} : { step: String(each.step) }), ...more })}`;

// A mean with its interval on an axis from low to high, as a bar.
function whisker(e, low, high, colour = "", zero = null) {
  const at = (value) => `${(100 * (Math.min(high, Math.max(low, value)) - low)) / (high - low || 1)}%`;
  const bar = el("div", { class: `whisker ${colour}`, role: "img", "aria-label": e ? `${short3(e.mean)}${interval(e)}` : "none" });
  if (zero !== null) { const line = el("i", { class: "zero-line" }); line.style.left = at(zero); bar.append(line); }
  if (!e) return bar;
  if (e.low !== null) {
    const range = el("i", { class: "range" });
    range.style.left = at(e.low);
    range.style.right = `calc(100% - ${at(e.high)})`;
    bar.append(range);
  }
  const dot = el("i", { class: "dot" });
  dot.style.left = at(e.mean);
  bar.append(dot);
  return bar;
}

function forest(all, chosen) {
  const ends = all.flatMap((each) => (each.reward ? [each.reward.low ?? each.reward.mean, each.reward.high ?? each.reward.mean] : []));
  const low = Math.min(0, ...ends), high = Math.max(1, ...ends);
  const rows = all.map((each) => el("tr", { class: each.id === chosen.id ? "chosen" : "" },
    el("th", { scope: "row" }, el("a", { href: tracesOf(each) }, clip(each.name))),
    el("td", { class: "bar" }, whisker(each.reward, low, high)),
    el("td", { class: "num" }, el("b", {}, short3(each.reward?.mean)), each.reward ? el("small", {}, interval(each.reward)) : null),
    el("td", { class: "num" }, each.success ? percent(each.success.mean) : "–"),
    el("td", { class: "num" }, number(each.tasks)),
    el("td", { class: "num" }, `${number(each.scored)} / ${number(each.rollouts)}`),
    el("td", { class: "num" }, each.failed + each.unscored ? el("span", { class: "bad-text" }, number(each.failed + each.unscored)) : "0")));
  const head = ["Evaluation", `Reward, ${short(low)} to ${short(high)}`, "Mean, 95 % interval", "Success", "Tasks", "Scored", "No reward"].map((text, i) => columnHead(text, i > 1 ? "num" : ""));
  return table("Table of evaluations", "evaluations", head, rows);
}

// Differences to one of them, paired by task: right of zero is better than it.
function compared(all) {
  const bases = all.filter((each) => model.differences[each.id]);
  if (!bases.length) return [];
  const base = bases.find((each) => each.id === state.base) ?? bases[0];
  const found = all.filter((each) => model.differences[base.id][each.id]).map((each) => [each, model.differences[base.id][each.id]]);
  const reach = Math.min(1, roundUp(Math.max(LEAST, ...found.flatMap(([, d]) => [d.low ?? d.mean, d.high ?? d.mean].map(Math.abs)))));
  const rows = found.map(([each, d]) => {
    const apart = d.low !== null && (d.low > 0 || d.high < 0);
    const sign = (value) => (value > 0 ? "+" : "") + short3(value).replace("-", "−");
    return el("tr", {}, el("th", { scope: "row" }, clip(each.name)), el("td", { class: "bar" }, whisker(d, -reach, reach, apart ? (d.mean > 0 ? "better" : "worse") : "", 0)),
      el("td", { class: "num" }, el("b", {}, sign(d.mean)), d.low === null ? null : el("small", {}, ` [${sign(d.low)}, ${sign(d.high)}]`)),
      el("td", {}, apart ? (d.mean > 0 ? "better" : "worse") : el("span", { class: "faint" }, "not told apart")), el("td", { class: "num" }, number(d.tasks)));
  });
  const head = ["Evaluation", `Worse, −${short(reach)} to ${short(reach)}, better`, "Difference, 95 % interval", "Verdict", "Tasks in both"].map((text, i) => columnHead(text, [2, 4].includes(i) ? "num" : ""));
  return [el("section", {}, el("h2", {}, "Compared with ", chooserOf("base", bases, base, (id) => go({ base: id }))),
    table("Differences", "evaluations", head, rows))];
}

function detailsOf(each) {
  const boxes = [el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, "Rewards"), el("small", {}, plural(each.scored, "rollout"))), histogram(each.histogram))];
  const ks = Object.keys(each.pass_at).filter((k) => each.pass_at[k]);
  if (ks.length > 1) boxes.push(passes(each, ks));
  return [el("div", { class: "grid" }, ...boxes), ...failures(each)];
}

function histogram({ low, high, counts }) {
  const most = Math.max(1, ...counts);
  const width = (high - low) / counts.length;
  const bars = counts.map((count, i) => {
    const said = `${short(low + i * width)} to ${short(low + (i + 1) * width)}: ${number(count)}`;
    const bar = el("i", { title: said });
    bar.style.height = `${(100 * count) / most}%`;
    return el("span", {}, bar);
  });
  const said = counts.map((count, i) => (count ? `${short(low + i * width)}: ${count}` : "")).filter(Boolean).join(", ");
  return el("div", { class: "histogram" }, el("div", { class: "most faint" }, number(most)), el("div", { class: "bars", role: "img", "aria-label": `Rewards by frequency. ${said}` }, ...bars),
    el("div", { class: "ends faint" }, el("span", {}, short(low)), el("span", {}, short((low + high) / 2)), el("span", {}, short(high))));
}

// pass@k: one of k rollouts succeeds; pass^k: all of them do.
function passes(each, ks) {
  const chart = el("div", { class: "plot", role: "img", "aria-label": ks.map((k) => `pass@${k} ${percent(each.pass_at[k].mean)}`).join(", ") });
  const row = (by, key) => ks.map((k) => each[by][k]?.[key] ?? null);
  const line = (colour, dash = []) => ({ stroke: colour, width: 1.8, dash, points: { show: true, size: 6, fill: colour } });
  const edge = { stroke: faded(ink.runs[0], 0.35), width: 1, points: { show: false } };
  const data = [ks.map(Number), row("pass_at", "mean"), row("pass_at", "low"), row("pass_at", "high"), row("pass_hat", "mean")];
  const axis = { stroke: ink.faint, font: "11px system-ui, sans-serif", grid: { stroke: ink.line, width: 1 }, ticks: { show: false } };
  requestAnimationFrame(() => new uPlot({
    width: Math.max(160, chart.clientWidth), height: 150, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false, distr: 3, log: 2 }, y: { range: [0, 1] } },
    axes: [{ ...axis, size: 26, gap: 4, values: (u, splits) => splits.map((k) => (ks.includes(String(k)) ? String(k) : null)) }, { ...axis, size: 46, gap: 4, values: (u, splits) => splits.map(percent) }],
    series: [{}, line(ink.runs[0]), edge, edge, line(ink.runs[1], [6, 4])],
  }, data, chart));
  const last = ks[ks.length - 1];
  return el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, "Success in k rollouts"), el("div", { class: "legend-line" },
    key("any (pass@k)", ink.runs[0], percent(each.pass_at[last].mean)), each.pass_hat[last] ? key("all (pass^k)", ink.runs[1], percent(each.pass_hat[last].mean)) : "")), chart);
}

function failures(each) {
  if (!each.failures.length) return [el("p", { class: "faint" }, "Every rollout so far succeeded.")];
  const total = each.failures.reduce((sum, failure) => sum + failure.count, 0);
  const rows = each.failures.map(({ stop, boundary, error, count }) => {
    const link = tracesOf(each, { ...(stop ? { stop } : {}), ...(boundary ? { error: `=${boundary}` } : error ? { reward: "none" } : { q: "reward<1" }) });
    const bar = el("i", { class: "share" });
    bar.style.width = `${(100 * count) / total}%`;
    return el("tr", {}, el("td", { class: "num" }, el("a", { href: link, title: "traces that stopped so" }, number(count))), el("td", { class: "barcell" }, bar),
      el("td", {}, badge(stop.replaceAll("_", " ") || "unfinished")), el("td", {}, boundary ? badge(boundary, "bad") : "", " ", error ? clip(error) : el("span", { class: "faint" }, "outcome below 1")));
  });
  return [el("h3", {}, "What did not succeed"), table("Failures", "failures",
    ["Rollouts", "Share", "Stopped by", "Error"].map((text, i) => columnHead(text, i ? "" : "num")), rows)];
}
