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
