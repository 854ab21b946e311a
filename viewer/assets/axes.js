// Units: where an axis may begin and end, and how its values read. Ticks are round in the unit shown.

const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

function short(value) {
  if (typeof value !== "number") return "–";
  const size = Math.abs(value);
  if (size < 1e-12) return "0";
  if (size >= 1e9) return `${trim((value / 1e9).toPrecision(3))} G`;
  if (size >= 1e6) return `${trim((value / 1e6).toPrecision(3))} M`;
  if (size >= 1e4) return `${trim((value / 1e3).toPrecision(3))} k`;
  if (size >= 1e3) return Math.round(value).toLocaleString("en");
  if (size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("-", "−").replace("e-", "e−");
  return trim(value.toPrecision(3)).replace("-", "−");
}
const percent = (value) => `${short(100 * value)} %`;

function duration(value) {
  if (value < 0) return `−${duration(-value)}`;
  if (value >= 5400) return `${trim((value / 3600).toPrecision(3))} h`;
  if (value >= 120) return `${trim((value / 60).toPrecision(3))} min`;
  if (value === 0 || value >= 1) return `${trim(value.toPrecision(3))} s`;
  return value >= 1e-3 ? `${trim((value * 1e3).toPrecision(3))} ms` : `${short(value)} s`;
}

// low, high: never passed. at: shown at least up to there. span: at least this much is shown.
const UNITS = {
  share: { low: 0, high: 1, at: 1, text: percent },
  smallShare: { low: 0, high: 1, text: percent },
  reward: { low: 0, at: 1, soft: true, text: (value) => value.toFixed(3), tick: short },
  amount: { low: 0, text: short },
  number: { text: short },
  loss: { text: (value) => short(Math.abs(value) < 1e-6 ? 0 : value), tick: short },
  nats: { span: 2e-3, text: (value) => short(Math.abs(value) < 1e-6 ? 0 : value), name: "nats" }, // less is rounding
  natsUp: { low: 0, text: short, name: "nats" },
  tokens: { low: 0, text: short, name: "tokens" },
  tokensPerSecond: { low: 0, text: short, name: "tokens/s" },
  versions: { low: 0, text: short, name: "versions" },
  seconds: { low: 0, text: duration },
};

function unitOf(name) {
  if (/^time\/|_s_(mean|max)$|seconds/.test(name)) return "seconds";
  if (/fraction|_rate$|share$|^success/.test(name) && !/learning_rate/.test(name)) return "share";
  if (/^tokens\//.test(name)) return "tokens";
  if (/^(rollouts|groups|forks|turns|sequences|updates|tool_calls|sandbox|oom)/.test(name)) return "amount";
  return "number";
}

const ROUND = [1, 2, 2.5, 5, 10], TOPS = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
function roundUp(value, round = ROUND) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * round.find((each) => each * power >= value * (1 - 1e-9));
}

// The ends of an axis for data from min to max.
function ends(unit, min, max) {
  if (min === null || max === null || min === undefined) return [unit.low ?? 0, unit.at ?? 1];
  let low = unit.low ?? min, high = Math.max(max, unit.at ?? max);
  if (unit.soft) low = Math.min(low, min);
  if (unit.low !== undefined && low >= 0) {
    high = high <= 0 ? 1 : roundUp(high, TOPS);
  } else {
    const least = unit.span ?? 0;
    if (high - low < least) [low, high] = [Math.min(low, -least / 2), Math.max(high, least / 2)];
    const span = high - low || Math.abs(high) || 1;
    const step = roundUp(span / 5);
    low = Math.floor(low / step + 1e-6) * step;
    high = Math.ceil(high / step - 1e-6) * step;
    if (low === high) [low, high] = [low - step, high + step];
  }
  if (unit.high !== undefined) high = Math.min(high, unit.high);
  return [low, high];
}

// On a logarithmic axis: whole powers of ten, or, with values of both signs, what fits around them.
function logEnds(min, max) {
  if (min === null || min === undefined) return [0.1, 1];
  return [10 ** Math.floor(Math.log10(min) + 1e-9), 10 ** Math.ceil(Math.log10(max) - 1e-9) * (min === max ? 10 : 1)];
}

const STEP_TICKS = [1, 2, 5].flatMap((each) => Array.from({ length: 8 }, (_, i) => each * 10 ** i)).sort((a, b) => a - b);
const TIME_TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 864000];
const SECONDS_TICKS = [1e-5, 1e-4, 1e-3, 0.01].flatMap((each) => [1, 2, 5].map((by) => each * by)).concat([0.1, 0.2, 0.5], TIME_TICKS);
