// What was said: messages, tool calls and what became of them.

const MESSAGES = 500; // that are shown at first, and more at a time

function showConversation(trace, part) {
  const said = trace.conversations[part];
  const turnOf = new Map(said.answers.map((place, i) => [place, said.turns[i]]));
  const repeated = repeatedOf(trace, said);
  const before = new Set(trace.conversations.slice(0, part).flatMap((each) => each.messages));
  const box = el("div", { class: "conversation" });
  if (trace.error) box.append(failureCard(trace.error));
  if (![null, undefined, ""].includes(trace.task.answer)) {
    const answer = typeof trace.task.answer === "string" ? trace.task.answer : JSON.stringify(trace.task.answer, null, 1);
    box.append(el("div", { class: "card answer" }, el("h3", {}, "Expected answer", copyButton("the expected answer", answer)), long(answer, "text mono")));
  }
  const events = new Map(); // by turn and id, for ids may return in a later turn
  for (const event of trace.tool_events) events.set(`${event.turn}:${event.call_id}`, event);
  let target = box;
  const asked = new Map(); // call id -> the card that waits for its result
  const place = (message, at) => {
    const turn = turnOf.get(at);
    const sampled = turn !== undefined;
    if (sampled) target.append(...turnLine(trace, turn));
    const card = message.role === "tool" && asked.get(message.tool_call_id);
    if (card) {
      card.append(resultOf(message));
      asked.delete(message.tool_call_id);
      return;
    }
    const node = el("article", { class: `message ${message.role}` },
      el("h3", {}, message.role, message.name ? fill(el("code", {}), message.name) : null,
        at < said.prompt_messages ? el("small", {}, before.has(message) ? "prompt, as before" : "prompt") : null,
        message.content ? copyButton("this message", message.content) : null));
    if (message.reasoning) {
      node.append(el("details", { class: "reasoning" }, el("summary", {}, `Reasoning, ${plural(message.reasoning.length, "character")}`), long(message.reasoning)));
    }
    if (message.content || message.images?.length) node.append(contentOf(message));
    else if (!message.tool_calls.length && !message.reasoning) node.append(el("p", { class: "faint" }, "(empty)"));
    for (const call of message.tool_calls) {
      const made = callCard(call, sampled ? events.get(`${turn}:${call.id}`) : undefined);
      asked.set(call.id, made);
      node.append(made);
    }
    target.append(node);
  };
  let placed = repeated;
  if (repeated) {
    const fold = el("details", { class: "repeated" }, el("summary", {}, `${plural(repeated, "message")} as in conversation ${said.parent + 1}`));
    fold.addEventListener("toggle", () => {
      target = fold;
      for (let i = 0; i < repeated; i++) place(said.messages[i], i);
      target = box;
    }, { once: true });
    box.append(fold);
  }
  const more = el("button", { type: "button", class: "more-messages", onclick: () => placeSome() });
  function placeSome() {
    more.remove();
    for (const end = Math.min(placed + MESSAGES, said.messages.length); placed < end; placed++) place(said.messages[placed], placed);
    const left = said.messages.length - placed;
    more.textContent = `Show more (${plural(left, "message")} left)`;
    if (left) box.append(more);
  }
  placeSome();
  if (!said.messages.length) box.append(el("p", { class: "faint pad" }, "There is no message."));
  box.append(...outputCards(trace.info));
  return box;
}

// Other ends of an answer than its own; the same words as ENDS in plain.py.
const ENDS = { length: "cut at the token limit", content_filter: "stopped by the provider's content filter", refusal: "refused, as the provider says" };

function turnLine(trace, turn) {
  const facts = trace.turns[turn];
  const parts = [`turn ${turn + 1}`];
  if (facts) {
    if (facts.prompt_tokens || facts.completion_tokens) {
      parts.push(`${number(facts.prompt_tokens)} prompt + ${plural(facts.completion_tokens, "sampled token")}`);
    }
    parts.push(seconds(facts.seconds));
    if (ENDS[facts.finish_reason]) parts.push(ENDS[facts.finish_reason]);
  }
  const out = [el("div", { class: "rule" }, el("span", {}, parts.join(" · ")))];
  for (const fork of forksAt(trace, turn)) {
    out.push(el("div", { class: "rule fork" }, el("span", {}, "⋔ forked: ", oneLine(fork.reason)), badge(fork.kind)));
  }
  return out;
}

function callCard(call, event) {
  const head = el("header", {}, el("span", { class: "faint" }, "call"), fill(el("code", {}), call.name || "(malformed)"));
  if (event) {
    head.append(badge(event.kind.replaceAll("_", " "), event.kind === "ok" ? "good" : event.kind === "error" ? "bad" : "warn"),
      el("span", { class: "faint" }, seconds(event.seconds)));
  }
  head.append(copyButton("the arguments", call.arguments));
  const card = el("div", { class: "call" }, head, long(call.arguments, "text mono"));
  if (call.malformed) card.append(el("p", { class: "bad-text" }, oneLine(call.malformed)));
  if (event && event.detail && event.kind !== "ok") card.append(el("p", { class: "bad-text" }, oneLine(event.detail)));
  return card;
}

// The text of a message, its images where they stood. Their places count characters, not UTF-16.
function contentOf(message, className = "text") {
  if (!message.images?.length) return long(message.content, className);
  const characters = Array.from(message.content);
  const box = el("div", { class: "with-images" });
  let begin = 0;
  const say = (end) => {
    if (end > begin) box.append(long(characters.slice(begin, end).join(""), className));
    begin = Math.max(begin, end);
  };
  for (const image of message.images) {
    say(image.at);
    box.append(pictureOf(image));
  }
  say(characters.length);
  return box;
}

const resultOf = (message) => el("div", { class: "result" }, el("span", { class: "faint" }, "result"), message.images?.length ? contentOf(message, "text mono") : long(message.content || "(empty)", "text mono"), message.content ? copyButton("the result", message.content) : "");

function failureCard(error) {
  return el("div", { class: "card failure" },
    el("h3", {}, "Failed", badge(error.boundary, "bad"), fill(el("code", {}), error.type), copyButton("the error", () => [error.message, error.traceback].filter(Boolean).join("\n"))),
    long(error.message),
    error.traceback ? el("details", {}, el("summary", {}, "Traceback"), long(error.traceback, "text mono")) : null);
}
