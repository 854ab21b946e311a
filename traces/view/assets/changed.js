// What changed: one task at several steps, in several runs or by several models, side by side, with
// the first token marked in which each leaves the first of them.

const SIDES = 4; // at most
const ALIKE = 40; // tokens shown before the first that differs; what is before them is folded
const AFTER = 3000; // tokens shown after it at first

const runOf = (row) => index.files[row.file].run;
const cellOf = (row) => JSON.stringify([runOf(row), row.model, row.split, row.step]);
const byTime = (a, b) => runOf(a).localeCompare(runOf(b), "en", { numeric: true }) || a.model.localeCompare(b.model) || (a.step ?? -1) - (b.step ?? -1) || a.n - b.n;
const sameTask = (main) => index.rows.filter((row) => row.task === main.task && row.environment === main.environment);

// The rows beside the main one, as the address names them.
function besideOf(main) {
  if (!main || !state.with) return [];
  const ids = byId.has(state.with) ? [state.with] : state.with.split(",");
  return ids.map((id) => byId.get(id)).filter((row) => row && row !== main).slice(0, SIDES - 1);
}

// One row for each run, model, split and step: the same rollout of the task, if it is there.
const cellsOf = (main, rows) => [...Map.groupBy(rows, cellOf).values()]
  .map((each) => (each.includes(main) ? main : each.find((row) => row.rollout === main.rollout) ?? each[0])).sort(byTime);

// Of its run the first, a middle and the last step.
function acrossSteps(main) {
  const own = cellsOf(main, sameTask(main).filter((row) => row.split === main.split && runOf(row) === runOf(main) && row.model === main.model));
  const last = own.length - 1;
  const at = own.indexOf(main);
  return [...new Set([0, at > 0 && at < last ? at : Math.floor(last / 2), last])].map((i) => own[i]);
}

// The same step in other runs or of other models, or their last.
function acrossRuns(main) {
  const others = sameTask(main).filter((row) => row.split === main.split && (runOf(row) !== runOf(main) || row.model !== main.model));
  const runs = Map.groupBy(cellsOf(main, others), (row) => JSON.stringify([runOf(row), row.model]));
  return [main, ...[...runs.values()].map((each) => each.find((row) => row.step === main.step) ?? each.at(-1)).slice(0, SIDES - 1)].sort(byTime);
}

// What is compared where nothing is chosen: steps, else runs and models, else whatever there is.
function usualSides(main) {
  for (const sides of [acrossSteps(main), acrossRuns(main)]) if (sides.length > 1) return sides;
  return [main, ...sameTask(main).filter((row) => row !== main).slice(0, SIDES - 1)].sort(byTime);
}

async function showChanged(main) {
  const beside = besideOf(main);
  const sides = beside.length ? [main, ...beside].sort(byTime) : usualSides(main);
  const box = el("div", { class: "changed" });
  const head = el("header", { class: "pane-head" }, el("div", { class: "what" }, el("h2", {}, oneLine(main.task || "(no id)")),
    el("div", { class: "facts-line" }, main.prompt === main.task ? "" : oneLine(main.prompt), main.expected ? el("span", {}, "expected ", fill(el("code"), main.expected)) : "")));
  box.append(head);
  if (sides.length < 2) {
    box.append(el("p", { class: "faint pad" }, "This is the only trace of its task here. Name other runs or results beside it, as in: vf-rl view runs/a runs/b."));
    return box;
  }
  const loaded = await Promise.all(sides.map(async (row) => ({ row, trace: await load(row.n), words: await vocabularyOf(row) })));
  const seen = sequencesOf(loaded);
  const leaves = seen.map((each) => firstDifference(seen[0].keys, each.keys));
  leaves[0] = Math.min(...leaves.slice(1));
  const from = Math.max(0, leaves[0] - ALIKE);
  const choose = (rows) => go({ trace: rows.includes(main) ? main.id : rows[0].id, with: rows.filter((row) => row !== (rows.includes(main) ? main : rows[0])).map((row) => row.id).join(",") });
  const options = sameTask(main).sort(byTime).slice(0, 1000);
  const columns = sides.map((row, i) => el("section", { class: "side", "aria-label": sideName(row, sides) },
    sideHead(row, i, sides, options, choose), sideLead(seen[i], leaves[i], i), drawSide(seen[i], from, leaves[i])));
  const unused = options.filter((row) => !sides.includes(row));
  const button = (label, name, onclick) => head.append(el("button", { type: "button", class: name, onclick }, label));
  head.append(el("span", { class: "grow" }));
  const [steps, runs] = [acrossSteps(main), acrossRuns(main)];
  if (steps.length > 1 && runs.length > 1) {
    button("Across steps", "across-steps", () => choose(steps));
    button("Across runs", "across-runs", () => choose(runs));
  }
  if (unused.length && sides.length < SIDES) button("Add another", "add", () => choose([...sides, unused[0]]));
  if (Number.isFinite(leaves[0])) button("To the first difference", "", () => box.querySelector(".differs")?.scrollIntoView({ block: "center" }));
  box.append(el("div", { class: "sides" }, ...columns));
  return box;
}

