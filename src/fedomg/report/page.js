"use strict";
// Draws the page from the JSON beside it. Text from runs enters the document only as text nodes and attribute values, never as markup.
(() => {
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
    scope: "all",
    seed: "all",
    rule: "selected",
    rows: "methods",
    sort: null,
    view: data.views[0],
    metric: "accuracy",
    eachSeed: false,
    opened: new Set(),
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

  const methodStyles = new Map();
  (() => {
    // With few methods each has its colour; with many, a method and what is built on it ("x" and "x+omg") share one and differ in dashes.
    const share = data.methods.length > COLOURS;
    const families = [...new Set(data.methods.map((method) => (share ? method.split(/\+| \(/)[0] : method)))];
    const members = new Map();
    for (const method of data.methods) {
      const family = share ? method.split(/\+| \(/)[0] : method;
      const rank = members.get(family) || 0;
      members.set(family, rank + 1);
      const index = families.indexOf(family);
      const plainFirst = share && rank < 2 ? 1 - rank : rank; // the plain method dashed, its extension solid
      const dash = share ? plainFirst + 2 * Math.floor(index / COLOURS) : 0;
      methodStyles.set(method, { color: `var(--c${index % COLOURS})`, dash: DASHES[dash % DASHES.length] });
    }
  })();

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
  const shownScopes = () => (state.scope === "all" ? range(data.scopes.length) : [Number(state.scope)]);
  const isShown = (item) => !state.hidden.has(item.method) && (state.scope === "all" || item.scope === Number(state.scope));
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

  // -------------------------------------------------------------------------------------------------------------- tooltip

  const tip = byId("tip");
  function showTip(x, y, ...content) {
    tip.replaceChildren(...content);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 16 + width < innerWidth ? x + 16 : x - 16 - width;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(y - height / 2, innerHeight - height - 8))}px`;
  }
  const hideTip = () => { tip.hidden = true; };

  // ---------------------------------------------------------------------------------------------------------------- charts

  function panel(host, title) {
    const node = el("div", { class: "panel" }, title && el("h4", {}, title));
    host.append(node);
    return node;
  }

  function emptyPanel(host, text) {
    host.append(el("p", { class: "empty" }, text));
  }

  function canvas(host, height, label) {
    const width = Math.max(240, host.clientWidth);
    const node = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label, tabindex: 0 });
    host.append(node);
    return { node, width };
  }

  /** Shares of the vertical space so that labels keep `gap` pixels between them, as near to their points as that allows. */
  function spreadLabels(labels, top, bottom, gap) {
    labels.sort((a, b) => a.y - b.y);
    labels.forEach((label, i) => { label.at = Math.max(label.y, i ? labels[i - 1].at + gap : top); });
    for (let i = labels.length - 1, limit = bottom; i >= 0; i--, limit -= gap) labels[i].at = Math.min(labels[i].at, limit);
    for (let i = labels.length - 2; i >= 0; i--) labels[i].at = Math.min(labels[i].at, labels[i + 1].at - gap);
    return labels;
  }

  function pathOf(points, x, y) {
    let path = "", open = false;
    for (const point of points) {
      if (isNumber(point.y)) path += `${open ? "L" : "M"}${x(point.x).toFixed(1)},${y(point.y).toFixed(1)}`;
      open = isNumber(point.y);
    }
    return path;
  }

  function bandOf(points, x, y) {
    let path = "", run = [];
    const close = () => {
      if (run.length > 1) {
        const upper = run.map((point) => `${x(point.x).toFixed(1)},${y(point.high).toFixed(1)}`);
        const lower = run.map((point) => `${x(point.x).toFixed(1)},${y(point.low).toFixed(1)}`).reverse();
        path += `M${[...upper, ...lower].join("L")}Z`;
      }
      run = [];
    };
    for (const point of points) isNumber(point.low) && isNumber(point.high) ? run.push(point) : close();
    close();
    return path;
  }

  const curvePoints = (curve) =>
    curve.round.map((round, i) => ({ x: round, y: curve.mean[i], low: curve.low[i], high: curve.high[i], n: curve.n[i] }));

  /** The domain of the y axis: what is drawn, a little air, and the bounds that must be inside or must not be crossed. */
  function yDomain(series, constants, { include = [], floor = -Infinity, ceiling = Infinity }) {
    const values = series.flatMap((line) => line.points.flatMap((point) => [point.y, point.low, point.high])).filter(isNumber)
      .concat(constants.map((constant) => constant.y), include);
    const low = Math.min(...values), high = Math.max(...values);
    const air = 0.06 * (high - low) || Math.abs(high) * 0.1 || 0.1;
    const exact = new Set(include);
    return [exact.has(low) ? low : Math.max(floor, low - air), exact.has(high) ? high : Math.min(ceiling, high + air)];
  }

  /**
   * Lines over rounds. A series is {name, color, dash, thin, faint, label, points: [{x, y, low, high, n}]}; `label` is the text at its end.
   */
  function lineChart(host, { series, format, label, height = 300, domain = {}, constants = [], chosen = null, zero = false }) {
    const drawn = series.filter((line) => line.points.some((point) => isNumber(point.y)));
    if (!drawn.length) return emptyPanel(host, "No values recorded.");
    const width = Math.max(240, host.clientWidth);
    const labelled = drawn.filter((line) => line.label);
    const widest = Math.max(0, ...labelled.map((line) => textWidth(line.label)));
    const margin = { top: 12, bottom: 40, left: 48, right: labelled.length ? Math.min(widest + 24, width * 0.3) : 14 };
    const { node } = canvas(host, height, label);
    const rounds = [...new Set(drawn.flatMap((line) => line.points.map((point) => point.x)))].sort((a, b) => a - b);
    const [x0, x1] = [rounds[0], rounds[rounds.length - 1]];
    const [y0, y1] = yDomain(drawn, constants, domain);
    const plotRight = width - margin.right, plotBottom = height - margin.bottom;
    const x = (value) => (x1 > x0 ? margin.left + ((value - x0) / (x1 - x0)) * (plotRight - margin.left) : (margin.left + plotRight) / 2);
    const y = (value) => plotBottom - ((value - y0) / (y1 - y0)) * (plotBottom - margin.top);

    for (const value of ticks(y0, y1, height / 60)) {
      node.append(
        svg("line", { class: zero && value === 0 ? "zero" : "axis", x1: margin.left, x2: plotRight, y1: y(value), y2: y(value) }),
        svg("text", { x: margin.left - 9, y: y(value) + 4, "text-anchor": "end" }, format.axis(value)));
    }
    for (const value of ticks(x0, x1, (plotRight - margin.left) / 70, true)) {
      node.append(svg("text", { x: x(value), y: plotBottom + 18, "text-anchor": "middle" }, String(value)));
    }
    node.append(svg("text", { x: (margin.left + plotRight) / 2, y: height - 5, "text-anchor": "middle" }, "round"));
    if (chosen !== null && chosen >= x0 && chosen <= x1) {
      node.append(svg("line", { class: "chosen", x1: x(chosen), x2: x(chosen), y1: margin.top, y2: plotBottom }));
    }
    for (const constant of constants) {
      node.append(
        svg("line", { class: "constant", x1: margin.left, x2: plotRight, y1: y(constant.y), y2: y(constant.y) }),
        svg("text", { x: plotRight - 4, y: y(constant.y) - 5, "text-anchor": "end" }, shorten(constant.name, plotRight - margin.left - 20)));
    }
    for (const line of drawn) {
      const band = drawn.filter((other) => !other.faint).length <= BANDS_AT_MOST && !line.faint && bandOf(line.points.filter((point) => point.n > 1), x, y);
      if (band) node.append(svg("path", { class: "band", d: band, style: `fill:${line.color}` }));
    }
    for (const line of drawn) {
      const kind = line.faint ? "line faint" : line.thin ? "line thin" : "line";
      node.append(svg("path", { class: kind, d: pathOf(line.points, x, y), style: `stroke:${line.color}`, "stroke-dasharray": line.dash }));
      line.points.forEach((point, i) => {
        const alone = !isNumber(line.points[i - 1]?.y) && !isNumber(line.points[i + 1]?.y);
        if (isNumber(point.y) && alone) node.append(svg("circle", { cx: x(point.x), cy: y(point.y), r: 3.5, style: `fill:${line.color}` }));
      });
    }
    const ends = labelled.map((line) => {
      const last = line.points.filter((point) => isNumber(point.y)).pop();
      return { line, x: x(last.x), y: y(last.y) };
    });
    for (const end of spreadLabels(ends, margin.top, plotBottom, 15)) {
      const at = plotRight + 18;
      node.append(
        svg("path", { class: "leader", d: `M${end.x + 5},${end.y}L${at - 4},${end.at}` }),
        svg("circle", { cx: end.x, cy: end.y, r: 3.5, style: `fill:${end.line.color}` }),
        svg("text", { class: "strong", x: at, y: end.at + 4 }, shorten(end.line.label, margin.right - 20)));
    }
    roundCursor(node, { rounds, x, top: margin.top, bottom: plotBottom, left: margin.left, right: plotRight, series: drawn.filter((line) => !line.faint), format });
  }

  /** The line under the pointer (or moved by the arrow keys) with the values of all series in its round. */
  function roundCursor(node, { rounds, x, top, bottom, left, right, series, format }) {
    const cursor = svg("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
    const area = svg("rect", { class: "catch", x: left, y: top, width: Math.max(0, right - left), height: bottom - top });
    node.append(cursor, area);
    let index = rounds.length - 1;
    const show = (clientX, clientY) => {
      const round = rounds[index];
      cursor.setAttribute("x1", x(round));
      cursor.setAttribute("x2", x(round));
      cursor.setAttribute("visibility", "visible");
      const found = series.map((line) => ({ line, point: line.points.find((point) => point.x === round) })).filter((entry) => entry.point);
      found.sort((a, b) => (b.point.y ?? -Infinity) - (a.point.y ?? -Infinity));
      const rows = found.map(({ line, point }) => el("tr", {},
        el("td", {}, swatch(line)), el("td", {}, line.name), el("td", {}, format.value(point.y)),
        el("td", {}, point.n > 1 ? `${format.value(point.low)} to ${format.value(point.high)}, n = ${point.n}` : "")));
      showTip(clientX, clientY, el("b", {}, `Round ${round}`), el("table", {}, rows));
    };
    const hide = () => {
      cursor.setAttribute("visibility", "hidden");
      hideTip();
    };
    const toScreen = (value) => node.getBoundingClientRect().left + (value * node.getBoundingClientRect().width) / node.viewBox.baseVal.width;
    const onPointer = (event) => {
      const distances = rounds.map((round) => Math.abs(toScreen(x(round)) - event.clientX));
      index = distances.indexOf(Math.min(...distances));
      show(event.clientX, event.clientY);
    };
    area.addEventListener("pointermove", onPointer);
    area.addEventListener("pointerdown", onPointer);
    area.addEventListener("pointerleave", hide);
    node.addEventListener("blur", hide);
    node.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      index = Math.max(0, Math.min(rounds.length - 1, index + step));
      show(toScreen(x(rounds[index])), node.getBoundingClientRect().top + 60);
    });
  }

  const mix = (share, from, to) => `color-mix(in oklab, var(--${to}) ${(100 * share).toFixed(1)}%, var(--${from}))`;
  const SEQUENTIAL = { at: (share) => mix(share, "low", "high"), gradient: "linear-gradient(to right in oklab, var(--low), var(--high))" };
  const DIVERGING = {
    at: (share) => (share < 0.5 ? mix(1 - 2 * share, "neutral", "against") : mix(2 * share - 1, "neutral", "along")),
    gradient: "linear-gradient(to right in oklab, var(--against), var(--neutral), var(--along))",
  };

  /**
   * Values by row and round, or by row and row where `columns` names the second. All cells of one colour are one path, so that a
   * hundred clients over hundreds of rounds stay quick.
   */
  function heatMap(host, { names, rounds, columns = null, matrix, low, high, colours, format, label, what, chosen }) {
    const empty = columns ? "empty: itself, or never in one cohort" : "empty: not in the cohort";
    host.append(el("div", { class: "scale" }, format.value(low), el("i", { style: `background:${colours.gradient}` }), format.value(high), el("span", {}, empty)));
    const width = Math.max(240, host.clientWidth);
    const cellHeight = Math.max(5, Math.min(22, Math.floor(520 / names.length)));
    const margin = { top: 14, bottom: 40, left: Math.min(Math.max(...names.map((name) => textWidth(name))) + 12, width * 0.28), right: 6 };
    const height = margin.top + margin.bottom + cellHeight * names.length;
    const { node } = canvas(host, height, label);
    const plotWidth = width - margin.left - margin.right, plotBottom = height - margin.bottom;
    const left = (column) => margin.left + (column * plotWidth) / rounds.length;
    const gap = cellHeight > 8 && plotWidth / rounds.length > 8 ? 1 : 0;

    const paths = new Map();
    matrix.forEach((row, r) => row.forEach((value, c) => {
      if (!isNumber(value)) return;
      const share = high > low ? Math.max(0, Math.min(1, (value - low) / (high - low))) : 0.5;
      const step = Math.min(HEAT_STEPS - 1, Math.floor(share * HEAT_STEPS));
      const cell = `M${left(c).toFixed(2)},${margin.top + r * cellHeight}H${(left(c + 1) - gap).toFixed(2)}V${margin.top + (r + 1) * cellHeight - gap}H${left(c).toFixed(2)}Z`;
      paths.set(step, (paths.get(step) || "") + cell);
    }));
    for (const [step, path] of paths) node.append(svg("path", { class: "heat", d: path, style: `fill:${colours.at((step + 0.5) / HEAT_STEPS)}` }));
    node.append(svg("rect", { class: "axis", x: margin.left - 0.5, y: margin.top - 0.5, width: plotWidth + 1, height: plotBottom - margin.top + 1 }));

    const every = Math.ceil(14 / cellHeight);
    names.forEach((name, r) => {
      if (r % every) return;
      node.append(svg("text", { x: margin.left - 7, y: margin.top + (r + 0.5) * cellHeight + 4, "text-anchor": "end" }, shorten(name, margin.left - 10)));
    });
    const wanted = new Set(columns ? [] : ticks(rounds[0], rounds[rounds.length - 1], plotWidth / 70, true));
    (columns || []).forEach((name, c) => {
      const room = plotWidth / columns.length - 6;
      if (room > 30) node.append(svg("text", { x: (left(c) + left(c + 1)) / 2, y: plotBottom + 17, "text-anchor": "middle" }, shorten(name, room)));
    });
    rounds.forEach((round, c) => {
      if (wanted.has(round)) node.append(svg("text", { x: (left(c) + left(c + 1)) / 2, y: plotBottom + 17, "text-anchor": "middle" }, String(round)));
      if (round === chosen) node.append(svg("path", { d: `M${(left(c) + left(c + 1)) / 2},${margin.top - 2}l-4,-7h8Z`, style: "fill:var(--muted)" }));
    });
    if (!columns) node.append(svg("text", { x: margin.left + plotWidth / 2, y: height - 5, "text-anchor": "middle" }, "round"));
    const title = (r, c) => columns ? [`${names[r]} and ${columns[c]}`, ""] : [names[r], `Round ${rounds[c]}: `];
    cellCursor(node, { names, rounds, matrix, left, top: margin.top, cellHeight, format, what, title });
  }

  function cellCursor(node, { names, rounds, matrix, left, top, cellHeight, format, what, title }) {
    const frame = svg("rect", { class: "cell-cursor", height: cellHeight, visibility: "hidden" });
    const area = svg("rect", { class: "catch", x: left(0), y: top, width: left(rounds.length) - left(0), height: cellHeight * names.length });
    node.append(frame, area);
    let cell = [0, 0];
    const show = (clientX, clientY) => {
      const [r, c] = cell;
      const place = { x: left(c), y: top + r * cellHeight, width: left(c + 1) - left(c), visibility: "visible" };
      for (const [name, value] of Object.entries(place)) frame.setAttribute(name, value);
      const value = isNumber(matrix[r][c]) ? `${what} ${format.value(matrix[r][c])}` : "not in the cohort";
      const [heading, before] = title(r, c);
      showTip(clientX, clientY, el("b", {}, heading), before + value);
    };
    const hide = () => {
      frame.setAttribute("visibility", "hidden");
      hideTip();
    };
    const clamp = (value, n) => Math.max(0, Math.min(n - 1, value));
    const onPointer = (event) => {
      const box = node.getBoundingClientRect();
      const scale = node.viewBox.baseVal.width / box.width;
      const column = (((event.clientX - box.left) * scale - left(0)) / (left(rounds.length) - left(0))) * rounds.length;
      cell = [clamp(Math.floor(((event.clientY - box.top) * scale - top) / cellHeight), names.length), clamp(Math.floor(column), rounds.length)];
      show(event.clientX, event.clientY);
    };
    area.addEventListener("pointermove", onPointer);
    area.addEventListener("pointerdown", onPointer);
    area.addEventListener("pointerleave", hide);
    node.addEventListener("blur", hide);
    node.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      cell = [clamp(cell[0] + move[0], names.length), clamp(cell[1] + move[1], rounds.length)];
      const box = node.getBoundingClientRect();
      show(box.left + left(cell[1]), box.top + top + cell[0] * cellHeight);
    });
  }

  /** One block of bars for each domain; a bar is {name, color, mean, std, n}. */
  function barChart(host, { blocks, label }) {
    const width = Math.max(240, host.clientWidth);
    const bar = 15, between = 16;
    const left = Math.min(Math.max(...blocks.map((block) => textWidth(block.name, 13))) + 16, width * 0.34);
    const right = 52, top = 26, bottom = 4;
    const bars = blocks.reduce((n, block) => n + block.bars.length, 0);
    const height = top + bottom + bars * bar + (blocks.length - 1) * between;
    const scroller = el("div", { class: "tall" });
    host.append(scroller);
    const { node } = canvas(scroller, height, label);
    const highest = Math.max(...blocks.flatMap((block) => block.bars.map((item) => item.mean + (item.std || 0))), 0.01);
    const reach = Math.min(1, highest * 1.02);
    const x = (value) => left + (Math.min(value, reach) / reach) * (width - left - right);
    for (const value of ticks(0, reach, (width - left - right) / 80)) {
      node.append(
        svg("line", { class: "axis", x1: x(value), x2: x(value), y1: top - 4, y2: height - bottom }),
        svg("text", { x: x(value), y: 14, "text-anchor": "middle" }, `${Math.round(100 * value)}%`));
    }
    let y = top;
    for (const block of blocks) {
      const middle = y + (block.bars.length * bar) / 2;
      node.append(svg("text", { class: "strong", x: left - 10, y: middle + (block.unseen ? -2 : 4), "text-anchor": "end" }, shorten(block.name, left - 14)));
      if (block.unseen) node.append(svg("text", { x: left - 10, y: middle + 12, "text-anchor": "end" }, "unseen"));
      for (const item of block.bars) {
        const centre = y + bar / 2;
        const spreadText = isNumber(item.std) ? ` ± ${fixed(100 * item.std, 1)}, n = ${item.n}` : "";
        const row = svg("g", {},
          svg("rect", { class: "catch", x: left, y, width: width - left, height: bar }),
          svg("rect", { x: left, y: y + 1, width: Math.max(0, x(item.mean) - left), height: bar - 3, rx: 1.5, style: `fill:${item.color}`, opacity: item.dash ? 0.5 : 1 }),
          isNumber(item.std) && item.std > 0 && svg("path", { class: "whisker", fill: "none", d: `M${x(Math.max(0, item.mean - item.std))},${centre}H${x(item.mean + item.std)}` }),
          svg("text", { x: x(item.mean + (item.std || 0)) + 6, y: centre + 3 }, fixed(100 * item.mean, 1)));
        row.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, el("b", {}, block.name), `${item.name}: ${percent(item.mean)}${spreadText}`));
        row.addEventListener("pointerleave", hideTip);
        node.append(row);
        y += bar;
      }
      y += between;
    }
  }

  // -------------------------------------------------------------------------------------------------------------- headline

  function drawFacts() {
    const unique = (key) => [...new Set(data.scopes.map((scope) => scope[key]).filter((value) => value !== null))];
    const rounds = [...new Set(data.runs.map((run) => run.rounds))].sort((a, b) => a - b);
    const facts = [
      ["Data set", unique("dataset").join(", ")],
      [unique("target").length > 1 ? "Unseen domains" : "Unseen domain", unique("target").join(", ")],
      ["Methods", data.methods.length > 4 ? String(data.methods.length) : data.methods.join(", ")],
      ["Seeds", data.seeds.join(", ")],
      ["Runs", String(data.runs.length)],
      ["Rounds", rounds.length > 1 ? `${rounds[0]} to ${rounds[rounds.length - 1]}` : String(rounds[0])],
    ];
    byId("facts").append(...facts.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    byId("notices").append(...data.notices.map((notice) => el("li", {}, notice)));
    byId("notices").hidden = !data.notices.length;
  }

  function buildFilters() {
    const chips = data.methods.map((method) => el("button", {
      type: "button", class: "chip", "data-method": method, title: `${method}: click to hide or show, double-click to show it alone`,
      onclick: () => {
        state.hidden.has(method) ? state.hidden.delete(method) : state.hidden.add(method);
        draw();
      },
      ondblclick: () => {
        state.hidden = new Set(data.methods.filter((other) => other !== method));
        draw();
      },
    }, swatch(methodStyles.get(method)), el("span", {}, method)));
    const everything = el("button", {
      type: "button", id: "show-all",
      onclick: () => {
        state.hidden.clear();
        draw();
      },
    }, "Show all");
    const choose = (key) => (value) => {
      state[key] = value;
      draw();
    };
    const scopes = data.scopes.length > 1 && dropdown("Target", [["all", "all"], ...range(data.scopes.length).map((i) => [i, scopeName(i)])], "all", choose("scope"), "scope");
    const seeds = data.seeds.length > 1 && dropdown("Seed", [["all", "all"], ...data.seeds.map((seed) => [seed, String(seed)])], "all", choose("seed"), "seed");
    fill(byId("filters"), {}, [...chips, everything, el("div", { class: "push" }, scopes, seeds)]);
  }

  /** The controls themselves stay: replacing a chip between two clicks would lose the double click. */
  function updateFilters() {
    for (const chip of byId("filters").querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(!state.hidden.has(chip.dataset.method)));
    for (const select of byId("filters").querySelectorAll("select")) select.value = state[select.name];
    byId("show-all").hidden = !state.hidden.size;
  }

  /** Redrawn controls keep the keyboard where it was. */
  function keepFocus(host, redraw) {
    const key = (node) => node.dataset.value || node.dataset.sort || node.name;
    const active = host.contains(document.activeElement) ? key(document.activeElement) : null;
    redraw();
    if (active) [...host.querySelectorAll("button, select, input")].find((node) => key(node) === active)?.focus({ preventScroll: true });
  }

  // --------------------------------------------------------------------------------------------------------------- summary

  function summaryRows() {
    if (state.rows === "methods" && state.seed === "all") return data.summary[state.rule].filter(isShown);
    return shownRuns().map((run) => ({
      method: run.method, scope: run.scope, seeds: [run.seed], folder: run.folder,
      views: Object.fromEntries(Object.entries(run.accuracy[state.rule]).filter(([, value]) => isNumber(value)).map(([view, mean]) => [view, { mean, std: null, n: 1 }])),
    }));
  }

  function seedValues(row, view) {
    if (row.folder !== undefined) return [row.views[view].mean];
    return shownRuns().filter((run) => run.method === row.method && run.scope === row.scope).map((run) => run.accuracy[state.rule][view]).filter(isNumber);
  }

  function sortKey(row, key) {
    if (key === "method") return data.methods.indexOf(row.method);
    if (key === "scope") return row.scope;
    if (key === "seed") return row.folder === undefined ? row.seeds.length : row.seeds[0];
    return row.views[key] ? row.views[key].mean : null;
  }

  function sorted(rows) {
    const { key, descending } = state.sort || { key: "scope", descending: false };
    const missingLast = (value) => value === null || value === undefined;
    return rows.map((row, i) => [row, i]).sort(([a, i], [b, j]) => {
      const [p, q] = [sortKey(a, key), sortKey(b, key)];
      if (missingLast(p) || missingLast(q)) return missingLast(p) - missingLast(q) || i - j;
      return (descending ? q - p : p - q) || i - j;
    }).map(([row]) => row);
  }

  function header(key, text, numeric) {
    const active = state.sort && state.sort.key === key;
    const direction = active ? (state.sort.descending ? "descending" : "ascending") : null;
    const click = () => {
      state.sort = { key, descending: active ? !state.sort.descending : Boolean(numeric) };
      drawSummary();
    };
    const arrow = active ? (state.sort.descending ? " ↓" : " ↑") : "";
    return el("th", { scope: "col", "aria-sort": direction }, el("button", { type: "button", "data-sort": key, onclick: click }, text + arrow));
  }

  function strip(values, mean, [low, high], color) {
    const x = (value) => (high > low ? 4 + (108 * (value - low)) / (high - low) : 58);
    return svg("svg", { class: "strip", viewBox: "0 0 116 10", "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 116, y1: 5, y2: 5, style: "stroke:var(--rule)" }),
      values.map((value) => svg("circle", { cx: x(value), cy: 5, r: 3, style: `fill:${color}`, opacity: 0.7 })),
      values.length > 1 && svg("line", { x1: x(mean), x2: x(mean), y1: 0, y2: 10, style: `stroke:${color}`, "stroke-width": 2 }));
  }

  function valueCell(row, view, bounds, best) {
    const found = row.views[view];
    if (!found) return el("td", { class: "value" }, MISSING);
    const few = row.folder === undefined && found.n !== row.seeds.length && el("span", { class: "few" }, ` n = ${found.n}`);
    return el("td", { class: best ? "value best" : "value" },
      el("span", { class: "mean" }, fixed(100 * found.mean, 1)),
      isNumber(found.std) && el("span", { class: "std" }, ` ± ${fixed(100 * found.std, 1)}`), few,
      strip(seedValues(row, view), found.mean, bounds, methodStyles.get(row.method).color));
  }

  function summaryTable(rows) {
    const byRun = rows.some((row) => row.folder !== undefined);
    const inUse = (view) => rows.some((row) => row.views[view]);
    const views = data.views.filter((view) => HEADLINE_VIEWS.includes(view) || inUse(view));
    const bounds = {}, best = {};
    for (const view of views) {
      const values = rows.filter((row) => row.views[view]).flatMap((row) => seedValues(row, view));
      bounds[view] = [Math.min(...values), Math.max(...values)];
      // Best within a target: numbers of different targets do not compete.
      best[view] = new Map(data.scopes.map((_, scope) => [scope, Math.max(...rows.filter((row) => row.scope === scope && row.views[view]).map((row) => row.views[view].mean))]));
    }
    const contested = (row) => rows.filter((other) => other.scope === row.scope).length > 1;
    const manyScopes = data.scopes.length > 1;
    const head = el("tr", {}, header("method", "Method"), manyScopes && header("scope", "Target"), views.map((view) => header(view, VIEWS[view], true)), header("seed", byRun ? "Seed" : "Seeds"));
    const body = sorted(rows).map((row) => el("tr", { "data-method": row.method },
      el("td", { class: "name" }, el("div", {}, swatch(methodStyles.get(row.method)), el("span", {}, breakable(row.method)))),
      manyScopes && el("td", {}, scopeName(row.scope)),
      views.map((view) => valueCell(row, view, bounds[view], !byRun && contested(row) && row.views[view] && row.views[view].mean === best[view].get(row.scope))),
      el("td", {}, byRun ? String(row.seeds[0] ?? MISSING) : String(row.seeds.length))));
    const foot = data.baselines.map((row) => el("tr", {},
      el("td", { class: "name" }, row.name), manyScopes && el("td", {}),
      views.map((view) => el("td", { class: "value" }, fixed(isNumber(row.views[view]) ? 100 * row.views[view] : null, 1))), el("td", {})));
    return [el("thead", {}, head), el("tbody", {}, body), el("tfoot", {}, foot)];
  }

  function ruleCaption() {
    if (state.rule === "selected") {
      const unvalidated = shownRuns().filter((run) => run.selection.rule !== "validation").length;
      if (unvalidated && unvalidated === shownRuns().length) return ["Accuracy in percent after the last round: without validation data no other is selected."];
      const rest = unvalidated ? ` ${plural(unvalidated, "run")} of ${shownRuns().length} without validation data: the last round stands in.` : "";
      return ["Accuracy in percent at the selected round: the one with the highest accuracy on the validation data of the clients, weighted by samples; "
        + `the earliest in ties, never the untrained model.${heldOut ? " The unseen domain plays no part in it." : ""}${rest}`];
    }
    if (state.rule === "last") return ["Accuracy in percent after the last round."];
    if (state.rule === "mean_last_10") return ["Accuracy in percent: mean of the evaluations in the last ten rounds of each run."];
    return [el("span", { class: "oracle" }, "Oracle, not for headlines: "), "each number is the highest accuracy over all rounds, chosen on the test data itself, and so is optimistic."];
  }

  function drawSummary() {
    const rows = summaryRows();
    const byMethod = state.rows === "methods" && state.seed === "all";
    keepFocus(byId("summary-controls"), () => byId("summary-controls").replaceChildren(
      segments("Which round", RULES, state.rule, (rule) => { state.rule = rule; drawSummary(); }),
      segments("Rows", { methods: "By method", runs: "By run" }, byMethod ? "methods" : "runs", (kind) => {
        if (kind === "methods") state.seed = "all";
        state.rows = kind;
        draw();
      })));
    keepFocus(byId("summary"), () => byId("summary").replaceChildren(...summaryTable(rows)));
    const spreads = rows.some((row) => row.seeds.length > 1) ? " Mean ± sample standard deviation over seeds; dots are the seeds, on one scale for each column." : "";
    byId("summary-caption").replaceChildren(...ruleCaption(), spreads);
  }

  // ---------------------------------------------------------------------------------------------------------------- curves

  const ACCURACY = { axis: (value) => `${Number((100 * value).toFixed(1))}%`.replace("-", "−"), value: percent };
  const LOSS = { axis: (value) => String(Number(value.toFixed(3))), value: (value) => fixed(value, 3) };
  const WEIGHT = { axis: (value) => String(Number(value.toFixed(3))), value: (value) => fixed(value, 3) };
  const COSINE = { axis: (value) => String(Number(value.toFixed(2))).replace("-", "−"), value: (value) => fixed(value, 3) };

  /** The lines of all shown methods in one scope; `read` takes a curve out of a group. */
  function methodSeries(scope, read, withLabels) {
    const groups = shownGroups().filter((group) => group.scope === scope && read(group));
    return groups.map((group) => ({
      name: group.method, ...methodStyles.get(group.method), thin: group.n === 1,
      label: withLabels && groups.length <= LINES_AT_MOST ? group.method : null, points: curvePoints(read(group)),
    }));
  }

  function seedSeries(scope) {
    if (!state.eachSeed || state.seed !== "all") return [];
    return shownRuns().filter((run) => run.scope === scope && run.curves[state.view]).map((run) => {
      const curve = run.curves[state.view];
      return { name: runName(run), ...methodStyles.get(run.method), faint: true, points: curvePoints(runCurve(curve.round, curve[state.metric])) };
    });
  }

  function drawCurves() {
    const views = Object.fromEntries(data.views.map((view) => [view, VIEWS[view]]));
    const several = data.groups.some((group) => group.n > 1) && state.seed === "all";
    keepFocus(byId("curves-controls"), () => byId("curves-controls").replaceChildren(...[
      segments("View", views, state.view, (view) => { state.view = view; drawCurves(); }),
      segments("Metric", { accuracy: "Accuracy", loss: "Loss" }, state.metric, (metric) => { state.metric = metric; drawCurves(); }),
      several && el("label", {}, el("input", { type: "checkbox", name: "each-seed", checked: state.eachSeed, onchange: (event) => { state.eachSeed = event.target.checked; drawCurves(); } }), "each seed"),
    ].filter(Boolean)));
    const host = byId("curves");
    host.replaceChildren();
    const accurate = state.metric === "accuracy";
    const constants = accurate ? data.baselines.filter((row) => isNumber(row.views[state.view])).map((row) => ({ name: row.name, y: row.views[state.view] })) : [];
    const plots = shownScopes().map((scope) => [scope, methodSeries(scope, (group) => group.curves[state.view]?.[state.metric], true)]).filter(([, series]) => series.length);
    if (!plots.length) return emptyPanel(host, "Nothing to show with these filters.");
    const slots = plots.map(([scope]) => panel(host, plots.length > 1 && scopeName(scope)));
    plots.forEach(([scope, series], i) => lineChart(slots[i], {
      series: [...seedSeries(scope), ...series], constants, format: accurate ? ACCURACY : LOSS, height: plots.length > 1 ? 260 : 380,
      domain: accurate ? { floor: 0, ceiling: 1 } : { floor: 0 }, label: `${VIEWS[state.view]}: ${state.metric} over rounds`,
    }));
  }

  function drawDomains() {
    const host = byId("domains");
    host.replaceChildren();
    const domains = new Set(data.groups.flatMap((group) => group.domains.map(({ domain }) => domain)));
    host.closest("section").hidden = domains.size === 1; // the bars would repeat the table
    const plots = shownScopes().map((scope) => {
      const groups = shownGroups().filter((group) => group.scope === scope);
      const blocks = new Map();
      for (const group of groups) {
        for (const { view, domain, ...values } of group.domains) {
          const key = `${view}/${domain}`;
          if (!blocks.has(key)) blocks.set(key, { name: domain, unseen: view === "target", bars: [] });
          blocks.get(key).bars.push({ name: group.method, ...methodStyles.get(group.method), ...values });
        }
      }
      return [scope, [...blocks.values()]];
    }).filter(([, blocks]) => blocks.length);
    if (!plots.length) return emptyPanel(host, "No accuracy by domain recorded for these filters.");
    const slots = plots.map(([scope]) => panel(host, plots.length > 1 && scopeName(scope)));
    plots.forEach(([, blocks], i) => barChart(slots[i], { blocks, label: "Accuracy by domain and method" }));
  }

  // --------------------------------------------------------------------------------------------------------------- clients

  const finite = (matrix) => (matrix || []).flat().filter(isNumber);

  function clientPoints(rounds, row) {
    return rounds.map((round, i) => ({ x: round, y: row[i], n: 1 }));
  }

  function drawClients() {
    const run = data.runs[state.run];
    const choose = (value) => {
      state.run = Number(value);
      drawClients();
    };
    keepFocus(byId("weights-controls"), () => byId("weights-controls").replaceChildren(dropdown("Run", data.runs.map((other, i) => [i, runName(other)]), state.run, choose, "run")));
    for (const id of ["weights", "cosines", "pairs"]) byId(id).replaceChildren();
    for (const id of ["weights-caption", "cosines-caption"]) byId(id).replaceChildren();
    if (!run.clients.names.length) {
      for (const id of ["weights", "cosines", "pairs"]) emptyPanel(byId(id), "This run recorded no clients.");
      return;
    }
    drawWeights(run);
    drawCosines(run);
    drawPairs(run);
  }

  const chosenText = (run, heat) => `${heat ? "Mark" : "Dashed vertical line"}: the selected round, ${run.selection.round} (${run.selection.rule}).`;

  function drawWeights(run) {
    const { names, rounds, reference_weight: reference, omg_weight: omg } = run.clients;
    const host = byId("weights");
    const highest = Math.max(...finite(reference), ...finite(omg), 0);
    const heat = names.length > LINES_AT_MOST;
    host.classList.toggle("wide", heat);
    if (!reference && !omg) return emptyPanel(host, "This run recorded no weights.");
    if (heat) {
      const kinds = [["OMG weight", omg], ["Reference weight", reference]].filter(([, matrix]) => matrix);
      const slots = kinds.map(([title]) => panel(host, title));
      kinds.forEach(([title, matrix], i) => heatMap(slots[i], { names, rounds, matrix, low: 0, high: highest, colours: SEQUENTIAL, format: WEIGHT, label: `${title} by client and round`, what: title, chosen: run.selection.round }));
    } else {
      const slots = names.map((name) => panel(host, name));
      names.forEach((name, i) => lineChart(slots[i], {
        series: [
          reference && { name: "reference", label: "reference", color: "var(--muted)", dash: "5 4", thin: true, points: clientPoints(rounds, reference[i]) },
          omg && { name: "OMG", label: "OMG", color: `var(--c${i % COLOURS})`, dash: "", points: clientPoints(rounds, omg[i]) },
        ].filter(Boolean),
        format: WEIGHT, height: 200, domain: { include: [0, highest * 1.05] }, chosen: run.selection.round, label: `Weights of ${name} over rounds`,
      }));
    }
    const kind = omg ? "Reference: the share of the method’s own weighting. OMG: the weight that the invariant direction gives the client’s update." : "This run combines by the reference weights alone, without OMG.";
    byId("weights-caption").append(`${kind} ${chosenText(run, heat)}`);
  }

  function drawCosines(run) {
    const { names, rounds, cosine } = run.clients;
    const host = byId("cosines");
    if (!cosine) return emptyPanel(host, "This run recorded no cosines.");
    const heat = names.length > LINES_AT_MOST;
    const slot = panel(host, runName(run));
    if (heat) {
      const reach = Math.ceil(10 * Math.max(...finite(cosine).map(Math.abs), 0.01)) / 10;
      heatMap(slot, { names, rounds, matrix: cosine, low: -reach, high: reach, colours: DIVERGING, format: COSINE, label: "Cosine by client and round", what: "cosine", chosen: run.selection.round });
    } else {
      lineChart(slot, {
        series: names.map((name, i) => ({ name, label: name, color: `var(--c${i % COLOURS})`, dash: "", points: clientPoints(rounds, cosine[i]) })),
        format: COSINE, height: 300, domain: { include: [0], floor: -1, ceiling: 1 }, chosen: run.selection.round, zero: true, label: "Cosine of each client over rounds",
      });
    }
    byId("cosines-caption").append(chosenText(run, heat));
  }

  function drawPairs(run) {
    const host = byId("pairs");
    if (!run.pairs) return emptyPanel(host, "This run recorded no pairs of clients: it has a single one, or its cohorts are larger than evaluate.pairs_up_to.");
    const { names, cosine } = run.pairs;
    const reach = Math.ceil(10 * Math.max(...finite(cosine).map(Math.abs), 0.01)) / 10;
    heatMap(panel(host, runName(run)), { names, rounds: names.map((_, i) => i), columns: names, matrix: cosine, low: -reach, high: reach, colours: DIVERGING, format: COSINE, label: "Mean cosine of every pair of clients", what: "cosine" });
  }

  function drawAgreement() {
    const host = byId("agreement");
    host.replaceChildren();
    const plots = shownScopes().flatMap((scope) => [
      ["mean_pair_cosine", "Mean pair cosine", COSINE, { floor: -1, ceiling: 1, include: [0] }, scope],
      ["conflict_ratio", "Conflicting pairs", ACCURACY, { floor: 0, ceiling: 1, include: [0] }, scope],
    ]).map(([key, title, format, domain, scope]) => ({ key, title, format, domain, scope, series: methodSeries(scope, (group) => group.server[key], false) }))
      .filter(({ series }) => series.some((line) => line.points.length));
    if (!plots.length) return emptyPanel(host, "Nothing recorded for these filters.");
    const many = new Set(plots.map((plot) => plot.scope)).size > 1;
    const slots = plots.map(({ title, scope }) => panel(host, many ? `${title} (${scopeName(scope)})` : title));
    plots.forEach(({ title, format, domain, series }, i) => lineChart(slots[i], { series, format, domain, height: 220, zero: true, label: `${title} over rounds` }));
  }

  // --------------------------------------------------------------------------------------------------------------- details

  function runFacts(run) {
    const scope = data.scopes[run.scope];
    const bytes = isNumber(run.bytes.down) || isNumber(run.bytes.up) ? `${size(run.bytes.down)} down, ${size(run.bytes.up)} up` : null;
    const facts = [
      ["Folder", run.folder],
      ["Data set", scope.dataset],
      ["Unseen domain", scope.target],
      ["Seed", run.seed],
      ["Rounds", run.rounds],
      ["Selected round", `${run.selection.round} (by ${run.selection.rule === "validation" ? "validation accuracy" : "being the last"})`],
      ["Time", isNumber(run.seconds) ? duration(run.seconds) : null],
      ["Traffic", bytes],
      ["Configuration", run.config_hash],
      ["Versions", Object.entries(run.versions).map(([name, version]) => `${name} ${version}`).join(", ") || null],
    ].filter(([, value]) => value !== null);
    const notes = run.notes.map((note) => [el("dt", {}, "Note"), el("dd", { class: "note" }, note)]);
    return el("dl", { class: "run-facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]), notes);
  }

  function drawRuns() {
    const runs = shownRuns();
    const host = byId("runs");
    host.replaceChildren(...runs.map((run) => el("details", {
      open: state.opened.has(run),
      ontoggle: (event) => { event.target.open ? state.opened.add(run) : state.opened.delete(run); },
    },
      el("summary", {},
        el("span", {}, runName(run)),
        el("span", { class: "dim" }, [plural(run.rounds, "round"), isNumber(run.seconds) && duration(run.seconds), `selected ${run.selection.round}`].filter(Boolean).join(", ")),
        run.notes.length > 0 && el("span", { class: "note" }, plural(run.notes.length, "note"))),
      el("div", { class: "run" }, runFacts(run), run.config === null ? el("p", { class: "empty" }, "No config.toml in the folder.") : el("pre", { tabindex: 0 }, run.config)))));
    if (!runs.length) emptyPanel(host, "No run with these filters.");
  }

  // ------------------------------------------------------------------------------------------------------------------ page

  function drawCharts() {
    drawCurves();
    drawDomains();
    drawClients();
    drawAgreement();
  }

  function draw() {
    hideTip();
    updateFilters();
    drawSummary();
    drawCharts();
    drawRuns();
    document.documentElement.dataset.charts = document.querySelectorAll("svg.chart").length;
  }

  drawFacts();
  buildFilters();
  draw();
  let drawnWidth = document.body.clientWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (document.body.clientWidth === drawnWidth) return;
      drawnWidth = document.body.clientWidth;
      drawCharts();
    }, 120);
  });
  document.documentElement.dataset.ready = "true";
})();
