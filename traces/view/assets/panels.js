// The other panels: the reward by its components, the timeline, everything else that was recorded.

function showReward(trace) {
  const score = trace.score;
  const box = el("div", { class: "panel" });
  if (trace.error) box.append(failureCard(trace.error));
  if (!score) {
    box.append(el("p", { class: "faint" }, trace.error ? "A rollout that failed has no reward. That is not a reward of 0." : "This trace was not scored."));
  } else {
    const rows = [["Reward", "reward", score.reward], ["Outcome", "outcome", score.outcome]];
    const add = (kind, values) => { for (const [name, value] of Object.entries(values ?? {})) rows.push([name, kind, value]); };
    add("penalty", score.penalties);
    add("gate", score.gates);
    add("part", score.parts);
    add("metric", score.metrics);
    const [sum, causes] = arithmeticOf(score);
    if (sum) box.append(el("p", { class: "arithmetic" }, fill(el("code"), sum), causes ? el("small", {}, fill(el("span"), causes)) : null));
    box.append(el("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Components" }, el("table", { class: "scores" },
      el("thead", {}, el("tr", {}, ...["Component", "Kind", "Value", ""].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...rows.map(scoreRow)))));
    box.append(el("p", { class: "faint" }, "Penalties and parts are as measured, before their weight. Metrics are no part of the reward. “n/a” did not apply."));
  }
  if (trace.step_rewards.some((reward) => reward !== 0)) {
    box.append(el("h3", {}, "Rewards of the steps"), el("p", { class: "mono" }, trace.step_rewards.slice(0, 500).map(number).join("  ")));
  }
  return box;
}

// How the reward comes from its components, and what reduced it. A trace holds the components as they
// were measured, and not the rubric's weights: what they took together is what is missing.
function arithmeticOf(score) {
  const { reward, outcome } = score;
  const broken = Object.entries(score.gates ?? {}).filter(([, kept]) => kept === false).map(([name]) => name);
  if (broken.length) return [`reward = 0`, `broken: ${broken.join(", ")}. A gate that is broken makes the reward 0.`];
  if (typeof reward !== "number" || typeof outcome !== "number") return ["", ""];
  const round = (value) => String(Number(value.toPrecision(6)));
  const penalties = Object.entries(score.penalties ?? {}).filter(([, value]) => typeof value === "number" && value > 0);
  const parts = Object.entries(score.parts ?? {}).filter(([, value]) => typeof value === "number");
  if (parts.length && outcome === reward && !Object.keys(score.penalties ?? {}).length) {
    return [`weighted mean of ${parts.map(([name, value]) => `${name} ${round(value)}`).join(", ")} = ${round(reward)}`, ""];
  }
  if (outcome === 0) {
    if (reward > 0) return [`reward = ${round(reward)}`, "The outcome is 0; this is the rubric's floor for failures, less what penalties took."];
    return ["0 × (1 − penalties) = 0", "The outcome is 0, so there is nothing that penalties could reduce."];
  }
  const taken = 1 - reward / outcome;
  if (taken < -1e-6) return [`floor + (1 − floor) × ${round(outcome)} × (1 − penalties) = ${round(reward)}`, ""];
  const causes = [...penalties.map(([name, value]) => [name, value]), ...parts.filter(([, value]) => value < 1).map(([name, value]) => [`1 − ${name}`, 1 - value])];
  const sum = `${round(outcome)} × (1 − ${round(Math.abs(taken) < 1e-9 ? 0 : taken)}) = ${round(reward)}`;
  if (taken < 1e-9) return [sum, ""];
  if (causes.length === 1) return [sum, `${round(taken)} was taken by ${causes[0][0]} = ${round(causes[0][1])}, at a weight of ${round(taken / causes[0][1])}.`];
  return [sum, `${round(taken)} was taken by ${causes.map(([name, value]) => `${name} = ${round(value)}`).join(", ")}, each times its weight.`];
}

function scoreRow([name, kind, value]) {
  const shownValue = value === null || value === undefined ? "n/a" : value === true ? "kept" : value === false ? "broken" : number(value);
  const cell = el("td", { class: "barcell" });
  if (typeof value === "number" && value >= 0 && value <= 1 && kind !== "metric") {
    const bar = el("i", { class: `scorebar ${kind}` });
    bar.style.setProperty("--fill", value);
    cell.append(bar);
  }
  return el("tr", { class: `k-${kind}` }, el("td", {}, oneLine(name)), el("td", {}, badge(kind)),
    el("td", { class: value === false ? "bad-text num" : "num" }, String(shownValue)), cell);
}

