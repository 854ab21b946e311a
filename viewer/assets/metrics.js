// What the page knows (runs by metric), and which metrics are drawn together.

const model = { title: "", missing: [], runs: [], evaluations: [], differences: {}, traces: { files: {} } };

const PARTS = ["generate", "environment", "reward", "train", "publish", "evaluate", "save", "outage", "wait"];
const NOUN = { generate: "generating", environment: "environment", reward: "scoring", train: "training", publish: "publishing weights", evaluate: "held-out evaluation", save: "saving", outage: "server down", wait: "waiting" };

// A chart: title, unit (see axes.js), and its metrics by the name of their curve.
const chartOf = (title, unit, metrics, more = {}) => ({ title, unit, metrics, ...more });
const GROUPS = [
  ["Reward", [
    chartOf("Reward", "reward", { training: "reward/mean", "held out": "eval/reward/mean" }, { wide: true }),
    chartOf("Success rate", "share", { training: "success_rate", "held out": "eval/success_rate" }),
    chartOf("Groups without spread", "share", { "": "groups/uniform_fraction" }),
  ]],
  ["Learning", [
    chartOf("Loss", "loss", { "": "loss" }),
    chartOf("KL of sampler and learner", "nats", { "": "kl_sample_train_v1" }, { lines: [0.01, -0.01], note: "alarm at ±0.01" }),
    chartOf("Engine against trainer, same weights", "natsUp", { "": "logprob_gap" }),
    chartOf("KL from the reference model", "nats", { v1: "kl_reference_v1", v3: "kl_reference_v3" }),
    chartOf("Entropy", "natsUp", { "": "entropy" }),
    chartOf("Gradient norm", "amount", { "": "grad_norm" }),
    chartOf("Clipped tokens", "smallShare", { "": "clip_fraction" }),
    chartOf("Importance ratio", "amount", { median: "ratio/p50", "1 %": "ratio/p01", "99 %": "ratio/p99" }),
    chartOf("Learning rate", "amount", { "": "learning_rate" }),
  ]],
  ["Rollouts", [
    chartOf("Tokens sampled per rollout", "tokens", { "": "tokens/completion_mean" }),
    chartOf("Context per rollout", "tokens", { "": "tokens/context_mean" }),
    chartOf("Turns per rollout", "amount", { "": "turns/mean" }),
    chartOf("Tool calls per rollout", "amount", { "": "tool_calls/mean" }),
    chartOf("Failed tool calls", "smallShare", { "": "tool_calls/error_rate" }),
    chartOf("Truncated rollouts", "smallShare", { "": "truncated_fraction" }),
    chartOf("Branches per rollout", "amount", { "": "branches_per_rollout" }),
    chartOf("Rollouts without a reward", "smallShare", { "": "voids/share" }),
  ]],
  ["Speed", [
    chartOf("Tokens per second", "tokensPerSecond", { generated: "tokens_per_s/generate", trained: "tokens_per_s/train" }),
    chartOf("Time per step", "seconds", { "": "time/total" }),
    chartOf("Staleness", "versions", { mean: "staleness/mean", max: "staleness/max" }),
    chartOf("Useful groups per second", "amount", { "": "groups_per_s/effective" }),
    chartOf("Time by phase", "seconds", Object.fromEntries(PARTS.map((part) => [NOUN[part], `time/${part}`])), { stacked: true, wide: true }),
  ]],
];
const SCORED = /^(penalty|gate|part|metric)\/|^reward\/outcome$/;
const UNDRAWN = /^(step|alarm\/.*)$/;

function merge(data) {
  let run = model.runs.find((each) => each.path === data.path);
  if (!run) model.runs.push(run = { columns: bare({}) });
  const { columns, from, ...facts } = data;
  for (const name of new Set([...Object.keys(run.columns), ...Object.keys(columns)])) {
    const values = (run.columns[name] ??= []);
    values.length = Math.min(values.length, from);
    while (values.length < from) values.push(null);
    const added = columns[name];
    for (let i = from; i < data.count; i++) values.push(added?.[i - from] ?? null);
  }
  Object.assign(run, facts);
}

// A metric's points of a run: [x, y], where it has a value. x is the step, or seconds since the start.
function pointsOf(run, name, by = "step") {
  const ys = run.columns[name] ?? [];
  const xs = by === "time" ? elapsed(run) : run.columns.step ?? [];
  const found = [[], []];
  for (let i = 0; i < ys.length; i++) {
    if (ys[i] === null || xs[i] === null || xs[i] === undefined) continue;
    found[0].push(xs[i]);
    found[1].push(ys[i]);
  }
  return found;
}

function elapsed(run) {
  let total = 0;
  return (run.columns["time/total"] ?? []).map((value) => (total += value ?? 0));
}

const lastOf = (run, name) => {
  const [, ys] = pointsOf(run, name);
  return ys.length ? ys[ys.length - 1] : null;
};
const endOf = (runs, by) => Math.max(1, ...runs.map((run) => (by === "time" ? elapsed(run).at(-1) ?? 0 : stepOf(run))));
const stepOf = (run) => (run.columns.step ?? []).reduce((a, b) => Math.max(a, b ?? 0), 0);
const sumOf = (run, name) => (run.columns[name] ?? []).reduce((a, b) => a + (b ?? 0), 0);

// The groups of charts for these runs: those above, pass@k, components of the score, and the rest.
function groupsFor(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.columns)))].filter((name) =>
    !UNDRAWN.test(name) && runs.some((run) => run.columns[name]?.some((value) => value !== null)));
  const drawn = new Set(GROUPS.flatMap(([, charts]) => charts.flatMap((chart) => Object.values(chart.metrics))));
  const ks = names.filter((name) => /^eval\/pass@\d+$/.test(name)).sort((a, b) => a.split("@")[1] - b.split("@")[1]);
  const pass = chartOf("Held out: pass@k", "share", Object.fromEntries(ks.map((name) => [`k = ${name.split("@")[1]}`, name])));
  for (const name of ks) drawn.add(name);
  const components = names.filter((name) => SCORED.test(name));
  const rest = names.filter((name) => !drawn.has(name) && !SCORED.test(name)).sort();
  const has = (chart) => Object.values(chart.metrics).some((name) => names.includes(name));
  return [
    ...GROUPS.map(([title, charts]) => [title, [...charts, ...(title === "Reward" && ks.length ? [pass] : [])].filter(has), true]),
    ["Components of the score", components.map((name) => chartOf(name, name.startsWith("metric/") ? "number" : "reward", { "": name })), true],
    ["All other metrics", rest.map((name) => chartOf(name, unitOf(name), { "": name })), false],
  ].filter(([, charts]) => charts.length);
}
