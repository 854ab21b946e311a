// One trace, or two of a group side by side.

const TABS = [["conversation", "Conversation"], ["tokens", "Tokens"], ["reward", "Reward"], ["timeline", "Timeline"], ["details", "Details"], ["changed", "What changed"]];

const detail = document.getElementById("detail");
let drawing = 0; // the newest draw; an older one that finishes late is dropped

async function drawDetail() {
  const mine = ++drawing;
  const main = byId.get(state.trace);
  const others = besideOf(main);
  document.body.classList.toggle("reading", Boolean(state.trace));
  document.body.classList.toggle("comparing", Boolean(main) && (state.tab === "changed" || others.length > 0));
  detail.hidden = !state.trace;
  hideHover();
  if (!state.trace) {
    detail.replaceChildren();
    return;
  }
  if (!main) {
    detail.replaceChildren(el("div", { class: "pad" }, closeButton(), el("p", {}, "There is no trace ", fill(el("code"), state.trace.slice(0, 100)), " in this page.")));
    return;
  }
  const panes = await Promise.all(state.tab === "changed" ? [changedPane(main)] : [main, ...others].map((row) => pane(row, row !== main)));
  if (mine !== drawing) return;
  detail.replaceChildren(toolbar(main, others[0]), el("div", { class: "panes" }, ...panes));
  markFound(detail, problem ? [] : compile(state.q).words);
}

const closeButton = () => el("button", { type: "button", class: "quiet", title: "Close (Esc)", onclick: () => go({ trace: "", with: "" }) }, "✕ Close");

async function changedPane(main) {
  const box = el("div", { class: "pane", role: "tabpanel", "aria-label": "What changed", tabindex: "-1" });
  try {
    box.append(await showChanged(main));
  } catch (error) {
    box.append(el("p", { class: "notice bad-text" }, `These traces cannot be compared: ${error.message}`));
  }
  return box;
}

function toolbar(main, other) {
  const at = shown.indexOf(main);
  const step = (by, label, title) => el("button", { type: "button", class: "quiet", title, disabled: at < 0 || !shown[at + by], onclick: () => move(by) }, label);
  const tabs = TABS.map(([key, label], i) => el("button", {
    type: "button", role: "tab", id: `tab-${key}`, "aria-selected": String(state.tab === key), tabindex: state.tab === key ? "0" : "-1",
    title: `${label} (${i + 1})`, onclick: () => go({ tab: key }),
  }, label));
  const list = el("div", { role: "tablist", class: "tabs", "aria-label": "What to show of the trace" }, ...tabs);
  list.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = (TABS.findIndex(([key]) => key === state.tab) + by + TABS.length) % TABS.length;
    go({ tab: TABS[next][0] }).then(() => document.getElementById(`tab-${TABS[next][0]}`)?.focus());
  });
  const group = groupOf(main).filter((row) => row !== main);
  const compare = group.length && state.tab !== "changed"
    ? chooser("Beside it", [["", "nothing"], ...group.slice(0, 500).map((row) => [row.id, `reward ${rewardText(row.reward)}, ${plural(row.turns, "turn")}, ${row.id.slice(0, 8)}`])], other?.id ?? "", (value) => go({ with: value }))
    : null;
  return el("div", { class: "toolbar" }, closeButton(), step(-1, "↑", "Previous trace (k)"), step(1, "↓", "Next trace (j)"), list, el("span", { class: "grow" }), compare);
}

async function pane(row, second) {
  const box = el("div", { class: "pane", tabindex: "-1" });
  const facts = [badge(row.stop.replaceAll("_", " ") || "unfinished", row.boundary ? "bad" : row.stop === "terminated" ? "" : "warn"),
    plural(row.turns, "turn"), `${number(row.sampled)} of ${plural(row.tokens, "token")} sampled`, seconds(row.seconds)];
  if (row.calls) facts.push(`${plural(row.calls, "call")}${row.failed ? `, ${row.failed} failed` : ""}`);
  if (row.conversations > 1) facts.push(plural(row.conversations, "conversation"));
  if (row.forks) facts.push(plural(row.forks, "fork"));
  box.append(el("header", { class: "pane-head" },
    el("div", { class: `big-reward ${rewardClass(row.reward)}` }, rewardText(row.reward), el("small", {}, "reward")),
    el("div", { class: "what" }, el("h2", {}, oneLine(row.task || "(no id)")),
      el("div", { class: "facts-line" }, ...facts.map((fact) => el("span", {}, fact))),
      el("a", { class: "faint", href: `#${new URLSearchParams({ trace: row.id })}`, title: "A link to this trace alone" }, fill(el("bdi"), row.id.slice(0, 40))),
      copyButton("the trace's id", row.id))));
  try {
    const trace = await load(row.n);
    if (row.foreign) box.append(el("p", { class: "notice" }, "This line is no trace of vf-rl. Its chat messages are shown, and nothing else of it."));
    const part = partOf(trace, second ? "" : state.part);
    const chosen = (next) => (second ? undefined : go({ part: String(next + 1) }).then(() => document.querySelector(".conversations [aria-pressed=true]")?.focus()));
    const words = state.tab === "tokens" ? await vocabularyOf(row) : null;
    if (state.tab === "tokens") box.append(inConversations(trace, part, chosen, (at) => showTokens(trace, words, trace.conversations[at].branches[0], second)));
    else if (state.tab === "reward") box.append(showReward(trace));
    else if (state.tab === "timeline") box.append(showTimeline(trace));
    else if (state.tab === "details") box.append(showDetails(trace, row));
    else box.append(inConversations(trace, part, chosen, (at) => showConversation(trace, at)));
  } catch (error) {
    box.append(el("p", { class: "notice bad-text" }, `This trace cannot be shown: ${error.message}`));
  }
  box.setAttribute("aria-label", second ? "The trace beside it" : "The trace");
  box.setAttribute("role", "tabpanel");
  return box;
}

// The next or previous message of a conversation, or part of the tokens, at the top of the pane.
function toPart(by) {
  const pane = detail.querySelector(".pane");
  if (!pane) return;
  const top = pane.getBoundingClientRect().top + (pane.querySelector(".tokens > .bar")?.offsetHeight ?? 0);
  const places = [...pane.querySelectorAll(".conversation > *, .flow h4, .panel > *")].map((node) => node.getBoundingClientRect().top - top);
  const next = by > 0 ? places.find((at) => at > 4) : places.findLast((at) => at < -4);
  pane.scrollBy({ top: next ?? (by > 0 ? pane.scrollHeight : -pane.scrollHeight) });
}
