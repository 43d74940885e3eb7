"use strict";

// Pure functions first: numbers in, numbers or text out (tests/test_report_page.py runs them in a JavaScript engine of their own).

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function sorted(values) {
  return [...values].sort((a, b) => a - b);
}

// The mean of what is left when a quarter of the values, rounded down, is cut from each end.
function iqm(values) {
  const cut = Math.floor(values.length / 4);
  return mean(sorted(values).slice(cut, values.length - cut));
}

// Between two values in order, as NumPy's default does.
function quantile(values, level) {
  const ordered = sorted(values);
  const place = (ordered.length - 1) * level;
  const below = Math.floor(place);
  const above = Math.min(below + 1, ordered.length - 1);
  return ordered[below] + (ordered[above] - ordered[below]) * (place - below);
}

const CENTRES = { iqm, mean, median: (values) => quantile(values, 0.5) };
const BANDS = {
  range: (values) => [Math.min(...values), Math.max(...values)],
  middle: (values) => [quantile(values, 0.25), quantile(values, 0.75)],
  none: () => null,
};

// The curve's value at a step between two of its points; null where the curve has not begun or has ended.
function valueAt(curve, step) {
  if (!curve.length || step < curve[0][0] || step > curve[curve.length - 1][0]) return null;
  let low = 0;
  let high = curve.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (curve[middle][0] <= step) low = middle; else high = middle;
  }
  const [x0, y0] = curve[low];
  const [x1, y1] = curve[high];
  return x1 === x0 || step === x0 ? y0 : y0 + ((y1 - y0) * (step - x0)) / (x1 - x0);
}

// The curve over seconds instead of steps: `elapsed` are pairs of a step and the seconds until it. Empty where nobody took the time.
function overTime(curve, elapsed) {
  if (elapsed.length < 2) return [];
  return curve.map(([step, value]) => [valueAt(elapsed, step), value]).filter(([seconds]) => seconds !== null);
}

// One line out of several runs: [step, centre, low, high] at every step where one of them has a point.
function summarise(curves, centre, band, most = 300) {
  let steps = [...new Set(curves.flatMap((curve) => curve.map(([step]) => step)))].sort((a, b) => a - b);
  if (steps.length > most) {
    const [first, last] = [steps[0], steps[steps.length - 1]];
    steps = Array.from({ length: most }, (_, index) => first + ((last - first) * index) / (most - 1));
  }
  return steps.map((step) => {
    const values = curves.map((curve) => valueAt(curve, step)).filter((value) => value !== null);
    const around = BANDS[band](values);
    return [step, CENTRES[centre](values), ...(around === null ? [null, null] : around)];
  });
}

// About `count` round numbers that cover [low, high].
function ticks(low, high, count = 6) {
  if (low === high) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high + step * 1e-9; index += 1) found.push(index * step + 0); // no minus before a zero
  return found;
}