// Spans from the durations that were recorded: what happened in which order is known, and that
// the calls of one turn start together; gaps are what remains of each phase, spread evenly.
function spansOf(trace) {
  const timing = trace.timing;
  const spans = [];
  let now = 0;
  const add = (lane, name, duration, detail = "") => {
    spans.push({ lane, name, from: now, to: now + duration, detail });
    now += duration;
  };
  const value = (name) => (typeof timing[name] === "number" ? timing[name] : 0);
  if (value("reset")) add("environment", "reset", value("reset"));
  const events = trace.turns.map(() => []);
  for (const event of trace.tool_events) events[event.turn]?.push(event);
  const inTools = events.map((calls) => calls.reduce((longest, call) => Math.max(longest, call.seconds), 0));
  const rest = Math.max(0, value("step") - inTools.reduce((a, b) => a + b, 0)) / (trace.turns.length || 1);
  trace.turns.forEach((turn, at) => {
    add("generate", `turn ${at + 1}`, turn.seconds, plural(turn.completion_tokens, "token"));
    for (const event of events[at]) {
      spans.push({ lane: "tools", name: event.name || "(malformed)", from: now, to: now + event.seconds, detail: event.kind, bad: event.kind !== "ok" });
    }
    now += inTools[at];
    if (rest > 0) add("environment", `step ${at + 1}`, rest);
  });
  if (value("score")) add("score", "score", value("score"));
  return { spans, end: now };
}

function showTimeline(trace) {
  const { spans, end } = spansOf(trace);
  const box = el("div", { class: "panel timeline" });
  if (!spans.length || !(end > 0)) {
    box.append(el("p", { class: "faint" }, "No times were recorded."));
    return box;
  }
  for (const lane of ["environment", "generate", "tools", "score"]) {
    const inLane = spans.filter((span) => span.lane === lane);
    const tracks = []; // calls that ran at once lie below each other
    for (const span of inLane.slice(0, 2000)) {
      let track = tracks.findIndex((until) => until <= span.from + 1e-9);
      if (track < 0) track = tracks.push(0) - 1;
      tracks[track] = Math.max(span.to, span.from + end / 500);
      span.track = track;
    }
    const strip = el("div", { class: "strip" });
    strip.style.height = `${Math.max(1, tracks.length) * 22}px`;
    for (const span of inLane.slice(0, 2000)) {
      const bar = el("button", { type: "button", class: `span ${lane} ${span.bad ? "failed" : ""}`, "aria-label": `${span.name}, ${seconds(span.to - span.from)}` });
      bar.style.left = `${(100 * span.from) / end}%`;
      bar.style.width = `${(100 * (span.to - span.from)) / end}%`;
      bar.style.top = `${span.track * 22}px`;
      const tell = () => showHover(bar, [["what", `${lane}: ${span.name}`], ["took", seconds(span.to - span.from)], ["from", seconds(span.from)], ...(span.detail ? [["", span.detail]] : [])]);
      bar.addEventListener("pointerover", tell);
      bar.addEventListener("focus", tell);
      bar.addEventListener("pointerleave", hideHover);
      bar.addEventListener("blur", hideHover);
      strip.append(bar);
    }
    const spent = inLane.reduce((sum, span) => sum + span.to - span.from, 0);
    box.append(el("div", { class: "lane" }, el("div", { class: "name" }, lane, el("small", {}, inLane.length ? seconds(spent) : "–")), strip));
  }
  const ticks = el("div", { class: "ticks" }, ...[0, 0.25, 0.5, 0.75, 1].map((part) => el("span", {}, seconds(part * end))));
  box.append(el("div", { class: "lane" }, el("div", { class: "name" }), ticks),
    el("p", { class: "faint" }, "Drawn from durations: the order is known, and that the calls of a turn start together. What a step took beyond its calls is spread evenly over the steps."
      + (trace.conversations.length > 1 ? " Answers in several conversations may have been sampled at the same time." : "")));
  return box;
}

function showDetails(trace, row) {
  const box = el("div", { class: "panel" });
  const facts = [
    ["id", trace.id], ["environment", trace.environment], ["task", trace.task.id], ["seed", String(trace.seed)],
    ["file", index.files[row.file].path], ["model", row.model || "not known"],
    ["stopped by", trace.stop_reason ?? "unfinished"],
    ...trace.forks.map((fork) => [`fork, turn ${Number(fork.turn) + 1}`, `${fork.kind}: ${fork.reason}`]),
    ...Object.entries(trace.timing).map(([name, value]) => [`time: ${name}`, seconds(value)]),
  ];
  box.append(el("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [el("dt", {}, oneLine(name)), el("dd", {}, long(String(value)))])));
  for (const [name, value] of [["origin", trace.origin], ["info", Object.fromEntries(Object.entries(trace.info).filter(([name]) => !SHOWN_INFO.includes(name)))], ["task.info", trace.task.info], ["task.prompt", trace.task.prompt]]) {
    if (value && (typeof value === "string" || Object.keys(value).length)) {
      box.append(el("h3", {}, name, copyButton(name, () => (typeof value === "string" ? value : JSON.stringify(value, null, 2)))), long(typeof value === "string" ? value : JSON.stringify(value, null, 2), "text mono boxed"));
    }
  }
  return box;
}
