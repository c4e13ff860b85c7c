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
  const several = (label, list, name) => list.length > 1 && dropdown(label, [["all", "all"], ...list.map((text, i) => [i, text])], "all", choose(name), name);
  const seeds = data.seeds.length > 1 && dropdown("Seed", [["all", "all"], ...data.seeds.map((seed) => [seed, String(seed)])], "all", choose("seed"), "seed");
  const search = el("label", {}, "Filter", el("input", {
    type: "search", name: "text", size: 14, placeholder: "any words", oninput: (event) => choose("text")(event.target.value),
  }));
  const alone = data.methods.length > 1 && dropdown("Method", [["all", "all"], ...data.methods.map((method, i) => [i, method])], "all", (choice) => {
    state.hidden = new Set(choice === "all" ? [] : data.methods.filter((_, i) => i !== Number(choice)));
    draw();
  }, "method");
  fill(byId("filters"), {}, [...chips, everything, el("div", { class: "push" }, search, alone, several("Data", datasets, "dataset"), several("Target", targets, "target"), seeds)]);
}

/** The controls themselves stay: replacing a chip between two clicks would lose the double click. */
function updateFilters() {
  for (const chip of byId("filters").querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(!state.hidden.has(chip.dataset.method)));
  const visible = range(data.methods.length).filter((i) => !state.hidden.has(data.methods[i]));
  for (const select of byId("filters").querySelectorAll("select")) {
    select.value = select.name === "method" ? (visible.length === 1 ? visible[0] : "all") : state[select.name];
  }
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

// ----------------------------------------------------------------------------------------------------------- comparisons

function plainTable(heads, rows) {
  const cells = (tag, row) => row.map((text) => el(tag, { class: typeof text === "number" || /^[+−<]?\s?[\d.]+$/.test(text) ? "number" : null }, String(text)));
  return [el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, rows.map((row) => el("tr", {}, cells("td", row))))];
}

function drawComparisons() {
  const found = data.comparisons.filter(({ first, second }) => !state.hidden.has(first) && !state.hidden.has(second));
  byId("noise").hidden = !found.length;
  const signed = (value) => (isNumber(value) ? (value > 0 ? "+" : "") + fixed(100 * value, 1) : MISSING);
  const chance = (p) => (!isNumber(p) ? MISSING : p < 0.001 ? "< 0.001" : fixed(p, 3));
  byId("comparisons").replaceChildren(...plainTable(["Method", "Against", "Pairs", "Mean difference", "p", "The difference is"],
    found.map(({ first, second, n, difference, p, verdict }) => [first, second, n, signed(difference), chance(p), verdict])));
  byId("noise-caption").textContent = `${VIEWS[data.views[0]]}, accuracy in points at the selected round, all runs whatever the filters. A pair is two runs of one seed and target on the same data and cohorts; `
    + "exact test by flipping the signs of the differences, pairs counted as independent, p corrected after Holm for the number of comparisons.";
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
  const shown = shownRuns().length ? shownRuns() : data.runs;
  if (!shown.includes(data.runs[state.run])) state.run = data.runs.indexOf(shown.find((run) => run.clients.omg_weight) || shown[0]);
  const run = data.runs[state.run];
  const few = run.clients.names.length > 0 && run.clients.names.length <= LINES_AT_MOST;
  keepFocus(byId("weights-controls"), () => byId("weights-controls").replaceChildren(...[
    dropdown("Run", shown.map((other) => [data.runs.indexOf(other), runName(other)]), state.run, (value) => { state.run = Number(value); drawClients(); }, "run"),
    few && segments("Clients as", { lines: "Lines", heat: "Heat maps" }, state.clients, (kind) => { state.clients = kind; drawClients(); }),
  ].filter(Boolean)));
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

const asHeat = (names) => names.length > LINES_AT_MOST || state.clients === "heat";
const chosenText = (run, heat) => `${heat ? "Mark" : "Dashed vertical line"}: the selected round, ${run.selection.round} (${run.selection.rule}).`;

function drawWeights(run) {
  const { names, rounds, reference_weight: reference, omg_weight: omg } = run.clients;
  const host = byId("weights");
  const highest = Math.max(...finite(reference), ...finite(omg), 0);
  const heat = asHeat(names);
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
  const heat = asHeat(names);
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

function drawSettings() {
  const counted = (values) => values.map(([value, n]) => (values.length > 1 ? `${value} (${plural(n, "run")})` : value)).join(", ");
  const host = byId("settings");
  const table = (title, heads, rows) => rows.length && panel(host, title).append(el("table", { class: "plain" }, plainTable(heads, rows)));
  table("What differs between runs", ["Key", "Values"], data.settings.differing.map(([key, values]) => [key, counted(values)]));
  table("Environment", ["What", "Version"], data.versions.map(([name, versions]) => [name, counted(versions)]));
  if (data.settings.shared.length) {
    panel(host, null).append(el("details", { id: "shared" }, el("summary", {}, `What all runs share: ${plural(data.settings.shared.length, "key")}`),
      el("table", { class: "plain" }, plainTable(["Key", "Value"], data.settings.shared))));
  }
  if (!host.childElementCount) emptyPanel(host, "No run says what it was configured with.");
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
  drawComparisons();
  drawCharts();
  drawRuns();
  document.documentElement.dataset.charts = document.querySelectorAll("svg.chart").length;
}

drawFacts();
drawSettings();
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