function show(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return typeof value === "string" ? value : JSON.stringify(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Number(value.toPrecision(4)).toString();
}

// Numbers by size, text by letter, and what is missing last, whichever way.
function compareBy(key, ascending) {
  return (a, b) => {
    const [x, y] = [a[key], b[key]];
    const missing = [x, y].map((value) => value === null || value === undefined || value === "");
    if (missing[0] || missing[1]) return missing[0] - missing[1];
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return ascending ? order : -order;
  };
}

// A run that somebody else published, as far as the page needs one: its training returns by step.
function asRun(curve) {
  return { curves: { evaluation: [], training: curve }, elapsed: [] };
}

// The kind of curve to draw of these groups: what is asked for, or the other where only that one has a line, or a point.
function kindOf(groups, asked) {
  const drawn = (kind) => Math.max(0, ...groups.flatMap((group) => group.runs.map((run) => Math.min(run.curves[kind].length, 2))));
  const other = asked === "training" ? "evaluation" : "training";
  return drawn(other) > drawn(asked) ? other : asked;
}

// Groups, each followed by the published runs it stands beside, where those have a curve to draw.
function withPublished(groups, kind, axis) {
  return kind !== "training" || axis !== "steps" ? groups : groups.flatMap((group) => (group.published ? [group, group.published] : [group]));
}

// Keys of all runs in the order they first appear, and whether the runs agree in them.
function sideBySide(objects) {
  const keys = [...new Set(objects.flatMap((object) => Object.keys(object)))];
  return keys.map((key) => {
    const values = objects.map((object) => object[key]);
    return { key, values, differs: new Set(values.map((value) => JSON.stringify(value))).size > 1 };
  });
}

// Told apart by the eye on light and dark ground, colour-blind or not; the dash changes when the colours begin again.
const COLOURS = ["#0077bb", "#e06000", "#009e73", "#cc79a7", "#c49000", "#8a6fd1"];
const DASHES = ["none", "8 4", "2 3", "10 3 2 3"];
const DOTS = "1 5"; // runs that somebody else published, in the colour of ours beside them
const PUBLISHED = "Dotted: training returns that others published, at the same steps and in the same protocol, with the band over their runs. "
  + "A return counts where its episode ends: with many games at once that is long after it began, and a rising curve lies lower for it.";
const FEW = 5; // lines that are shown of a task before anybody asks for more

function looks(index) {
  return { colour: COLOURS[index % COLOURS.length], dash: DASHES[Math.floor(index / COLOURS.length) % DASHES.length] };
}

if (typeof module !== "undefined") {
  module.exports = { asRun, compareBy, iqm, kindOf, looks, overTime, quantile, show, sideBySide, summarise, ticks, valueAt, withPublished };
}

// The page. Text reaches it by textContent alone: nothing a run is called is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick" || name === "onchange") made[name] = value;
    else if (value !== null) made.setAttribute(name, value);
  }
  for (const child of children) made.append(child);
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// lines: {title, colour, dash, points: [step, centre, low, high]}. Returns the step under a place of the drawing, for the reading on top.
function draw(svg, lines, { width = 960, height = 380, label = "environment steps", small = false } = {}) {
  const space = small ? { left: 70, right: 10, top: 16, bottom: 10 } : { left: 64, right: 32, top: 12, bottom: 36 };
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const points = lines.flatMap((line) => line.points);
  if (!points.length) {
    svg.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "No points to draw here."));
    return null;
  }
  const values = points.flatMap(([, centre, low, high]) => [centre, low, high]).filter((value) => value !== null);
  const [x0, x1] = [Math.min(...points.map(([step]) => step)), Math.max(...points.map(([step]) => step))];
  let [y0, y1] = [Math.min(...values), Math.max(...values)];
  if (y0 === y1) [y0, y1] = [y0 - 1, y1 + 1];
  const marks = ticks(y0, y1, small ? 2 : 6);
  const digits = Math.max(...marks.map((tick) => show(tick).length));
  space.left = Math.max(space.left, 12 + digits * (small ? 13 : 7)); // a digit of 22 or 12 pixels is as wide as that at most
  const x = (step) => space.left + ((step - x0) / (x1 - x0 || 1)) * (width - space.left - space.right);
  const y = (value) => height - space.bottom - ((value - y0) / (y1 - y0)) * (height - space.top - space.bottom);
  for (const tick of marks) {
    svg.append(shape("line", { class: "grid", x1: space.left, x2: width - space.right, y1: y(tick), y2: y(tick) }));
    svg.append(shape("text", { x: space.left - 8, y: y(tick) + 4, "text-anchor": "end" }, show(tick)));
  }
  for (const tick of small ? [] : ticks(x0, x1)) {
    svg.append(shape("text", { x: x(tick), y: height - space.bottom + 18, "text-anchor": "middle" }, show(tick)));
  }
  if (!small) svg.append(shape("text", { x: width - space.right, y: height - 4, "text-anchor": "end" }, label));
  for (const line of lines) {
    const banded = line.points.filter(([, , low]) => low !== null);
    if (banded.length > 1) {
      const there = banded.map(([step, , , high]) => `${x(step)},${y(high)}`);
      const back = banded.map(([step, , low]) => `${x(step)},${y(low)}`).reverse();
      svg.append(shape("polygon", { class: "band", points: [...there, ...back].join(" "), fill: line.colour, opacity: 0.15 }));
    }
    const path = line.points.map(([step, centre]) => `${x(step)},${y(centre)}`).join(" ");
    const drawn = { class: "line", points: path, fill: "none", stroke: line.colour, "stroke-width": small ? 3 : 2, "stroke-dasharray": line.dash };
    const made = shape("polyline", drawn);
    made.append(shape("title", {}, line.title));
    svg.append(made);
    if (line.points.length === 1) svg.append(shape("circle", { cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 3, fill: line.colour }));
  }
  return (place) => x0 + ((place * width - space.left) / (width - space.left - space.right)) * (x1 - x0);
}

