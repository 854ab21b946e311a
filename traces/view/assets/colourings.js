// By what tokens are coloured, with legends that say the numbers. The bounds are the same for all
// traces, so what stands side by side is coloured alike.

const HUES = 6;
const LOGPROBS = [-0.05, -0.5, -1.5, -3, -6]; // nats, from nearly certain to all but impossible
const ADVANTAGES = [0.2, 1]; // light, medium and strong colours of each sign
const RATIOS = [0.01, 0.1, 0.3]; // |log ratio|: plain, light, medium and strong

const percent = (logprob) => `${Number((100 * Math.exp(logprob)).toPrecision(2))} %`;
const hue = (value) => `hue${Math.abs(Number(value)) % HUES}`;
const heat = (logprob) => (typeof logprob === "number" ? LOGPROBS.findIndex((limit) => logprob >= limit) + 1 || 6 : 6);
const levelOf = (value, bounds) => bounds.filter((bound) => value >= bound).length;

// Which of its optimizer steps is shown of a branch, if what the loss used was written down.
const learnedOf = (branch) => branch.learned?.[Math.min(branch.learned.length, Number(state.update) || branch.learned.length) - 1];

function advantageClass(value) {
  if (Number.isNaN(value)) return "context";
  return value === 0 ? "flat" : `${value > 0 ? "up" : "down"}${levelOf(Math.abs(value), ADVANTAGES) + 1}`;
}

function ratioClass(value) {
  if (Number.isNaN(value)) return "context";
  const level = levelOf(Math.abs(value), RATIOS);
  return level ? `${value > 0 ? "up" : "down"}${level}` : "flat";
}

const HELD = [["dropped", "dropped: no policy gradient"], ["clipped", "clipped"], ["bounded", "importance weight bounded"]];

function heldClass(learned, i) {
  if (!learned || !learned.trained[i]) return "context";
  return HELD.find(([name]) => learned[name][i])?.[0] ?? "sampled";
}

// By the first optimizer step's numbers: name: [label, class of a token, legend as [class, text] pairs].
const COLOURINGS = {
  __proto__: null, // names come from the address
  mask: ["Loss mask",
    (branch, i) => (branch.mask[i] === 1 ? "sampled" : branch.copied[i] ? "context copied" : branch.mask[i] === 0 ? "context" : "odd"),
    (branch) => [["sampled", "sampled, carries loss"], ["context", "context, no loss"], ...(branch.copied.includes(1) ? [["context copied", "copied, has loss in another branch"]] : [])]],
  logprob: ["Logprob", (branch, i) => (branch.mask[i] ? `p${heat(logprobOf(branch, i))}` : "context"),
    () => [...LOGPROBS.map((limit, i) => [`p${i + 1}`, `≥ ${percent(limit)}`]), ["p6", "less"], ["context", "context"]]],
  version: ["Weight version", (branch, i) => (branch.version[i] === -1 ? "context" : hue(branch.version[i])),
    (branch) => byValue(branch.version, (value) => (value === -1 ? ["context", "context"] : [hue(value), `version ${value}`]))],
  turn: ["Turn", (branch, i) => hue(branch.turn[i]), (branch) => byValue(branch.turn, (value) => [hue(value), `turn ${Number(value) + 1}`])],
  advantage: ["Advantage × mask", (branch, i) => { const learned = learnedOf(branch); return learned ? advantageClass(learned.advantages[i]) : "context"; },
    () => [["down3", `≤ −${ADVANTAGES[1]}`], ["down2", `to −${ADVANTAGES[0]}`], ["down1", "to 0"], ["flat", "0"], ["up1", `to ${ADVANTAGES[0]}`], ["up2", `to ${ADVANTAGES[1]}`], ["up3", `≥ ${ADVANTAGES[1]}`], ["context", "not trained"]]],
  ratio: ["Ratio trainer ÷ sampler", (branch, i) => { const learned = learnedOf(branch); return learned ? ratioClass(learned.log_ratios[i]) : "context"; },
    () => {
      const [a, b, c] = RATIOS.map((bound) => Math.exp(bound));
      const text = (value) => value.toFixed(2);
      return [["down3", `≤ ${text(1 / c)}`], ["down2", `to ${text(1 / b)}`], ["down1", `to ${text(1 / a)}`], ["flat", "1"], ["up1", `to ${text(b)}`], ["up2", `to ${text(c)}`], ["up3", `≥ ${text(c)}`], ["context", "not trained"]];
    }],
  clip: ["Clipping", (branch, i) => heldClass(learnedOf(branch), i),
    (branch) => {
      const learned = learnedOf(branch);
      const count = (name) => (learned ? learned[name].reduce((sum, flag) => sum + flag, 0) : 0);
      const free = learned ? learned.trained.filter((flag, i) => flag && heldClass(learned, i) === "sampled").length : 0;
      return [["sampled", `as it is ${number(free)}`], ...HELD.map(([name, text]) => [name, `${text} ${number(count(name))}`]), ["context", "not trained"]];
    }],
};
const OF_LEARNED = new Set(["advantage", "ratio", "clip"]);

