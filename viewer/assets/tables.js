// Tables: each scrolls in a box of its own while its first column stays in view. A text is shown whole
// up to the width that its column may have, then wraps, and is never broken into a column of letters.

const columnHead = (text, kind = "", title = null) => el("th", { scope: "col", class: kind, title }, oneLine(text));

function table(label, kind, heads, rows) {
  const head = heads.length ? [el("thead", {}, el("tr", {}, ...heads))] : [];
  return el("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": label },
    el("table", { class: `table ${kind}` }, ...head, el("tbody", {}, ...rows)));
}

// A text of any length in a cell. Its title holds all of it.
function clip(text) {
  const node = fill(el("bdi", { class: "clip" }), text.replace(/\s+/g, " "));
  node.title = node.textContent;
  return node;
}
