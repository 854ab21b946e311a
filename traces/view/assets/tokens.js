// The token view: every token of a branch, coloured, with what is known of it on hover.

const CHUNK = 256; // tokens that are drawn and dropped together
function showTokens(trace, vocabulary, first = 0, second = false) {
  const named = Number(second ? "" : state.branch) - 1;
  let at = trace.branches[named] ? named : first;
  const box = el("div", { class: "tokens" });
  if (!trace.branches[at]) {
    box.append(el("p", { class: "faint pad" }, "There are no tokens: a chat API answers in text, and says neither ids nor logprobs."));
    return box;
  }
  const bar = el("div", { class: "bar" });
  const stage = el("div", { class: "stage" });
  box.append(bar, stage);
  function redraw() {
    const branch = trace.branches[at];
    forkOf(trace, at);
    bar.replaceChildren(
      trace.branches.length > 1 ? chooser("Branch", trace.branches.map((each, i) => [String(i), `${i + 1} of ${trace.branches.length}${talkOf(trace, i)}, ${plural(each.size, "token")}`]), String(at), (value) => {
        if (!second) return go({ branch: String(Number(value) + 1) });
        at = Number(value);
        return redraw();
      }) : "",
      chooser("Colour by", Object.entries(COLOURINGS).filter(([key]) => !OF_LEARNED.has(key) || branch.learned || key === state.colour).map(([key, [label]]) => [key, label]), state.colour, (value) => go({ colour: value })),
      OF_LEARNED.has(state.colour) && branch.learned?.length > 1 ? chooser("Optimizer step", branch.learned.map((each) => [String(each.update), String(each.update)]), String(learnedOf(branch).update), (value) => go({ update: value })) : "",
      legend(branch),
      el("span", { class: "grow" }),
      el("span", { class: "faint" }, `${plural(branch.size, "token")}, ${number(branch.mask.reduce((sum, mask) => sum + (mask === 1), 0))} with loss`,
        vocabulary ? "" : ". The tokenizer was not at hand, so these are ids"),
      copyButton("the token ids", () => branch.ids.join(" ")));
    stage.replaceChildren(drawBranch(trace, at, vocabulary));
    if (OF_LEARNED.has(state.colour) && !branch.learned) {
      stage.prepend(el("p", { class: "notice" }, "What the loss used was not written down for this branch. It is for the first trainer.args.learned_groups groups of each training step: search for learned>0."));
    }
    if (branch.problem) stage.prepend(el("p", { class: "bad-text" }, `This branch is damaged: ${branch.problem}.`));
  }
  redraw();
  return box;
}

function chooser(label, options, value, onchange) {
  const select = el("select", { onchange: () => onchange(select.value) },
    ...options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  return el("label", {}, `${label} `, select);
}

// Which earlier branch this one leaves, and where: `from`, and the number `at` of tokens they share;
// null for the first. Marks the tokens that it copies: those that the other one had sampled.
function forkOf(trace, number) {
  const branch = trace.branches[number];
  if (branch.fork !== undefined) return branch.fork;
  branch.copied = new Uint8Array(branch.size);
  branch.fork = null;
  for (let from = number - 1; from >= 0; from--) {
    const old = trace.branches[from];
    const size = Math.min(old.size, branch.size);
    let at = 0;
    while (at < size && old.ids[at] === branch.ids[at]) at++;
    if (!branch.fork || at > branch.fork.at) branch.fork = { from, at };
    for (let i = 0; i < at; i++) if (old.mask[i] === 1 && branch.mask[i] === 0) branch.copied[i] = 1;
  }
  if (branch.fork) branch.fork.reason = forksAt(trace, branch.turn[branch.mask.indexOf(1)]).map((fork) => fork.reason).join("; ");
  return branch.fork;
}

// Which conversation a branch is of, where there are several.
function talkOf(trace, number) {
  const at = trace.conversations.findIndex((each) => each.branches.includes(number));
  return trace.conversations.length > 1 && at >= 0 ? `, conversation ${at + 1}` : "";
}

function drawBranch(trace, at, vocabulary) {
  const branch = trace.branches[at];
  const flow = el("div", { class: `flow ${vocabulary ? "" : "ids"}`, tabindex: "0", role: "group", "aria-label": "Tokens; arrow keys walk through them" });
  const left = forkOf(trace, at);
  const fork = left ? left.at : -1;
  const leaving = [...trace.branches.keys()].filter((i) => i > at && forkOf(trace, i).from === at);
  const next = leaving.map((number) => ({ number, ...forkOf(trace, number) }));
  const chunks = new Map();
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const chunk = chunks.get(target);
      if (isIntersecting && !target.firstChild) {
        drawTokens(target, branch, chunk, vocabulary, fork);
        target.style.height = "";
      } else if (!isIntersecting && target.firstChild) {
        target.style.height = `${target.getBoundingClientRect().height}px`; // the scroll bar stays where it is
        target.replaceChildren();
      }
    }
  }, { rootMargin: "800px 0px", scrollMargin: "800px 0px" });
  const place = (start, end) => {
    const node = el("div", { class: "chunk" });
    node.style.height = `${Math.ceil((end - start) / (vocabulary ? 18 : 14)) * 24}px`; // a guess, until drawn
    chunks.set(node, { start, end });
    flow.append(node);
    watcher.observe(node);
  };
  let start = 0;
  for (let i = 1; i <= branch.size; i++) {
    const ends = i === branch.size || branch.turn[i] !== branch.turn[start] || branch.mask[i] !== branch.mask[start] || branch.copied[i] !== branch.copied[start] || i === fork;
    if (!ends) continue;
    flow.append(stretchLine(branch, start, i, left));
    for (let from = start; from < i; from += CHUNK) place(from, Math.min(i, from + CHUNK));
    start = i;
  }
  const tell = (node) => showHover(node, tokenFacts(trace, at, Number(node.dataset.i), vocabulary, left, next));
  flow.addEventListener("pointerover", (event) => { if (event.target.dataset?.i) tell(event.target); });
  flow.addEventListener("pointerleave", hideHover);
  flow.addEventListener("blur", hideHover);
  let cursor = -1;
  flow.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.metaKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    cursor = Math.max(0, Math.min(branch.size - 1, cursor + step));
    for (const [node, chunk] of chunks) {
      if (cursor < chunk.start || cursor >= chunk.end) continue;
      if (!node.firstChild) {
        drawTokens(node, branch, chunk, vocabulary, fork);
        node.style.height = "";
      }
      flow.querySelector(".cursor")?.classList.remove("cursor");
      const token = node.querySelector(`[data-i="${cursor}"]`);
      token.classList.add("cursor");
      token.scrollIntoView({ block: "nearest" });
      tell(token);
    }
  });
  return flow;
}

