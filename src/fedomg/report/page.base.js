const data = JSON.parse(document.getElementById("data").textContent);

const heldOut = data.scopes.some((scope) => scope.target); // then the clients are the source domains
const VIEWS = {
  target: "Unseen domain",
  global: heldOut ? "Source domains" : "Global model",
  worst_group: heldOut ? "Worst source domain" : "Worst group",
  personalised: "Personalised",
  adapted: "Adapted",
};
const HEADLINE_VIEWS = ["target", "global", "worst_group"];
const RULES = {
  selected: "Selected round",
  last: "Last round",
  mean_last_10: "Mean of last 10",
  best: "Best over rounds (oracle)",
};
const COLOURS = 8;
const DASHES = ["", "6 4", "2 3", "9 3 2 3"];
const BANDS_AT_MOST = 6; // more bands hide each other
const LINES_AT_MOST = 8; // clients drawn as lines; more become a heat map
const HEAT_STEPS = 32;

const state = {
  hidden: new Set(),
  text: "",
  dataset: "all",
  target: "all",
  seed: "all",
  rule: "selected",
  rows: "methods",
  sort: null,
  view: data.views[0],
  metric: "accuracy",
  eachSeed: false,
  opened: new Set(),
  clients: "lines",
  run: Math.max(0, data.runs.findIndex((run) => run.clients.omg_weight)),
};

// ------------------------------------------------------------------------------------------------------------- elements

const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function segments(label, options, current, choose) {
  const buttons = Object.entries(options).map(([key, text]) =>
    el("button", { type: "button", "aria-pressed": String(key === current), "data-value": key, onclick: () => choose(key) }, text));
  return el("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

function dropdown(label, options, current, choose, name) {
  const items = options.map(([value, text]) => el("option", { value, selected: String(value) === String(current) }, text));
  return el("label", {}, label, el("select", { name, onchange: (event) => choose(event.target.value) }, items));
}

// -------------------------------------------------------------------------------------------------------------- numbers

const MISSING = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const fixed = (value, digits) => (isNumber(value) ? value.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−") : MISSING);
const percent = (value) => (isNumber(value) ? fixed(100 * value, 1) + "%" : MISSING);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const range = (n) => Array.from({ length: n }, (_, i) => i);

function duration(seconds) {
  if (!isNumber(seconds)) return MISSING;
  if (seconds < 120) return `${fixed(seconds, 1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function size(bytes) {
  if (!isNumber(bytes)) return MISSING;
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  return `${fixed(bytes / 1000 ** power, power ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function niceStep(span, count) {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function ticks(low, high, count, wholeNumbers) {
  if (!(high > low)) return [low];
  let step = niceStep(high - low, count);
  if (wholeNumbers) step = Math.max(1, Math.ceil(step));
  const first = Math.ceil(low / step - 1e-9);
  return range(Math.floor(high / step + 1e-9) - first + 1).map((i) => (first + i) * step);
}

const pen = document.createElement("canvas").getContext("2d");
function textWidth(text, pixels = 12) {
  pen.font = `${pixels}px system-ui, sans-serif`;
  return pen.measureText(text).width * 1.06;
}
function shorten(text, width) {
  if (textWidth(text) <= width) return text;
  let kept = text;
  while (kept.length > 1 && textWidth(kept + "…") > width) kept = kept.slice(0, -1);
  return kept + "…";
}

// --------------------------------------------------------------------------------------------------------- what is shown

// As in the plots: places in their palette and in their dashes.
const methodStyles = new Map(Object.entries(data.looks).map(([method, [colour, dash]]) => [method, { color: `var(--c${colour})`, dash: DASHES[dash] }]));

/** A method's name that wraps before "+omg" or its settings rather than inside a word. */
const breakable = (name) => name.split(/(?=[+(])/).flatMap((part) => [el("wbr"), part]);

const swatch = ({ color, dash }) =>
  svg("svg", { class: "swatch", viewBox: "0 0 20 8", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 19, y1: 4, y2: 4, style: `stroke:${color}`, "stroke-width": 3.5, "stroke-dasharray": dash, "stroke-linecap": dash ? null : "round" }));

const manyDatasets = new Set(data.scopes.map((scope) => scope.dataset).filter((name) => name !== null)).size > 1;
function scopeName(index) {
  const { dataset, target } = data.scopes[index];
  return [manyDatasets && dataset, target || "no unseen domain"].filter(Boolean).join(": ");
}
const NO_TARGET = "no unseen domain";
const datasets = [...new Set(data.scopes.map((scope) => scope.dataset ?? "unknown"))];
const targets = [...new Set(data.scopes.map((scope) => scope.target ?? NO_TARGET))];
/** Choices are positions in these lists: no name can be mistaken for "all". */
const chosen = (choice, list, value) => choice === "all" || list[Number(choice)] === value;
const scopeShown = ({ dataset, target }) => chosen(state.dataset, datasets, dataset ?? "unknown") && chosen(state.target, targets, target ?? NO_TARGET);
const shownScopes = () => range(data.scopes.length).filter((index) => scopeShown(data.scopes[index]));
function hasText({ method, scope }) {
  const { dataset, target } = data.scopes[scope];
  const text = `${method} ${dataset ?? ""} ${target ?? ""}`.toLowerCase();
  return state.text.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
const isShown = (item) => !state.hidden.has(item.method) && scopeShown(data.scopes[item.scope]) && hasText(item);
const shownRuns = () => data.runs.filter((run) => isShown(run) && (state.seed === "all" || String(run.seed) === state.seed));
const runName = (run) =>
  [run.method, data.scopes.length > 1 && scopeName(run.scope), run.seed === null ? run.folder : `seed ${run.seed}`].filter(Boolean).join(" · ");

function runCurve(rounds, values) {
  return { round: rounds, mean: values, low: values, high: values, n: rounds.map(() => 1) };
}

/** A single run in the shape of a group of runs. */
function asGroup(run) {
  const server = Object.fromEntries(Object.entries(run.server).map(([key, values]) => [key, runCurve(run.record_rounds, values)]));
  const curves = Object.fromEntries(Object.entries(run.curves).map(([view, curve]) =>
    [view, { accuracy: runCurve(curve.round, curve.accuracy), loss: runCurve(curve.round, curve.loss) }]));
  return { method: run.method, scope: run.scope, n: 1, curves, server, domains: run.domains };
}
const shownGroups = () => (state.seed === "all" ? data.groups.filter(isShown) : shownRuns().map(asGroup));