// What tells a side from the others.
function sideName(row, sides) {
  const varied = (of) => new Set(sides.map(of)).size > 1;
  const parts = [];
  if (row.step !== null) parts.push(`${row.split === "train" ? "training step" : "step"} ${row.step}`);
  if (varied(runOf)) parts.push(runOf(row).split("/").at(-1));
  if (row.model && varied((each) => each.model)) parts.push(row.model);
  if (!parts.length || sides.some((other) => other !== row && cellOf(other) === cellOf(row))) parts.push(row.rollout === null ? row.id.slice(0, 8) : `rollout ${row.rollout}`);
  return parts.join(", ");
}

function sideHead(row, at, sides, options, choose) {
  const select = chooser("", options.map((each) => [each.id, `${sideName(each, options)}, reward ${rewardText(each.reward)}`]), row.id,
    (id) => choose(sides.map((each, i) => (i === at ? byId.get(id) : each)).filter((each, i, all) => all.indexOf(each) === i)));
  select.firstElementChild.setAttribute("aria-label", `Side ${at + 1}`);
  const remove = sides.length > 2 ? el("button", { type: "button", class: "quiet", title: "Take this side away", "aria-label": `Take side ${at + 1} away`, onclick: () => choose(sides.filter((each) => each !== row)) }, "✕") : null;
  return el("header", {}, el("h3", {}, sideName(row, sides)), el("div", { class: "side-choice" }, select, remove),
    el("div", { class: "facts-line" }, el("b", { class: rewardClass(row.reward) }, `reward ${rewardText(row.reward)}`),
      row.stated ? el("span", {}, "answers ", fill(el("code"), row.stated)) : "", el("span", {}, plural(row.turns, "turn")), el("span", {}, `${number(row.sampled)} sampled`),
      el("a", { href: `#${new URLSearchParams({ trace: row.id })}` }, "open")));
}

// Where the side leaves the first one, and how likely that was.
function sideLead(seen, leaves, at) {
  if (!Number.isFinite(leaves)) return el("p", { class: "lead" }, at ? "The same as the first." : "All are the same.");
  if (leaves >= seen.size) return el("p", { class: "lead" }, `Ends before the first difference, after ${plural(leaves, seen.unit)}.`);
  const logprob = seen.logprob(leaves);
  return el("p", { class: "lead" }, at ? "Differs from the first at " : "First difference at ", `${seen.unit} ${(leaves + 1).toLocaleString("en")}: `, fill(el("code"), seen.text(leaves)),
    typeof logprob === "number" ? `, probability ${(100 * Math.exp(logprob)).toFixed(1)} %` : seen.sampled(leaves) ? "" : ", which was not sampled");
}

const firstDifference = (a, b) => {
  const size = Math.min(a.length, b.length);
  let at = 0;
  while (at < size && a[at] === b[at]) at++;
  return at === size && a.length === b.length ? Infinity : at;
};

// Whether two vocabularies are of one tokenizer: whatever id both have is the same text.
const alikeWords = (a, b) => a === b || (a && b && Object.keys(a).every((id) => b[id] === undefined || b[id] === a[id]));

