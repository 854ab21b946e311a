// One chart with uPlot. Where the x axis is zoomed is state of the page, so all charts follow.

const RAW = 0.4; // opacity of what was smoothed
const DASHES = [[], [6, 4], [2, 3]];
const ink = {};

// Canvas needs colours as they are now, light or dark: the style sheet's, read through a probe.
function readColours() {
  const probe = document.body.appendChild(document.createElement("i"));
  const read = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
  ink.runs = Array.from({ length: 10 }, (_, i) => read(`--c${i}`));
  ink.parts = PARTS.map((_, i) => read(`--p${i}`));
  Object.assign(ink, { line: read("--line"), faint: read("--faint"), bad: read("--bad"), text: read("--text") });
  probe.remove();
}
const faded = (colour, alpha) => colour.replace(/^rgb\(([^)]*)\)$/, `rgba($1, ${alpha})`);

// The mean of the past, weighted by age, without the bias of its beginning (as in Adam).
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

// The curves of a chart: for each run, each metric's points.
function curvesOf(spec, runs, view) {
  const entries = Object.entries(spec.metrics);
  const curves = [];
  runs.forEach((run) => entries.forEach(([label, name], place) => {
    const [xs, ys] = pointsOf(run, name, view.by);
    if (!xs.length || (spec.stacked && !ys.some(Boolean))) return;
    const many = runs.length > 1;
    curves.push({
      run, label, xs, ys,
      held: name.startsWith("eval/"),
      colour: spec.stacked ? ink.parts[place] : ink.runs[many ? run.colour : place % 10],
      dash: DASHES[many ? place % 3 : name.startsWith("eval/") ? 1 : 0],
    });
  }));
  return curves;
}

function makeChart(spec) {
  const legend = el("div", { class: "legend-line" });
  const plot = el("div", { class: "plot", tabindex: "0", role: "img" });
  const node = el("figure", { class: `chart${spec.wide ? " wide" : ""}` },
    el("figcaption", {}, el("h3", {}, oneLine(spec.title), unitName(spec)), legend), plot);
  const tip = el("div", { class: "tip", hidden: true });
  let u = null, curves = [], shape = "", columns = [];

  function update(runs, view) {
    curves = curvesOf(spec, runs, view);
    node.hidden = !curves.length;
    if (node.hidden) return;
    const log = view.log && !spec.stacked && logKind(curves);
    const next = JSON.stringify([log, view.smooth > 0, view.by, view.theme, curves.map((c) => [c.label, c.colour, c.run.name, c.held])]);
    columns = dataOf(spec, curves, view.smooth);
    if (next !== shape) {
      shape = next;
      u?.destroy();
      plot.replaceChildren();
      u = new uPlot(optionsOf(log, view), columns, plot);
      u.over.append(tip);
    } else u.setData(columns);
    drawLegend(runs);
  }

  function drawLegend(runs) {
    const value = (curve) => UNITS[spec.unit].text(curve.ys[curve.ys.length - 1]);
    const items = runs.length > 1 ? Object.keys(spec.metrics).filter((label) => label && curves.some((c) => c.label === label)).map((label) => {
      const place = Object.keys(spec.metrics).indexOf(label);
      return el("span", { class: "key" }, el("i", { class: `dash d${place % 3}` }), label);
    }) : [...curves].reverse().map((curve) => key(curve.label, curve.colour, value(curve))).reverse();
    legend.replaceChildren(...items, ...(spec.note ? [el("span", { class: "key faint" }, el("i", { class: "limit" }), spec.note)] : []));
    const said = curves.map((curve) => `${[runs.length > 1 ? curve.run.name : "", curve.label].filter(Boolean).join(" ")} ${value(curve)}`);
    plot.setAttribute("aria-label", `${spec.title} by ${columnsBy()}. Last: ${said.join(", ")}. Arrow keys read values.`);
  }

  const columnsBy = () => (state.by === "time" ? "time" : "step");
  const width = () => Math.max(160, plot.clientWidth);
  const height = () => (spec.wide ? 260 : 170);

  function optionsOf(log, view) {
    const unit = UNITS[spec.unit];
    const font = "11px system-ui, sans-serif";
    const grid = { stroke: ink.line, width: 1 };
    const axis = { stroke: ink.faint, font, grid, ticks: { show: false } };
    const texts = (u, splits) => splits.map((value) => (value === null ? null : (unit.tick ?? unit.text)(value)));
    return {
      width: width(), height: height(), legend: { show: false },
      scales: {
        x: { time: false, range: () => state.zoom ?? [0, state.end] },
        y: log ? { distr: log === "both" ? 4 : 3, asinh: asinhOf(curves), range: (u, min, max) => (log === "both" ? ends({}, min, max) : logEnds(min, max)) } : { range: (u, min, max) => ends(unit, min, max) },
      },
      axes: [
        { ...axis, size: 26, gap: 4, space: 56, incrs: view.by === "time" ? TIME_TICKS : STEP_TICKS, values: (u, splits) => splits.map(view.by === "time" ? duration : short) },
        { ...axis, gap: 4, space: spec.wide ? 40 : 30, size: (u, values) => 14 + Math.max(3, ...(values ?? []).map((v) => v?.length ?? 0)) * 6.2,
          ...(spec.unit === "seconds" ? { incrs: SECONDS_TICKS } : {}), values: log ? (u, splits) => splits.map((value) => (value === null ? null : unit.tick || log === "both" ? short(value) : unit.text(value))) : texts,
          ...(log === "both" ? { splits: (u, i, min, max) => bothSides(min, max, asinhOf(curves)) } : log ? { filter: powersOnly } : {}) },
      ],
      series: [{}, ...seriesOf(spec, curves, view)],
      cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: "steps" }, y: false, points: { size: 7 }, focus: { prox: -1 } },
      hooks: {
        setCursor: [(u) => drawTip(u)],
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          const from = u.posToVal(u.select.left, "x"), to = u.posToVal(u.select.left + u.select.width, "x");
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          go({ zoom: state.by === "step" ? [Math.floor(from), Math.ceil(to)] : [from, to] });
        }],
        draw: [(u) => {
          drawLimits(u);
          const text = unit.tick ?? unit.text;
          node.dataset.ends = `${text(u.scales.y.min ?? 0)} … ${text(u.scales.y.max ?? 0)}`;
        }],
      },
    };
  }

  function drawLimits(u) {
    for (const limit of spec.lines ?? []) {
      if (limit <= u.scales.y.min || limit >= u.scales.y.max) continue;
      const y = u.valToPos(limit, "y", true);
      u.ctx.save();
      u.ctx.strokeStyle = ink.bad;
      u.ctx.setLineDash([5, 4]);
      u.ctx.beginPath();
      u.ctx.moveTo(u.bbox.left, y);
      u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
      u.ctx.stroke();
      u.ctx.restore();
    }
  }

  function drawTip(u) {
    const here = plot.matches(":hover") || document.activeElement === plot;
    const i = u.cursor.idx;
    tip.hidden = !here || i === null || i === undefined || u.cursor.left < 0;
    if (tip.hidden) return;
    const x = columns[0][i];
    const rows = curves.map((curve) => {
      const at = curve.xs.indexOf(x);
      return at < 0 ? null : key([state.shown.length > 1 ? curve.run.name : "", curve.label].filter(Boolean).join(", "), curve.colour, UNITS[spec.unit].text(curve.ys[at]));
    });
    tip.replaceChildren(el("b", {}, state.by === "time" ? duration(x) : `step ${short(x)}`), ...rows.filter(Boolean));
    const right = u.cursor.left > u.over.clientWidth / 2;
    tip.style.left = right ? "auto" : `${u.cursor.left + 12}px`;
    tip.style.right = right ? `${u.over.clientWidth - u.cursor.left + 12}px` : "auto";
  }

  plot.addEventListener("dblclick", () => go({ zoom: null }));
  plot.addEventListener("blur", () => { tip.hidden = true; });
  plot.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !u) return;
    event.preventDefault();
    const xs = columns[0];
    const at = Math.max(0, Math.min(xs.length - 1, (u.cursor.idx ?? (by > 0 ? -1 : xs.length)) + by));
    u.setCursor({ left: u.valToPos(xs[at], "x"), top: 10 });
  });
  new ResizeObserver(() => u && u.width !== width() && u.setSize({ width: width(), height: height() })).observe(plot);
  return { node, update };
}