// A piece of a line as it is drawn.
function swatch({ colour, dash }) {
  const made = shape("svg", { class: "swatch", viewBox: "0 0 32 10", "aria-hidden": "true" });
  made.append(shape("line", { x1: 0, x2: 32, y1: 5, y2: 5, stroke: colour, "stroke-width": 4, "stroke-dasharray": dash }));
  return made;
}

// columns: {key, title, number, long, cell}. Sorts itself when a head is clicked. A long text is broken: cut off, two configs could look
// alike, and whole it would push the numbers out of a narrow window.
function sortable(table, columns, rows, state, again) {
  const head = element("tr");
  for (const column of columns) {
    const arrow = state.key === column.key ? (state.ascending ? " ▲" : " ▼") : "";
    const button = element("button", { type: "button", onclick: () => {
      state.ascending = state.key === column.key ? !state.ascending : !column.number;
      state.key = column.key;
      again();
    } }, column.title + arrow);
    const sort = arrow ? (state.ascending ? "ascending" : "descending") : "none";
    head.append(element("th", { class: column.number ? "number" : null, "aria-sort": sort, scope: "col" }, button));
  }
  const body = element("tbody");
  for (const row of [...rows].sort(compareBy(state.key, state.ascending))) {
    const line = element("tr");
    for (const column of columns) {
      const content = column.cell ? column.cell(row) : show(row[column.key]);
      line.append(element("td", { class: column.number ? "number" : column.long ? "long" : null }, content));
    }
    body.append(line);
  }
  table.replaceChildren(element("thead", {}, head), body);
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const runs = data.runs;
  const groups = data.groups;
  const tasks = [...new Set(groups.map((group) => group.task))];
  const hidden = new Set();
  const chosen = new Set();
  const order = { groups: { key: "final", ascending: false }, runs: { key: "name", ascending: true } };
  groups.forEach((group, index) => {
    group.runs = runs.filter((run) => run.group === index && run.counted); // one for each seed
    const scores = (policy) => group.runs.map((run) => run[policy]).filter((score) => score !== null);
    for (const policy of ["best", "final"]) {
      const found = scores(policy);
      group[policy] = found.length ? iqm(found) : null;
      group[`${policy}_spread`] = found.length ? BANDS.range(found) : null;
      group[`${policy}_least`] = found.length ? Math.min(...found) : null;
      group[`${policy}_interval`] = group.intervals ? group.intervals[policy].slice(1) : null;
      group[`${policy}_low`] = group.intervals ? group.intervals[policy][1] : null;
    }
    group.seeds = group.runs.length;
    if (group.published) Object.assign(group.published, { runs: group.published.curves.map(asRun), steps: group.steps });
  });
  const ofTask = (task) => groups.filter((group) => group.task === task).sort(compareBy("final", false));
  for (const task of tasks) {
    ofTask(task).forEach((group, index) => {
      Object.assign(group, looks(index));
      if (group.published) Object.assign(group.published, { colour: group.colour, dash: DOTS });
    });
  }
  at("summary").textContent = data.summary;
  at("task").append(...tasks.map((task) => element("option", { value: task, title: task }, task)));

  // The number of steps that most configs of a task were given.
  function budgetsOf(task) {
    const count = new Map();
    for (const group of ofTask(task)) count.set(group.steps, (count.get(group.steps) || 0) + 1);
    const budgets = [...count.keys()].sort((a, b) => a - b);
    return { budgets, usual: budgets.reduce((best, steps) => (count.get(steps) > count.get(best) ? steps : best), budgets[0]) };
  }

  // Those of the chosen task whose runs were given the chosen number of steps: curves of other budgets would share an axis with them.
  function candidates() {
    const budget = at("budget").value;
    return ofTask(at("task").value).filter((group) => budget === "" || String(group.steps) === budget);
  }

  // What has a line: those, and the published runs beside them.
  function drawable() {
    return withPublished(candidates(), at("curve").value, at("axis").value);
  }

  function showBest() {
    candidates().forEach((group, index) => {
      for (const each of group.published ? [group, group.published] : [group]) if (index < FEW) hidden.delete(each); else hidden.add(each);
    });
  }

  function chooseTask() {
    const { budgets, usual } = budgetsOf(at("task").value);
    const choices = budgets.map((steps) => element("option", { value: String(steps) }, steps === null ? "unknown" : `${show(steps)} steps`));
    at("budget").replaceChildren(...choices, ...(budgets.length > 1 ? [element("option", { value: "" }, "all of them")] : []));
    at("budget").value = String(usual);
    at("budget").disabled = budgets.length < 2;
    at("curve").value = kindOf(candidates(), at("curve").value);
    showBest();
    drawLegend();
    drawCurves();
    drawMultiples();
  }

  function curveOf(run, kind = at("curve").value) {
    const curve = run.curves[kind];
    return at("axis").value === "time" ? overTime(curve, run.elapsed) : curve;
  }

  function lineOf(group, band, kind) {
    const curves = group.runs.map((run) => curveOf(run, kind)).filter((curve) => curve.length);
    return { title: group.title, colour: group.colour, dash: group.dash, points: summarise(curves, at("centre").value, band) };
  }

  function drawCurves() {
    const lines = drawable().filter((group) => !hidden.has(group)).map((group) => lineOf(group, at("band").value));
    at("published").textContent = drawable().some((group) => !candidates().includes(group)) ? PUBLISHED : "";
    const inTime = at("axis").value === "time";
    const stepAt = draw(at("curves"), lines, { label: inTime ? "seconds" : "environment steps" });
    at("tip").hidden = true;
    at("curves").onmousemove = (event) => {
      if (stepAt === null) return;
      const box = at("curves").getBoundingClientRect();
      const place = (event.clientX - box.left) / box.width;
      const step = stepAt(place);
      const read = lines.map((line) => ({ title: line.title, value: valueAt(line.points, step) })).filter((line) => line.value !== null);
      read.sort((a, b) => b.value - a.value);
      const where = inTime ? `${show(Math.round(step))} s` : `step ${show(Math.round(step))}`;
      at("tip").textContent = [where, ...read.map((line) => `${show(line.value)}  ${line.title}`)].join("\n");
      at("tip").style.left = place > 0.6 ? "" : `${place * 100 + 2}%`;
      at("tip").style.right = place > 0.6 ? `${(1 - place) * 100 + 2}%` : "";
      at("tip").hidden = read.length === 0;
    };
    at("curves").onmouseleave = () => { at("tip").hidden = true; };
  }

  function drawLegend() {
    at("legend").replaceChildren(...drawable().map((group) => {
      const toggle = () => { if (!hidden.delete(group)) hidden.add(group); drawLegend(); drawCurves(); };
      return element("button", { type: "button", "aria-pressed": String(!hidden.has(group)), onclick: toggle }, swatch(group), group.title);
    }));
  }

  // Every task with its best few, small; a click shows it large.
  function drawMultiples() {
    at("overview").hidden = tasks.length < 2;
    at("multiples").replaceChildren(...tasks.map((task) => {
      const picture = shape("svg", { role: "img", "aria-label": `Learning curves of ${task}` });
      const choose = () => { at("task").value = task; chooseTask(); at("task").scrollIntoView({ block: "nearest" }); };
      const current = String(task === at("task").value);
      const { usual } = budgetsOf(task);
      const best = ofTask(task).filter((group) => group.steps === usual).slice(0, FEW);
      const lines = best.map((group) => lineOf(group, "none", kindOf(best, at("curve").value)));
      draw(picture, lines, { width: 480, height: 240, small: true });
      return element("button", { type: "button", title: task, "aria-pressed": current, onclick: choose }, element("span", {}, task), picture);
    }));
  }

  function drawGroups() {
    const between = (pair) => (pair ? `${show(pair[0])} to ${show(pair[1])}` : "");
    const known = groups.some((group) => group.intervals);
    const ofPolicy = (policy) => [
      { key: policy, title: `${policy}: IQM`, number: true },
      ...(known ? [{ key: `${policy}_low`, title: "95% interval", number: true, cell: (group) => between(group[`${policy}_interval`]) }] : []),
      { key: `${policy}_least`, title: "all seeds", number: true, cell: (group) => between(group[`${policy}_spread`]) },
    ];
    sortable(at("groups"), [
      { key: "title", title: "config", long: true },
      { key: "task", title: "task", long: true },
      { key: "seeds", title: "seeds", number: true },
      { key: "steps", title: "steps", number: true },
      ...ofPolicy("best"),
      ...ofPolicy("final"),
      { key: "judged", title: "judged by" },
    ], groups, order.groups, drawGroups);
  }

  function drawRuns() {
    const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = runs.filter((run) => words.every((word) => `${run.name} ${run.algorithm} ${run.task}`.toLowerCase().includes(word)));
    const choose = (run) => {
      const box = element("input", { type: "checkbox", "aria-label": `choose ${run.name}`, onchange: () => {
        if (box.checked) chosen.add(run); else chosen.delete(run);
        drawComparison();
      } });
      box.checked = chosen.has(run);
      return box;
    };
    sortable(at("runs"), [
      { key: "chosen", title: "", cell: choose },
      { key: "name", title: "run", long: true, cell: (run) => element("button", { type: "button", onclick: () => drawDetails(run) }, run.name + (run.videos.length ? " ▶" : "")) },
      { key: "algorithm", title: "algorithm" },
      { key: "task", title: "task", long: true },
      { key: "seed", title: "seed", number: true, cell: (run) => (run.counted ? show(run.seed) : `${show(run.seed)} (again)`) },
      { key: "steps", title: "steps", number: true },
      { key: "best", title: "best", number: true },
      { key: "final", title: "final", number: true },
      { key: "seconds", title: "seconds", number: true },
    ], shown, order.runs, drawRuns);
  }

  function drawComparison() {
    const picked = [...chosen];
    at("chosen").textContent = picked.length ? `${picked.length} chosen` : "Choose runs to see them side by side.";
    at("comparison").hidden = picked.length === 0;
    draw(at("compared"), picked.map((run, index) => ({
      title: run.name,
      ...looks(index),
      points: curveOf(run, kindOf([{ runs: picked }], at("curve").value)).map(([step, value]) => [step, value, null, null]),
    })), { label: at("axis").value === "time" ? "seconds" : "environment steps" });
    const facts = picked.map((run) => ({ best: run.best, final: run.final, seconds: run.seconds, ...run.config, ...run.about }));
    const head = element("tr", {}, element("th", { scope: "col" }, ""));
    picked.forEach((run, index) => {
      head.append(element("th", { scope: "col" }, swatch(looks(index)), ` ${run.name}`));
    });
    const body = element("tbody");
    for (const { key, values, differs } of sideBySide(facts)) {
      if (at("differences").checked && !differs) continue;
      const line = element("tr", { class: differs ? "differs" : null }, element("th", { scope: "row" }, key));
      for (const value of values) line.append(element("td", {}, show(value)));
      body.append(line);
    }
    at("compare").replaceChildren(element("thead", {}, head), body);
  }

  function drawDetails(run) {
    at("details").hidden = false;
    at("details-name").textContent = run.name;
    at("details-videos").replaceChildren(
      ...run.videos.map((address) => element("video", { src: address, controls: "", preload: "metadata", title: decodeURI(address) }))
    );
    for (const [id, facts] of [["details-config", run.config], ["details-about", run.about]]) {
      at(id).replaceChildren(...Object.entries(facts).flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, show(value))]));
    }
    at("details").scrollIntoView({ block: "nearest" });
  }

  const redraw = () => { drawLegend(); drawCurves(); };
  at("task").onchange = chooseTask;
  at("budget").onchange = () => { showBest(); redraw(); };
  for (const id of ["centre", "band"]) at(id).onchange = drawCurves;
  for (const id of ["curve", "axis"]) at(id).onchange = () => { redraw(); drawMultiples(); drawComparison(); };
  at("few").onclick = () => { showBest(); redraw(); };
  at("all").onclick = () => { drawable().forEach((group) => hidden.delete(group)); redraw(); };
  at("none").onclick = () => { drawable().forEach((group) => hidden.add(group)); redraw(); };
  at("filter").oninput = drawRuns;
  at("differences").onchange = drawComparison;
  at("clear").onclick = () => { chosen.clear(); drawRuns(); drawComparison(); };
  chooseTask();
  drawGroups();
  drawRuns();
  drawComparison();
}

if (typeof document !== "undefined") start();
