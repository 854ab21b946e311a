// The table of runs: what they reached, and the settings in which they differ.

const settingText = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));

// Names of settings that do not have the same value in all of these runs.
function differing(runs) {
  const known = runs.filter((run) => run.settings);
  const names = [...new Set(known.flatMap((run) => Object.keys(run.settings)))];
  const own = /(^|\.)(run_name|output_dir)$/;
  return names.filter((name) => !own.test(name) && new Set(known.map((run) => settingText(run.settings[name]))).size > 1);
}

// The part of a setting's name that tells it from the others: trainer.args.learning_rate is learning_rate.
function shortName(name, names) {
  const words = name.split(".");
  for (let n = 1; n < words.length; n++) {
    const end = words.slice(-n).join(".");
    if (names.filter((other) => other === end || other.endsWith(`.${end}`)).length === 1) return end;
  }
  return name;
}

function drawRuns(box, runs) {
  if (!runs.length) return box.replaceChildren();
  const focus = document.activeElement?.dataset?.run;
  const differ = differing(runs);
  const head = ["Run", "Step", "Held out", "Training", "Time", "Sampled"].map((text, i) => columnHead(text, i ? "num" : ""));
  const heads = [...head, ...differ.map((name) => columnHead(shortName(name, differ), "", name))];
  const rows = runs.map((run) => el("tr", { class: state.hide.includes(run.name) ? "off" : "" }, ...cellsOf(run, runs), ...differ.map((name) => el("td", { class: "setting" }, clip(settingText(run.settings?.[name]))))));
  const notes = runs.filter((run) => run.problem).map((run) => el("p", { class: "faint" }, oneLine(`${run.name}: ${run.problem}`)));
  const told = runs.length > 1 && !differ.length && runs.every((run) => run.settings) ? [el("p", { class: "faint" }, "The runs have the same settings.")] : [];
  const open = box.querySelector("details")?.open ?? false;
  box.replaceChildren(
    el("h2", {}, runs.length > 1 ? `${runs.length} runs` : "Run"),
    table("Table of runs", "runs", heads, rows),
    ...told, ...notes, ...allSettings(runs, open));
  if (focus !== undefined) box.querySelector(`[data-run="${CSS.escape(focus)}"]`)?.focus();
}

function cellsOf(run, runs) {
  const swatch = el("i", { class: `swatch c${run.colour}` });
  const toggle = el("input", { type: "checkbox", "data-run": run.name, checked: !state.hide.includes(run.name), onchange: () =>
    go({ hide: state.hide.includes(run.name) ? state.hide.filter((name) => name !== run.name) : [...state.hide, run.name] }) });
  const name = runs.length > 1 ? el("label", {}, toggle, swatch, clip(run.name)) : clip(run.name);
  const [, held] = pointsOf(run, "eval/reward/mean");
  const [, rewards] = pointsOf(run, "reward/mean");
  const recent = rewards.slice(-10);
  const mean = recent.length ? recent.reduce((a, b) => a + b, 0) / recent.length : null;
  const total = run.max_steps ? ` / ${number(run.max_steps)}` : "";
  const num = (text, title) => el("td", { class: "num", title: title ?? "" }, text);
  return [
    el("th", { scope: "row" }, name),
    num(`${number(stepOf(run))}${total}`, state.live && run.written ? `last written ${new Date(1000 * run.written).toLocaleTimeString()}` : ""),
    num(held.length > 1 ? `${held[0].toFixed(3)} → ${held[held.length - 1].toFixed(3)}` : held.length ? held[0].toFixed(3) : "–", "held-out reward, first and last"),
    num(mean === null ? "–" : mean.toFixed(3), "mean training reward of the last 10 steps"),
    num(sumOf(run, "time/total") ? duration(sumOf(run, "time/total")) : "–"),
    num(sumOf(run, "tokens/sampled") ? short(sumOf(run, "tokens/sampled")) : "–", "tokens sampled for training"),
  ];
}

function allSettings(runs, open) {
  const known = runs.filter((run) => run.settings);
  if (!known.length) return [];
  const differ = new Set(differing(known));
  const names = [...new Set(known.flatMap((run) => Object.keys(run.settings)))];
  const head = known.length > 1 ? ["Setting", ...known.map((run) => run.name)].map((text) => el("th", { scope: "col" }, clip(text))) : [];
  const rows = names.map((name) => el("tr", { class: differ.has(name) ? "differs" : "" }, el("th", { scope: "row" }, clip(name)), ...known.map((run) => el("td", {}, clip(settingText(run.settings[name]))))));
  const plan = known.length === 1 && known[0].plan ? [el("h3", {}, "Plan"), table("Plan", "settings", [], known[0].plan.map(([name, text]) => el("tr", {}, el("th", { scope: "row" }, clip(name)), el("td", {}, clip(text)))))] : [];
  return [el("details", { class: "more", open }, el("summary", {}, plan.length ? "Plan and all settings" : "All settings"), ...plan, plan.length ? el("h3", {}, "Settings") : "",
    table("Settings", "settings", head, rows))];
}
