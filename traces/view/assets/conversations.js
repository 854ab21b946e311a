// An agent's conversations: which there are, why each began, and what the program left.

// All conversations of a trace, with their messages; of most traces there is one.
function conversationsOf(trace) {
  if (!trace.lineages.length) {
    const answers = [...trace.messages.keys()].filter((i) => i >= trace.prompt_messages && trace.messages[i].role === "assistant");
    const { messages, prompt_messages } = trace;
    return [{ messages, prompt_messages, branches: [...trace.branches.keys()], answers, turns: [...answers.keys()], parent: null }];
  }
  const said = []; // what several say is the same object
  const spread = (entry) => {
    if (Array.isArray(entry)) return said.slice(entry[0], entry[0] + entry[1]);
    said.push(entry);
    return [entry];
  };
  return trace.lineages.map((each) => ({ ...each, messages: each.messages.flatMap(spread), branches: each.branches.filter((i) => trace.branches[i]) }));
}

// The place of the conversation that the address names, else of the one that was answered last.
function partOf(trace, part) {
  const named = Number(part) - 1;
  if (part && trace.conversations[named]) return named;
  const last = trace.conversations.map((each) => Math.max(-1, ...each.turns));
  return last.indexOf(Math.max(...last));
}

const forksAt = (trace, turn) => trace.forks.filter((fork) => fork.turn === turn);

// How many messages it repeats of the conversation that it left.
function repeatedOf(trace, said) {
  const left = trace.conversations[said.parent];
  if (!left) return 0;
  let same = 0;
  while (same < said.prompt_messages && said.messages[same] === left.messages[same]) same++;
  return same;
}

function depthOf(trace, at) {
  const passed = new Set(); // a damaged trace may lead in a circle
  for (let next = trace.conversations[at].parent; trace.conversations[next] && !passed.has(next); next = trace.conversations[next].parent) passed.add(next);
  return passed.size;
}

// A view of one conversation, below all of them where there are several.
function inConversations(trace, at, chosen, show) {
  if (trace.conversations.length < 2) return show(at);
  const box = el("div");
  const draw = (now) => box.replaceChildren(picker(trace, now, (next) => chosen(next) ?? draw(next)), show(now));
  draw(at);
  return box;
}

function picker(trace, at, choose) {
  const entries = trace.conversations.map((each, i) => {
    const sampled = each.turns.reduce((sum, turn) => sum + (trace.turns[turn]?.completion_tokens ?? 0), 0);
    const forks = forksAt(trace, each.turns[0]);
    const told = each.messages[repeatedOf(trace, each)]?.content ?? "";
    const button = el("button", { type: "button", "aria-pressed": String(i === at), onclick: () => choose(i) },
      el("b", {}, each.role || String(i + 1)), " ", ...(trace.roles?.[each.role] ? [badge(trace.roles[each.role].player), " ", el("span", { class: "faint" }, `reward ${trace.roles[each.role].reward.toFixed(2)}${trace.roles[each.role].trained ? "" : ", not trained"}`), " "] : []), ...forks.map((fork) => badge(fork.kind)), " ",
      oneLine(told.slice(0, 80)), " ",
      el("span", { class: "faint" }, `${plural(each.turns.length, "answer")}, ${plural(sampled, "sampled token")}`),
      ...forks.map((fork) => el("small", {}, oneLine(fork.reason.slice(0, 300)))));
    const entry = el("li", {}, button);
    entry.style.setProperty("--depth", Math.min(6, depthOf(trace, i)));
    return entry;
  });
  return el("nav", { class: "conversations", "aria-label": "Conversations" },
    el("h3", {}, plural(trace.conversations.length, "conversation")), el("ol", {}, ...entries));
}

// What an agent returned or printed, how its program ended, and the files that it left.
function outputCards(info) {
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
  const parts = [];
  const card = (title, ...shown) => parts.push(el("div", { class: "card program" }, el("h3", {}, title), ...shown));
  if (info.output !== undefined) card("Output", long(text(info.output) || "(empty)", "text mono"));
  const ended = info.program;
  if (ended && typeof ended === "object") {
    const { exit_code: code, ...rest } = ended;
    card("Program", code === undefined ? null : badge(code === null ? "stopped" : `exit code ${code}`, code ? "bad" : "good"),
      ...Object.entries(rest).filter(([, value]) => value !== "").flatMap(([name, value]) => [el("h4", {}, oneLine(name)), long(text(value), "text mono")]));
  }
  const user = info.simulated_user;
  if (user && typeof user === "object" && Array.isArray(user.messages)) parts.push(userCard(user));
  if (info.files && typeof info.files === "object") {
    for (const [path, content] of Object.entries(info.files)) {
      parts.push(el("details", { class: "card program" }, fill(el("summary", {}, "File "), path), long(text(content) || "(empty)", "text mono")));
    }
  }
  return parts;
}

// The conversation as the simulated user sees it: the policy's words are a user's there.
function userCard(user) {
  const names = { __proto__: null, user: "the policy", assistant: "the user" };
  const facts = `${plural(Number(user.requests), "request")}, ${number(Number(user.prompt_tokens))} prompt + ${plural(Number(user.completion_tokens), "sampled token")}`;
  return el("details", { class: "card program" },
    fill(el("summary", {}, "The simulated user's side, played by "), String(user.played_by)),
    el("p", { class: "faint" }, oneLine(user.ended ? `${facts}, ended: ${user.ended}` : facts)),
    ...user.messages.filter((message) => message && typeof message === "object").flatMap((message) => [
      el("h4", {}, oneLine(names[message.role] ?? String(message.role))),
      ...(message.content ? [long(String(message.content))] : []),
      ...(Array.isArray(message.tool_calls) ? message.tool_calls.map((call) => long(`${call?.function?.name} ${call?.function?.arguments}`, "text mono")) : []),
    ]));
}

const SHOWN_INFO = ["output", "program", "files", "simulated_user"];
