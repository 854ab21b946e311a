// The table: filtered, sorted, and drawn only where it is looked at.

const ROW = 36; // px, as in the style sheet

const COLUMNS = [
  ["reward", "Reward", "How good it was, 0 to 1"],
  ["task", "Task", "The task's id and what was asked"],
  ["reply", "Last reply", "What the model said last"],
  ["stop", "Stopped by", "Why the rollout ended"],
  ["turns", "Turns", "Answers of the model"],
  ["tokens", "Tokens", "Tokens of all branches"],
  ["calls", "Calls", "Tool calls, and how many failed"],
  ["seconds", "Time", "Seconds from reset to close"],
  ["step", "Step", "Training step"],
];
const NUMBERS = new Set(["reward", "turns", "tokens", "sampled", "calls", "failed", "forks", "conversations", "seconds", "step"]);
const HAYSTACK = ["task", "prompt", "reply", "error", "boundary", "stop", "environment", "model", "id"];

let shown = []; // rows that match, in order
let current = 0; // position in `shown`
let drawn = new Map();
const grid = document.getElementById("grid");
const body = document.getElementById("rows");

// A search: words to be found, and comparisons like reward>=0.5, turns>3, stop:error, -word.
function compile(query) {
  const tests = [];
  for (const [, minus, term] of query.matchAll(/(-?)((?:"[^"]*"|\S)+)/g)) {
    const parts = /^([a-z]+)(>=|<=|>|<|=|:)(.*)$/.exec(term);
    let test;
    if (parts && parts[3] !== "" && (NUMBERS.has(parts[1]) || HAYSTACK.includes(parts[1]))) {
      const [, key, sign, raw] = parts;
      const value = raw.replaceAll('"', "").toLowerCase();
      if (NUMBERS.has(key)) {
        const than = Number(value);
        test = (row) => {
          if (value === "none") return typeof row[key] !== "number";
          if (typeof row[key] !== "number") return false;
          if (sign === ">") return row[key] > than;
          if (sign === "<") return row[key] < than;
          if (sign === ">=") return row[key] >= than;
          if (sign === "<=") return row[key] <= than;
          return row[key] === than;
        };
      } else test = (row) => String(row[key]).toLowerCase().includes(value);
    } else {
      const word = term.replaceAll('"', "").toLowerCase();
      test = (row) => row.haystack.includes(word);
    }
    tests.push(minus ? (row) => !test(row) : test);
  }
  return (row) => tests.every((test) => test(row));
}

const REWARDS = {
  full: (row) => row.reward >= 0.999 && row.reward !== null,
  part: (row) => rewardClass(row.reward) === "part",
  zero: (row) => rewardClass(row.reward) === "zero",
  none: (row) => rewardClass(row.reward) === "none",
};

function applyFilters(state) {
  const matches = compile(state.q);
  shown = index.rows.filter((row) =>
    (!state.reward || REWARDS[state.reward]?.(row)) &&
    (!state.stop || row.stop === state.stop) &&
    (!state.error || (state.error === "any" ? row.boundary !== "" : state.error === "none" ? row.boundary === "" : row.boundary === state.error.slice(1))) &&
    (!state.file || row.file === Number(state.file)) &&
    (!state.env || row.environment === state.env) &&
    (!state.model || row.model === state.model) &&
    matches(row));
  const key = state.sort.replace(/^-/, "");
  const sign = state.sort.startsWith("-") ? -1 : 1;
  if (key) {
    // What has no value comes last in either order.
    const of = (row) => (NUMBERS.has(key) ? (typeof row[key] === "number" ? row[key] : null) : row[key] || null);
    const collator = new Intl.Collator("en", { numeric: true });
    shown.sort((a, b) => {
      const [x, y] = [of(a), of(b)];
      if (x === null || y === null) return (x === null) - (y === null) || a.n - b.n;
      return sign * (typeof x === "number" ? x - y : collator.compare(x, y)) || a.n - b.n;
    });
  }
}

function cells(row) {
  const reward = el("span", { class: `reward ${rewardClass(row.reward)}` }, el("i"), rewardText(row.reward));
  reward.firstChild.style.setProperty("--fill", typeof row.reward === "number" ? Math.min(1, Math.max(0, row.reward)) : 0);
  const task = el("span", { class: "two" }, oneLine(row.task || "(no id)"), el("small", {}, oneLine(row.prompt)));
  const stop = row.boundary ? badge(`error: ${row.boundary}`, "bad") : row.foreign ? badge("foreign", "warn")
    : badge(row.stop.replaceAll("_", " ") || "unfinished", row.stop === "terminated" ? "" : "warn");
  stop.title = row.error || "";
  const calls = el("span", {}, number(row.calls));
  if (row.failed) calls.append(el("span", { class: "bad-text" }, ` (${row.failed})`));
  return {
    reward, task, stop, calls,
    reply: oneLine(row.reply),
    turns: number(row.turns),
    tokens: el("span", {}, row.tokens.toLocaleString("en"), row.forks ? el("span", { class: "fork-mark", title: plural(row.forks, "fork") }, " ⋔") : ""),
    seconds: seconds(row.seconds),
    step: row.step === null ? "–" : String(row.step),
  };
}

function drawRows() {
  const top = Math.max(0, grid.scrollTop - 2 * ROW);
  const first = Math.floor(top / ROW);
  const last = Math.min(shown.length, Math.ceil((grid.scrollTop + grid.clientHeight) / ROW) + 4);
  const wanted = new Map();
  for (let at = first; at < last; at++) {
    const row = shown[at];
    const key = `${at}:${row.n}`;
    let node = drawn.get(key);
    if (!node) {
      const values = cells(row);
      node = el("div", { role: "row", class: "row", id: `r${at}`, "aria-rowindex": at + 2, "data-at": at },
        ...COLUMNS.map(([name]) => el("div", { role: "gridcell", class: `c-${name}` }, values[name])));
      node.style.transform = `translateY(${at * ROW}px)`;
      body.append(node);
    }
    node.classList.toggle("current", at === current);
    node.classList.toggle("open", row.id === state.trace || row.id === state.with);
    node.setAttribute("aria-selected", String(row.id === state.trace));
    wanted.set(key, node);
  }
  for (const [key, node] of drawn) if (!wanted.has(key)) node.remove();
  drawn = wanted;
  grid.setAttribute("aria-activedescendant", shown.length ? `r${current}` : "");
}

function drawTable() {
  for (const node of drawn.values()) node.remove();
  drawn = new Map();
  body.style.height = `${shown.length * ROW}px`;
  grid.setAttribute("aria-rowcount", shown.length + 1);
  document.getElementById("empty").hidden = shown.length > 0;
  const columns = COLUMNS.map(([name, label, title]) => {
    const order = state.sort === name ? "ascending" : state.sort === `-${name}` ? "descending" : "none";
    return el("div", { role: "columnheader", class: `c-${name}`, "aria-sort": order },
      el("button", { type: "button", title, onclick: () => sortBy(name) }, label,
        el("span", { class: "arrow", "aria-hidden": "true" }, order === "ascending" ? "↑" : order === "descending" ? "↓" : "")));
  });
  document.getElementById("columns").replaceChildren(...columns);
  drawRows();
}

function sortBy(name) {
  const first = NUMBERS.has(name) && name !== "step" ? `-${name}` : name;
  const second = first === name ? `-${name}` : name;
  go({ sort: state.sort === first ? second : state.sort === second ? "" : first });
}

function choose(at) {
  current = Math.max(0, Math.min(shown.length - 1, at));
  const head = document.getElementById("columns").offsetHeight;
  if (current * ROW < grid.scrollTop) grid.scrollTop = current * ROW;
  else if ((current + 1) * ROW + head > grid.scrollTop + grid.clientHeight) grid.scrollTop = (current + 1) * ROW + head - grid.clientHeight;
  drawRows();
}
