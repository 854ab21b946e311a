// What is above the table: search, train or eval, menus, columns, and how many traces are left.

const SPLITS = [["", "All"], ["train", "Train"], ["eval", "Eval"]];

function meanReward(rows) {
  const rewards = rows.map((row) => row.reward).filter((reward) => typeof reward === "number");
  return rewards.length ? (rewards.reduce((a, b) => a + b, 0) / rewards.length).toFixed(3) : null;
}

// Train, eval and all: each with its number of traces, and the first two with their mean reward,
// for one over both would be the mean of neither.
function splitChooser() {
  if (!index.varied.has("split")) return null;
  const buttons = SPLITS.filter(([key]) => !key || index.rows.some((row) => row.split === key)).map(([key, label]) => {
    const rows = key ? besides.filter((row) => row.split === key) : besides;
    const mean = key ? meanReward(rows) : null;
    return el("button", { type: "button", "aria-pressed": String(state.split === key), "data-split": key, onclick: () => go({ split: key }) },
      label, " ", el("small", {}, number(rows.length) + (mean === null ? "" : `, mean ${mean}`)));
  });
  return el("div", { class: "splits", role: "group", "aria-label": "Train or eval (t)" }, ...buttons);
}

function drawControls() {
  const rows = index.rows;
  const count = (test) => rows.filter(test).length;
  const values = (key) => [...new Set(rows.map((row) => row[key]))].filter((value) => value !== "").sort();
  const set = (key) => (value) => go({ [key]: value });
  const some = (key, label, options) => (options.length > 1 ? [chooser(label, [["", "all"], ...options], state[key], set(key))] : []);
  const clip = (text) => (text.length > 48 ? `…${text.slice(-47)}` : text);
  const steps = [...new Set(rows.map((row) => row.step))].filter((step) => step !== null).sort((a, b) => a - b);
  const runs = [...new Set(index.files.map((file) => file.run))];
  const search = document.getElementById("search");
  if (document.activeElement !== search) search.value = state.q;
  const controls = el("div", { class: "selects" },
    ...some("step", "Step", steps.map((step) => [String(step), String(step)])),
    ...some("reward", "Reward", [["full", "1"], ["part", "between"], ["zero", "0"], ["none", "none"]].map(([key, text]) => [key, `${text} (${count(REWARDS[key])})`])),
    ...some("stop", "Stop", values("stop").map((value) => [value, `${value.replaceAll("_", " ")} (${count((row) => row.stop === value)})`])),
    ...some("error", "Errors", !values("boundary").length ? [] : [["none", "without"], ["any", `with (${count((row) => row.boundary)})`], ...values("boundary").map((value) => [`=${value}`, `${value} (${count((row) => row.boundary === value)})`])]),
    ...some("run", "Run", runs.map((run) => [run, clip(run)])),
    ...some("file", "File", index.files.map((file, i) => [String(i), `${clip(file.path.startsWith(`${file.run}/`) ? file.path.slice(file.run.length + 1) : file.path)} (${file.read})`])),
    ...some("env", "Environment", values("environment").map((value) => [value, clip(value)])),
    ...some("model", "Model", values("model").map((value) => [value, clip(value)])),
    columnsMenu());
  const focused = document.activeElement?.closest?.("#chosen") ? [...document.querySelectorAll("#chosen :is(button, select, input, summary)")].indexOf(document.activeElement) : -1;
  const open = document.getElementById("columns-menu")?.open ?? false;
  const more = FILTERS.filter((key) => !["q", "sort", "split"].includes(key) && state[key]).length;
  const fold = document.getElementById("fold");
  fold.textContent = more ? `Filters (${more})` : "Filters";
  document.getElementById("chosen").replaceChildren(...[splitChooser(), controls].filter(Boolean));
  document.getElementById("columns-menu").open = open;
  if (focused >= 0) document.querySelectorAll("#chosen :is(button, select, input, summary)")[focused]?.focus();
  const both = new Set(shown.map((row) => row.split)).size > 1; // their means stand beside them
  const mean = both ? null : meanReward(shown);
  const total = plural(rows.length, "trace");
  document.getElementById("count").textContent = `${shown.length === rows.length ? total : `${number(shown.length)} of ${total}`}${mean === null ? "" : `, mean reward ${mean}`}`;
}

function startFilters() {
  const search = document.getElementById("search");
  let timer;
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => go({ q: search.value }), 120); });
  const fold = document.getElementById("fold");
  fold.addEventListener("click", () => fold.setAttribute("aria-expanded", String(document.getElementById("filters").classList.toggle("open"))));
  document.addEventListener("click", (event) => {
    const menu = document.getElementById("columns-menu");
    if (menu?.open && event.target.isConnected && !menu.contains(event.target)) menu.open = false;
  });
}

// Of a held-out task: how much more reward than at the first step at which its run evaluated it.
function findGains(rows) {
  const first = new Map(); // key -> [step, sum, count]
  const keyOf = (row) => JSON.stringify([index.files[row.file].run, row.model, row.environment, row.task]);
  const counted = rows.filter((row) => row.split === "eval" && row.step !== null && typeof row.reward === "number");
  for (const row of counted) {
    const key = keyOf(row);
    const known = first.get(key);
    if (!known || row.step < known[0]) first.set(key, [row.step, row.reward, 1]);
    else if (row.step === known[0]) first.set(key, [row.step, known[1] + row.reward, known[2] + 1]);
  }
  for (const row of rows) row.gain = null;
  for (const row of counted) {
    const [step, sum, count] = first.get(keyOf(row));
    if (row.step > step) row.gain = Math.round((row.reward - sum / count) * 1e6) / 1e6;
  }
}