// Each side as something that can be compared piece by piece: tokens, or words where there are none
// or the tokenizers differ.
function sequencesOf(sides) {
  const branches = sides.map(({ trace }) => trace.conversations[partOf(trace, "")].branches[0]);
  const tokens = sides.every(({ row, trace, words }, i) => trace.branches[branches[i]] && (row.model === sides[0].row.model || words) && alikeWords(words, sides[0].words));
  return sides.map(({ trace, words }, i) => (tokens ? tokensOf(trace, branches[i], words) : wordsOf(trace)));
}

function tokensOf(trace, at, words) {
  const branch = trace.branches[at];
  const left = forkOf(trace, at);
  const text = (i) => words?.[branch.ids[i]] || String(branch.ids[i]);
  return {
    keys: branch.ids, size: branch.size, unit: "token", text,
    sampled: (i) => branch.mask[i] === 1,
    logprob: (i) => (branch.mask[i] === 1 ? logprobOf(branch, i) : null),
    part: (i) => `turn ${Number(branch.turn[i]) + 1}, ${branch.mask[i] === 1 ? "sampled" : "context"}`,
    facts: (i) => tokenFacts(trace, at, i, words, left, []),
    bare: (i) => !words?.[branch.ids[i]],
  };
}

function wordsOf(trace) {
  const said = trace.conversations[partOf(trace, "")];
  const [keys, parts, sampled] = [[], [], []];
  said.messages.forEach((message, at) => {
    const pieces = [message.reasoning, message.content, ...message.tool_calls.map((call) => `${call.name} ${call.arguments}`)].filter(Boolean).join("\n");
    for (const [word] of pieces.matchAll(/\s*\S+\s*?/gu)) {
      keys.push(word);
      parts.push(`message ${at + 1}, ${message.role}`);
      sampled.push(at >= said.prompt_messages && message.role === "assistant");
    }
  });
  return { keys, size: keys.length, unit: "word", text: (i) => keys[i].trim(), shown: (i) => keys[i], sampled: (i) => sampled[i], logprob: () => null, part: (i) => parts[i], facts: () => null, bare: () => false };
}

function drawSide(seen, from, leaves) {
  const flow = el("div", { class: `flow ${seen.bare(0) ? "ids" : ""}` });
  let part = null;
  const draw = (target, start, end) => {
    for (let i = start; i < end; i++) {
      if (seen.part(i) !== part) target.append(el("h4", { class: seen.sampled(i) ? "sampled" : "" }, (part = seen.part(i))));
      const text = (seen.shown ?? seen.text)(i);
      const span = el("span", { class: `token ${seen.sampled(i) ? "sampled" : "context"} ${i === leaves ? "differs" : ""} ${seen.bare(i) ? "bare" : ""}`, "data-i": i });
      target.append(fill(span, text.replaceAll("\n", "⏎").slice(0, 200)), text.includes("\n") ? el("br") : "");
    }
  };
  const start = Math.min(from, seen.size);
  if (start) {
    const fold = el("details", { class: "alike" }, el("summary", {}, `${plural(start, seen.unit)} alike`));
    fold.addEventListener("toggle", () => { part = null; draw(fold, 0, start); }, { once: true });
    flow.append(fold);
  }
  let drawn = start;
  const more = el("button", { type: "button", class: "more", onclick: () => some(Math.max(drawn, 0) + 10 * AFTER) });
  function some(until) {
    more.remove();
    const end = Math.min(seen.size, until);
    draw(flow, drawn, end);
    drawn = end;
    more.textContent = `Show more (${plural(seen.size - drawn, seen.unit)} left)`;
    if (drawn < seen.size) flow.append(more);
  }
  some((Number.isFinite(leaves) ? Math.max(start, leaves) : start) + AFTER);
  flow.addEventListener("pointerover", (event) => {
    const facts = event.target.dataset?.i && seen.facts(Number(event.target.dataset.i));
    if (facts) showHover(event.target, facts);
  });
  flow.addEventListener("pointerleave", hideHover);
  return flow;
}
