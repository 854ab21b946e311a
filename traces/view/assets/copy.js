// Copying. A page that is embedded or opened from a disk may not have the clipboard: then by hand.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "copied-text", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// A button that copies a text, or what a function returns.
function copyButton(what, text) {
  const label = `Copy ${what}`;
  return el("button", { type: "button", class: "quiet copy", title: label, "aria-label": label, onclick: async (event) => {
    event.stopPropagation();
    sayCopied(await copy(typeof text === "function" ? text() : text), what);
  } });
}

const sayCopied = (done, what) => flash(done ? `Copied ${what}` : "The browser does not let this page copy");

// Where this view is; in a frame, where the page around it is, if it may be asked.
function address() {
  try {
    return parent.location.href;
  } catch {
    return location.href;
  }
}

// Say something for a moment.
function flash(text) {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(flash.timer);
  flash.timer = setTimeout(() => { toast.hidden = true; }, 1600);
}