const key = (label, colour, value) => {
  const swatch = label ? el("i", {}) : null;
  if (swatch) swatch.style.background = colour;
  return el("span", { class: "key" }, swatch, label ? oneLine(label) : null, el("b", {}, value));
};
const unitName = (spec) => (UNITS[spec.unit].name ? el("small", {}, ` ${UNITS[spec.unit].name}`) : null);
const powersOnly = (u, splits) => {
  const powers = splits.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-6);
  return powers.length > 1 ? splits.map((value) => (powers.includes(value) ? value : null)) : splits;
};

// Which logarithmic axis the values allow: of positive ones, of both signs, or none.
function logKind(curves) {
  if (!curves.some((curve) => curve.ys.some(Boolean))) return false;
  return curves.every((curve) => curve.ys.every((value) => value >= 0)) ? "positive" : "both";
}

// Ticks of an axis of both signs: 0 and powers of ten from where it ceases to be linear.
function bothSides(min, max, from) {
  const first = Math.floor(Math.log10(from)), last = Math.floor(Math.log10(Math.max(-min, max)) + 1e-9);
  const stride = Math.max(1, Math.ceil((last - first + 1) / 3));
  const powers = [];
  for (let power = last; power >= first; power -= stride) powers.push(10 ** power);
  return [...powers.map((value) => -value), 0, ...powers.reverse()].filter((value) => value >= min && value <= max);
}
const asinhOf = (curves) => {
  const sizes = curves.flatMap((curve) => curve.ys).map(Math.abs).filter(Boolean).sort((a, b) => a - b);
  return sizes.length ? sizes[Math.floor(sizes.length / 4)] : 1;
};

function dataOf(spec, curves, smooth) {
  if (spec.stacked) {
    const joined = uPlot.join(curves.map((curve) => [curve.xs, curve.ys]));
    const total = joined[0].map(() => 0);
    return [joined[0], ...joined.slice(1).map((ys) => ys.map((y, i) => (total[i] += y ?? 0))).reverse()];
  }
  const zeros = state.log && logKind(curves) === "positive"; // a zero has no place on that axis
  const clean = (ys) => (zeros ? ys.map((y) => (y > 0 ? y : null)) : ys);
  return uPlot.join(curves.map((curve) => (smooth > 0 && !curve.held
    ? [curve.xs, clean(curve.ys), clean(smoothed(curve.ys, smooth))] : [curve.xs, clean(curve.ys)])));
}

function seriesOf(spec, curves, view) {
  if (spec.stacked) return [...curves].reverse().map((curve) => ({ stroke: curve.colour, fill: curve.colour, width: 0, points: { show: false } }));
  return curves.flatMap((curve) => {
    const few = curve.xs.length === 1, dots = curve.held && curve.xs.length < 100;
    const line = { stroke: curve.colour, dash: curve.dash, width: 1.8, points: { show: dots || few, size: 6, fill: curve.colour } };
    if (!(view.smooth > 0) || curve.held) return [line];
    return [{ ...line, width: 1, stroke: faded(curve.colour, RAW) }, { ...line, points: { show: few } }];
  });
}
