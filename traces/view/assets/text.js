// Elements and text. Nothing of a trace ever becomes markup, a style or a link.

const PAGE = 20000; // characters of one text that are shown at first

// Characters that cannot be seen, or that change how their neighbours are shown. Joiners are left
// alone where scripts and emoji need them.
const HIDDEN = new RegExp(
  "(?![\\n\\t])[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\u2028\\u2029\\u115f\\u1160\\u3164\\uffa0]", "gu");
// Not one class [...]: some builds of V8 do not match a class before $ where the text has surrogates.
const JOINED = /(?:\p{Extended_Pictographic}|\p{Emoji_Modifier}|\p{M}|\p{Script=Arabic}|\ufe0f)$/u;
const NAMES = {
  0x0: "NUL", 0x7: "BEL", 0x8: "BS", 0xd: "CR", 0x1b: "ESC", 0xad: "SHY", 0x200b: "ZWSP",
  0x200c: "ZWNJ", 0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM", 0x202a: "LRE", 0x202b: "RLE",
  0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI",
  0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM", 0x2028: "LS", 0x2029: "PS",
};

// Data whose names anybody may have chosen: an object in it has no names but its own (no "toString").
function bare(value) {
  if (Array.isArray(value)) {
    for (const each of value) if (each !== null && typeof each === "object") bare(each);
  } else if (value !== null && typeof value === "object") {
    for (const name of Object.keys(value)) bare(value[name]);
    Object.setPrototypeOf(value, null);
  }
  return value;
}

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Text of a trace, every hidden character as a label.
function fill(node, text) {
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    const code = match[0].codePointAt(0);
    if ((code === 0x200c || code === 0x200d) && JOINED.test(text.slice(Math.max(0, match.index - 2), match.index))) continue;
    const hex = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    node.append(text.slice(from, match.index), el("span", { class: "hidden-char", title: hex }, NAMES[code] ?? hex));
    from = match.index + match[0].length;
  }
  node.append(text.slice(from));
  return node;
}

// One line of a trace's text, for places that have room for no more.
const oneLine = (text) => fill(el("bdi"), text.replace(/\s+/g, " "));

// A text of any length: a page at first, and more of it when asked for.
function long(text, className = "text") {
  const box = el("div", { class: className });
  let shown = 0;
  const more = el("button", { type: "button", class: "more", onclick: () => show(PAGE * 10) });
  const all = el("button", { type: "button", class: "more", onclick: () => show(text.length) }, "Show all");
  function show(count) {
    let end = Math.min(text.length, shown + count);
    if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end++;
    box.append(fill(el("span"), text.slice(shown, end)));
    shown = end;
    const left = text.length - shown;
    more.textContent = `Show more (${left.toLocaleString("en")} characters left)`;
    more.remove();
    all.remove();
    if (left > 0) box.append(more, left < 2e6 ? all : "");
  }
  show(PAGE);
  return box;
}

const number = (value) => (typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 3 }) : String(value));

function seconds(value) {
  if (typeof value !== "number") return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${(value / 60).toFixed(1)} min`;
}

const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

function rewardClass(reward) {
  if (typeof reward !== "number") return "none";
  return reward >= 0.999 ? "full" : reward <= 0.001 ? "zero" : "part";
}

const rewardText = (reward) => (typeof reward === "number" ? reward.toFixed(3) : reward ?? "none");

const badge = (text, kind = "") => fill(el("span", { class: `badge ${kind}` }), text);