function stretchLine(branch, start, end, left) {
  const sampled = branch.mask[start] === 1;
  const parts = [`turn ${Number(branch.turn[start]) + 1}`, sampled ? "sampled" : branch.copied[start] ? `copied from branch ${left.from + 1}` : "context", plural(end - start, "token")];
  if (sampled) {
    const versions = [...new Set(branch.version.slice(start, end))];
    parts.push(`weights ${versions.slice(0, 4).join(", ")}${versions.length > 4 ? ", …" : ""}`);
  }
  const line = el("h4", { class: sampled ? "sampled" : "" }, parts.join(" · "));
  if (start === left?.at) line.append(el("span", { class: "fork" }, " ⋔ forked from branch ", String(left.from + 1), ": ", oneLine(left.reason || "no reason was recorded")));
  return line;
}

function drawTokens(node, branch, { start, end }, vocabulary, fork) {
  const name = COLOURINGS[state.colour][1];
  for (let i = start; i < end; i++) {
    const id = branch.ids[i];
    const text = vocabulary ? vocabulary[id] : undefined;
    const span = el("span", { class: `token ${name(branch, i)}${i === fork ? " fork-here" : ""}`, "data-i": i });
    if (text === undefined || text === "") {
      span.classList.add("bare");
      span.append(String(id));
    } else if (text.includes("\n")) {
      fill(span, text.replaceAll("\n", "⏎"));
    } else fill(span, text.length > 200 ? `${text.slice(0, 200)}…` : text);
    node.append(span);
    if (text !== undefined && text.includes("\n")) node.append(el("br"));
  }
}

function tokenFacts(trace, at, i, vocabulary, left, next) {
  const branch = trace.branches[at];
  const logprob = logprobOf(branch, i);
  const facts = [["token", `${i.toLocaleString("en")} of ${branch.size.toLocaleString("en")}`], ["id", String(branch.ids[i])]];
  const text = vocabulary?.[branch.ids[i]];
  if (vocabulary) facts.push(["text", text ? JSON.stringify(text).slice(0, 80) : "no whole character"]);
  facts.push(["loss mask", branch.mask[i] === 1 ? "1, sampled" : `${branch.mask[i]}, context`]);
  if (branch.mask[i]) {
    facts.push(["logprob", typeof logprob === "number" ? logprob.toFixed(3) : logprob]);
    if (typeof logprob === "number") facts.push(["probability", `${(100 * Math.exp(logprob)).toFixed(1)} %`]);
    facts.push(["weight version", String(branch.version[i])]);
  }
  facts.push(...learnedFacts(branch, i));
  facts.push(["turn", String(Number(branch.turn[i]) + 1)], ["branch", `${at + 1} of ${trace.branches.length}`]);
  if (left) facts.push([`shared with branch ${left.from + 1}`, i < left.at ? "yes" : `no, forked at token ${left.at.toLocaleString("en")}`]);
  for (const each of next.filter((one) => i >= one.at).slice(0, 3)) facts.push(["fork", `branch ${each.number + 1} left before this token${each.reason ? `: ${each.reason.slice(0, 160)}` : ""}`]);
  return facts;
}

const hover = document.getElementById("hover");

function showHover(node, facts) {
  hover.replaceChildren(el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), fill(el("dd"), value)])));
  hover.hidden = false;
  const [at, size] = [node.getBoundingClientRect(), hover.getBoundingClientRect()];
  const below = at.bottom + 6 + size.height < innerHeight;
  hover.style.left = `${Math.max(8, Math.min(innerWidth - size.width - 8, at.left))}px`;
  hover.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)}px`;
}

function hideHover() {
  hover.hidden = true;
}
