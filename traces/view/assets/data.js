// What the page holds: blobs of base64, deflated; inflated when they are first needed.

const KEPT = 8; // unpacked traces: enough to step back and forth and to compare

const kept = new Map();
const vocabularies = new Map();
let index = null;

const loaded = new Promise((resolve) => {
  if (document.readyState !== "loading") resolve();
  else document.addEventListener("DOMContentLoaded", resolve, { once: true });
});

async function inflate(id) {
  let node = document.getElementById(id);
  // While the page still loads, an element is whole once the parser has reached the next.
  if (!node || (document.readyState === "loading" && !node.nextElementSibling)) {
    await loaded;
    node = document.getElementById(id);
  }
  if (!node) throw new Error(`the page ends before ${id}: it was not saved whole`);
  const text = atob(node.textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function inflateJson(id) {
  return JSON.parse(new TextDecoder().decode(await inflate(id)));
}

function expand(runs, size) {
  const out = new Array(size);
  let at = 0;
  for (const [value, count] of runs) {
    out.fill(value, at, at + count);
    at += count;
  }
  return out;
}

function unpack(buffer) {
  const view = new DataView(buffer);
  const length = view.getUint32(0, true);
  const trace = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  bare(trace.roles);
  let at = 4 + length;
  for (const branch of trace.branches) {
    branch.ids = new Uint32Array(branch.size);
    branch.steps = new Uint16Array(branch.size);
    for (let i = 0; i < branch.size; i++, at += 4) branch.ids[i] = view.getUint32(at, true);
    for (let i = 0; i < branch.size; i++, at += 2) branch.steps[i] = view.getUint16(at, true);
    for (const name of ["mask", "turn", "version"]) branch[name] = expand(branch[name], branch.size);
    branch.learned = branch.learned?.map((each) => unpackLearned(each, branch.size));
  }
  trace.conversations = conversationsOf(trace);
  return trace;
}

// The trace in row n, and the texts of its tokens by id (null: the tokenizer was not there).
async function load(n) {
  if (!kept.has(n)) {
    kept.set(n, inflate(`t${n}`).then(unpack));
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(n);
}

async function vocabularyOf(row) {
  const blob = index.vocabularies[row.model];
  if (!blob) return null;
  if (!vocabularies.has(blob)) vocabularies.set(blob, inflateJson(blob));
  return vocabularies.get(blob);
}

// The logprob of a token in nats: a number, or text where it is not an ordinary one.
function logprobOf(branch, i) {
  return branch.steps[i] === 0xffff ? branch.unusual[i] : -branch.steps[i] / 1000;
}

const groupOf = (row) => index.rows.filter(
  (other) => other.file === row.file && other.task === row.task
    && other.environment === row.environment && other.step === row.step,
);