function byValue(list, entry) {
  const values = [...new Set(list)];
  return [...values.slice(0, HUES).map(entry), ...(values.length > HUES ? [["", `and ${values.length - HUES} more`]] : [])];
}

function legend(branch) {
  return el("span", { class: "legend" }, ...COLOURINGS[state.colour][2](branch).map(([name, text]) =>
    el("span", { class: "swatch" }, name ? el("i", { class: `token ${name}` }) : "", text)));
}

// What was written down of the loss, as one number for each token of the branch.
function unpackLearned(packed, size) {
  const trained = expand(packed.mask, packed.size);
  const count = trained.reduce((sum, flag) => sum + flag, 0);
  const spread = (values, fill) => {
    const out = fill === 0 ? new Uint8Array(size) : new Float32Array(size).fill(fill);
    let at = 0;
    trained.forEach((flag, i) => { if (flag) out[i] = values[at++]; });
    return out;
  };
  const numbers = (value) => {
    if (typeof value !== "string") return expand(value, count);
    const [code, text] = value.split(":");
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    return code === "f8" ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
  };
  const out = { update: packed.update, trained: Uint8Array.from({ length: size }, (_, i) => trained[i] ?? 0) };
  for (const name of ["advantages", "logprobs", "log_ratios", "weights"]) out[name] = spread(numbers(packed[name]), NaN);
  if (packed.teacher_logprobs) out.teacher_logprobs = spread(numbers(packed.teacher_logprobs), NaN);
  for (const name of ["clipped", "dropped", "bounded"]) out[name] = spread(numbers(packed[name]), 0);
  return out;
}

function learnedFacts(branch, i) {
  const learned = learnedOf(branch);
  if (!learned) return [];
  if (!learned.trained[i]) return [["trained", "no"]];
  const held = HELD.filter(([name]) => learned[name][i]).map(([name]) => name);
  const sampler = logprobOf(branch, i);
  const facts = [["advantage", signed(Number(learned.advantages[i].toPrecision(4)))], ["trainer's logprob", learned.logprobs[i].toFixed(3)],
    ["ratio in the loss", Math.exp(learned.log_ratios[i]).toFixed(4)]];
  if (typeof sampler === "number") facts.push(["trainer ÷ sampler", Math.exp(learned.logprobs[i] - sampler).toFixed(3)]);
  if (learned.teacher_logprobs) facts.push(["teacher's logprob", learned.teacher_logprobs[i].toFixed(3)]);
  if (learned.weights[i] !== 1) facts.push(["importance weight", learned.weights[i].toFixed(4)]);
  facts.push(["held back", held.join(", ") || "no"]);
  return facts;
}
