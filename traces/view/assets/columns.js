// The columns of the table: which there are, which are shown, and what each cell shows.

// Name: [label, explanation, least width in px, share of what is left, text at the right].
const COLUMNS = {
  __proto__: null, // names come from the address
  reward: ["Reward", "How good it was, 0 to 1", 104, 0],
  gain: ["Gain", "Of a held-out task: reward minus the reward at the first step at which this run evaluated it", 72, 0, true],
  task: ["Task", "The task's id and what was asked", 130, 1.2],
  expected: ["Expected", "The answer that the task expects", 100, 0.5],
  stated: ["Answer", "What the last reply states as its answer: after “Answer:”, in \\boxed{}, <answer> or JSON", 100, 0.5],
  reply: ["Last reply", "What the model said last", 120, 1],
  split: ["Split", "Whether it was trained on or evaluated", 66, 0],
  step: ["Step", "Training step; of an evaluation the number of steps before it", 58, 0, true],
  stop: ["Stopped by", "Why the rollout ended", 122, 0],
  turns: ["Turns", "Answers of the model", 62, 0, true],
  tokens: ["Tokens", "Tokens of all branches", 78, 0, true],
  sampled: ["Sampled", "Tokens that the model sampled", 82, 0, true],
  calls: ["Calls", "Tool calls, and how many failed", 68, 0, true],
  tools: ["Tools", "Names of the tools that were called", 110, 0.4],
  seconds: ["Time", "Seconds from reset to close", 78, 0, true],
  learned: ["Learned", "Branches of which it was written down what the loss used", 76, 0, true],
  rollout: ["Rollout", "Its place among the rollouts of the task", 74, 0, true],
  environment: ["Environment", "Name of the environment", 110, 0.4],
  model: ["Model", "Who answered", 120, 0.5],
};
const NAMES_OF_COLUMNS = Object.keys(COLUMNS);

// What is shown if nothing is chosen, the most important first: as many as there is room for.
const USUAL = ["reward", "task", "stated", "expected", "step", "stop", "tokens", "turns", "calls", "seconds", "split", "gain", "reply"];
const OFFERED = new Set(["split", "gain"]); // that are shown only where they tell rows apart

function columnsFor(width) {
  const chosen = state.cols.split(",").filter((name) => COLUMNS[name]);
  if (chosen.length) return chosen;
  let left = width - 32;
  const fitting = USUAL.filter((name) => !OFFERED.has(name) || index.varied.has(name)).filter((name, i) => {
    left -= COLUMNS[name][2];
    return i < 2 || left >= 0;
  });
  return NAMES_OF_COLUMNS.filter((name) => fitting.includes(name));
}

const signed = (value) => (typeof value !== "number" ? String(value) : value > 0 ? `+${number(value)}` : value < 0 ? `−${number(-value)}` : "0");

function cells(row) {
  const reward = el("span", { class: `reward ${rewardClass(row.reward)}` }, el("i"), rewardText(row.reward));
  reward.firstChild.style.setProperty("--fill", typeof row.reward === "number" ? Math.min(1, Math.max(0, row.reward)) : 0);
  const stop = row.boundary ? badge(`error: ${row.boundary}`, "bad") : row.foreign ? badge("foreign", "warn")
    : badge(row.stop.replaceAll("_", " ") || "unfinished", row.stop === "terminated" ? "" : "warn");
  stop.title = row.error || "";
  const calls = el("span", {}, number(row.calls));
  if (row.failed) calls.append(el("span", { class: "bad-text" }, ` (${row.failed})`));
  const text = (value) => (value ? oneLine(String(value)) : "–");
  return {
    reward, stop, calls,
    gain: typeof row.gain === "number" ? el("span", { class: row.gain > 0 ? "full" : row.gain < 0 ? "zero" : "" }, signed(row.gain)) : "–",
    task: el("span", { class: "two" }, oneLine(row.task || "(no id)"), row.prompt === row.task ? "" : el("small", {}, oneLine(row.prompt))),
    expected: text(row.expected), stated: text(row.stated), reply: oneLine(row.reply), tools: text(row.tools),
    split: row.split || "–",
    step: row.step === null ? "–" : String(row.step),
    rollout: row.rollout === null ? "–" : String(row.rollout),
    turns: number(row.turns), learned: row.learned ? number(row.learned) : "–",
    tokens: el("span", {}, row.tokens.toLocaleString("en"), row.forks ? el("span", { class: "fork-mark", title: plural(row.forks, "fork") }, " ⋔") : ""),
    sampled: number(row.sampled),
    seconds: seconds(row.seconds),
    environment: text(row.environment), model: text(row.model),
  };
}

// A menu in which columns are chosen; the address keeps them.
function columnsMenu() {
  const now = shownColumns;
  const boxes = NAMES_OF_COLUMNS.map((name) => {
    const box = el("input", { type: "checkbox", checked: now.includes(name), onchange: () => {
      const next = NAMES_OF_COLUMNS.filter((each) => (each === name ? box.checked : shownColumns.includes(each)));
      if (next.length) go({ cols: next.join(",") });
      else box.checked = true;
    } });
    return el("label", { title: COLUMNS[name][1] }, box, ` ${COLUMNS[name][0]}`);
  });
  const reset = el("button", { type: "button", disabled: !state.cols, onclick: () => go({ cols: "" }) }, "As many as fit");
  return el("details", { class: "menu", id: "columns-menu" }, el("summary", {}, "Columns"), el("div", { class: "menu-box" }, ...boxes, reset));
}
