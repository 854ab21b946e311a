// The table: filtered, sorted, and drawn only where it is looked at.

const ROW = 36; // px, as in the style sheet

let shown = []; // rows that match, in order
let besides = []; // rows that match all but the split
let problem = ""; // what is wrong with the search
let current = 0; // position in `shown`
let drawn = new Map();
let shownColumns = [];
const grid = document.getElementById("grid");
const body = document.getElementById("rows");

const REWARDS = {
  __proto__: null, // names come from the address
  full: (row) => row.reward >= 0.999 && row.reward !== null,
  part: (row) => rewardClass(row.reward) === "part",
  zero: (row) => rewardClass(row.reward) === "zero",
  none: (row) => rewardClass(row.reward) === "none",
};

// Choose the rows. Words that are new are looked for in all traces first; returns false if the
// state changed meanwhile, so that nothing is to be drawn.
async function applyFilters(state, isCurrent) {
  let query = { words: [], accepts: () => false };
  problem = "";
  try {
    query = compile(state.q);
  } catch (error) {
    if (!(error instanceof QueryError)) throw error;
    problem = error.message;
  }
  if (query.words.some((word) => !hits.has(word))) {
    document.getElementById("count").textContent = "Searching…";
    await find(query.words);
    if (!isCurrent()) return false;
  }
  besides = index.rows.filter((row) =>
    (!state.reward || REWARDS[state.reward]?.(row)) &&
    (!state.step || row.step === Number(state.step)) &&
    (!state.stop || row.stop === state.stop) &&
    (!state.error || (state.error === "any" ? row.boundary !== "" : state.error === "none" ? row.boundary === "" : row.boundary === state.error.slice(1))) &&
    (!state.file || row.file === Number(state.file)) &&
    (!state.run || index.files[row.file].run === state.run) &&
    (!state.env || row.environment === state.env) &&
    (!state.model || row.model === state.model) &&
    query.accepts(row));
  shown = besides.filter((row) => !state.split || row.split === state.split);
  sortShown(state.sort);
  return true;
}

function sortShown(sort) {
  const key = sort.replace(/^-/, "");
  const sign = sort.startsWith("-") ? -1 : 1;
  if (!key) return;
  // What has no value comes last in either order.
  const of = (row) => (NUMBERS.has(key) ? (typeof row[key] === "number" ? row[key] : null) : row[key] || null);
  const collator = new Intl.Collator("en", { numeric: true });
  shown.sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x === null || y === null) return (x === null) - (y === null) || a.n - b.n;
    return sign * (typeof x === "number" ? x - y : collator.compare(x, y)) || a.n - b.n;
  });
}

function drawRows() {
  const top = Math.max(0, grid.scrollTop - 2 * ROW);
  const first = Math.floor(top / ROW);
  const last = Math.min(shown.length, Math.ceil((grid.scrollTop + grid.clientHeight) / ROW) + 4);
  const wanted = new Map();
  const beside = state.with.split(",");
  for (let at = first; at < last; at++) {
    const row = shown[at];
    const key = `${at}:${row.n}`;
    let node = drawn.get(key);
    if (!node) {
      const values = cells(row);
      node = el("div", { role: "row", class: "row", id: `r${at}`, "aria-rowindex": at + 2, "data-at": at },
        ...shownColumns.map((name) => el("div", { role: "gridcell", class: `c-${name}${COLUMNS[name][4] ? " right" : ""}` }, values[name])));
      node.style.transform = `translateY(${at * ROW}px)`;
      body.append(node);
    }
    node.classList.toggle("current", at === current);
    node.classList.toggle("open", row.id === state.trace || beside.includes(row.id));
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
  document.getElementById("empty").hidden = shown.length > 0 || Boolean(problem);
  const bad = document.getElementById("query-problem");
  bad.hidden = !problem;
  bad.replaceChildren(oneLine(problem));
  shownColumns = columnsFor(grid.clientWidth);
  grid.style.setProperty("--columns", shownColumns.map((name) => (COLUMNS[name][3] ? `minmax(${COLUMNS[name][2]}px, ${COLUMNS[name][3]}fr)` : `${COLUMNS[name][2]}px`)).join(" "));
  grid.style.setProperty("--least", `${shownColumns.reduce((sum, name) => sum + COLUMNS[name][2], 16)}px`);
  const columns = shownColumns.map((name) => {
    const [label, title, , , right] = COLUMNS[name];
    const order = state.sort === name ? "ascending" : state.sort === `-${name}` ? "descending" : "none";
    return el("div", { role: "columnheader", class: `c-${name}${right ? " right" : ""}`, "aria-sort": order },
      el("button", { type: "button", title, onclick: () => sortBy(name) }, label,
        el("span", { class: "arrow", "aria-hidden": "true" }, order === "ascending" ? "↑" : order === "descending" ? "↓" : "")));
  });
  document.getElementById("columns").replaceChildren(...columns);
  drawRows();
}

// The window or the list changed its size: other columns may fit.
function resized() {
  if (grid.clientWidth && columnsFor(grid.clientWidth).join() !== shownColumns.join()) {
    drawTable();
    drawControls();
  } else drawRows();
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
