// The search: words found anywhere in a trace, and comparisons like reward>=0.5 or stop:error.

const NUMBERS = new Set(["reward", "gain", "turns", "tokens", "sampled", "calls", "failed", "forks", "conversations", "seconds", "step", "rollout", "learned"]);
const TEXTS = ["task", "prompt", "reply", "expected", "stated", "tools", "error", "boundary", "stop", "split", "environment", "model", "id"];
const HAYSTACK = ["task", "prompt", "reply", "stop", "environment", "model", "id"];
const FIELDS = [...NUMBERS, ...TEXTS];
const KEPT_TEXT = 2e8; // characters that stay unpacked; beyond them a search unpacks again
const KEPT_WORDS = 40;

class QueryError extends Error {}

// Returns {words, accepts}: the words that must be looked for with `find` before `accepts(row)`.
function compile(query) {
  const words = [];
  const tests = [];
  for (const [, minus, term] of query.matchAll(/(-?)((?:"[^"]*"?|[^\s"])+)/g)) {
    const negative = minus && /^\.?\d/.test(term); // a negative number, not the absence of a number
    const parts = /^([a-z_]+)(>=|<=|!=|>|<|=|:)(.*)$/i.exec(term);
    let test;
    if (parts) {
      test = comparison(parts[1].toLowerCase(), parts[2], parts[3].replaceAll('"', "").toLowerCase());
      if (!test) continue; // nothing is typed after the sign yet
    } else {
      const word = (negative ? `-${term}` : /^"/.test(term) ? term.replaceAll('"', "") : term).toLowerCase();
      if (!word) continue;
      words.push(word);
      test = (row) => hits.get(word)[row.n] === 1;
    }
    tests.push(minus && !negative ? (row) => !test(row) : test);
  }
  return { words, accepts: (row) => tests.every((test) => test(row)) };
}

function comparison(field, sign, value) {
  if (!FIELDS.includes(field)) {
    throw new QueryError(`There is no field “${field}”. Did you mean “${nearest(field, FIELDS)}”? To find it as text, put it in quotes: "${field}${sign}${value}"`);
  }
  if (value === "") return null;
  if (NUMBERS.has(field)) {
    const than = Number(value);
    if (value !== "none" && Number.isNaN(than)) throw new QueryError(`“${field}” is compared with a number or with none, not with “${value}”.`);
    const compare = { ">": (x) => x > than, "<": (x) => x < than, ">=": (x) => x >= than, "<=": (x) => x <= than, "!=": (x) => x !== than }[sign] ?? ((x) => x === than);
    if (value === "none") return (row) => (typeof row[field] !== "number") !== (sign === "!=");
    return (row) => typeof row[field] === "number" && compare(row[field]);
  }
  if (/[<>]/.test(sign)) throw new QueryError(`“${field}” is text: compare it with ${field}:${value} (contains) or ${field}=${value} (is).`);
  const text = (row) => String(row[field]).toLowerCase();
  return { ":": (row) => text(row).includes(value), "=": (row) => text(row) === value, "!=": (row) => text(row) !== value }[sign];
}

// The name with the smallest edit distance.
function nearest(word, names) {
  const distance = (a, b) => {
    let before = [...Array(b.length + 1).keys()];
    for (let i = 1; i <= a.length; i++) {
      const line = [i];
      for (let j = 1; j <= b.length; j++) line.push(Math.min(before[j] + 1, line[j - 1] + 1, before[j - 1] + (a[i - 1] !== b[j - 1])));
      before = line;
    }
    return before[b.length];
  };
  return names.map((name) => [distance(word.slice(0, 40), name), name]).sort((x, y) => x[0] - y[0])[0][1];
}

const hits = new Map(); // word -> one byte per row
const texts = new Map(); // blob -> the lowercase texts of its traces
let textSize = 0;

async function textsIn(blob) {
  if (texts.has(blob)) return texts.get(blob);
  const found = (await inflateJson(blob)).map((text) => text.toLowerCase());
  const size = found.reduce((sum, text) => sum + text.length, 0);
  if (textSize + size <= KEPT_TEXT && !texts.has(blob)) {
    texts.set(blob, found);
    textSize += size;
  }
  return found;
}

// Look for words that have not been looked for yet, in all traces.
async function find(words) {
  const open = words.filter((word) => !hits.has(word));
  if (!open.length) return;
  const found = open.map((word) => Uint8Array.from(index.rows, (row) => row.haystack.includes(word)));
  let n = 0;
  for (const [blob, count] of index.texts.entries()) {
    const said = await textsIn(`s${blob}`);
    for (let i = 0; i < count; i++, n++) open.forEach((word, w) => { if (said[i].includes(word)) found[w][n] = 1; });
  }
  open.forEach((word, w) => hits.set(word, found[w]));
  for (const word of [...hits.keys()].slice(0, Math.max(0, hits.size - KEPT_WORDS))) if (!words.includes(word)) hits.delete(word);
}

// Mark the words of the search in what is shown of a trace, without changing its elements.
function markFound(box, words) {
  if (!globalThis.CSS?.highlights) return;
  CSS.highlights.delete("found");
  if (!words.length) return;
  const ranges = [];
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node && ranges.length < 1000; node = walker.nextNode()) {
    const text = node.data.toLowerCase();
    if (text.length !== node.data.length) continue; // lowercase moved the places
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0 && ranges.length < 1000; at = text.indexOf(word, at + word.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + word.length);
        ranges.push(range);
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}
