// Distributions, training curves and evaluations.
"use strict";

const facts = data("facts");
const EMPTY = "No data in this run.";

// A figure with its data as a table beneath, for readers who cannot see the plot.
function chart(title, note, rows, plot) {
  if (!rows || !rows.length) return null;
  const columns = Object.fromEntries(Object.keys(rows[0]).map((key) => [key, (row) => row[key]]));
  const drawn = plot(rows);
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", `${title}. The table below has the numbers.`);
  return h("figure", {}, h("h3", {}, title), note ? h("figcaption", {}, note) : null, h("div", {}, drawn),
    h("details", {}, h("summary", {}, "Numbers"), table(columns, rows.slice(0, 500))));
}

function draw(options) {
  return Plot.plot({ width: 460, height: 260, marginLeft: 60, style: { background: "transparent", overflow: "visible" }, ...options });
}

function bars(rows, x, y, more = {}) {
  return draw({ y: { grid: true, label: y }, marks: [Plot.rectY(rows, { x1: "low", x2: "high", y, fill: "var(--high)", insetLeft: .5, insetRight: .5, ...more }), Plot.ruleY([0])], x: { label: x } });
}

function show(id, figures) {
  const found = figures.filter(Boolean);
  document.getElementById(id).replaceChildren(...(found.length ? found : [h("p", { class: "quiet" }, EMPTY)]));
}

const found = facts.distributions;
show("chart-yields", [chart("From questions to pairs", null, facts.yields, (rows) => draw({
  marginLeft: 150, height: 40 + 28 * rows.length, x: { grid: true, label: "count" }, y: { label: null, domain: rows.map((row) => row.name) },
  marks: [Plot.barX(rows, { x: "n", y: "name", fill: "var(--high)" }), Plot.text(rows, { x: "n", y: "name", text: (row) => number(row.n), dx: 4, textAnchor: "start" })] }))]);
show("distribution-charts", [
  chart("Steps by depth and action", "Policy calls from the question.", found.depth, (rows) => draw({
    color: { legend: true, scheme: "tableau10" }, y: { grid: true }, x: { tickFormat: "d" }, marks: [Plot.barY(rows, { x: "depth", y: "nodes", fill: "action" }), Plot.ruleY([0])] })),
  chart("Pairs by actions", "The action of the chosen and of the rejected step.", found.actions, (rows) => draw({
    marginLeft: 170, height: 60 + 26 * Math.min(rows.length, 12), y: { label: null }, x: { grid: true, label: "pairs" },
    marks: [Plot.barX(rows.slice(0, 12), { x: "pairs", y: (row) => `${row.chosen} > ${row.rejected}`, fill: "var(--high)", sort: { y: "-x" } })] })),
  chart("Reward gap", "Reward of the chosen step minus that of the rejected step.", found.gaps, (rows) => bars(rows, "reward gap", "pairs")),
  chart("Length of chosen and rejected steps", "Characters. If one side is much longer, a policy may learn length. The last bin holds all longer texts.", found.lengths, (rows) => draw({
    color: { legend: true, domain: ["chosen", "rejected"], range: ["var(--high)", "var(--low)"] }, y: { grid: true }, x: { label: "characters" },
    marks: [Plot.line(rows, { x: (row) => (row.low + row.high) / 2, y: "texts", stroke: "side", strokeWidth: 2, marker: true }), Plot.ruleY([0])] })),
  chart("Reward by depth", "Median, quartiles and range of the labelled steps.", found.rewards, (rows) => draw({
    x: { tickFormat: "d", type: "band" }, y: { grid: true, label: "reward" },
    marks: [Plot.ruleX(rows, { x: "depth", y1: "least", y2: "most" }), Plot.ruleX(rows, { x: "depth", y1: "low", y2: "high", stroke: "var(--high)", strokeWidth: 12 }), Plot.dot(rows, { x: "depth", y: "median", fill: "var(--text)", r: 4 })] })),
  chart("Judge score and outcome", "Share of right answers among those reached from the steps of each score. A useful judge rises.", found.judge, (rows) => draw({
    y: { grid: true, domain: [0, 1], label: "share right" }, x: { label: "judge score", domain: [0, 1] },
    marks: [Plot.rectY(rows, { x1: "low", x2: "high", y: "em", fill: "var(--high)", inset: 1 })] })),
  ...d3.groups(found.components, (row) => row.name).map(([name, rows]) =>
    chart(`Reward component: ${name}`, null, rows, (all) => bars(all, name, "nodes"))),
]);

const CURVES = ["loss", "accuracy", "margin", "reward", "em", "dev_em", "answer_rate", "format_ok", "policy_tokens", "total_tokens", "retrievals", "valid_searches", "copied", "evaluated", "kl", "entropy", "silent_share", "clip_share", "grad_norm", "sample_s", "sync_s", "train_s"];
const rewardNames = (lines) => [...new Set(lines.flatMap(Object.keys))].filter((name) => name.startsWith("reward/")).sort();
show("training-charts", Object.entries(facts.trainings).flatMap(([model, lines]) =>
  [...CURVES, ...rewardNames(lines)].filter((name) => lines.some((line) => typeof line[name] === "number")).map((name) =>
    chart(`${model}: ${name}`, null, lines.filter((line) => typeof line[name] === "number").map((line) => ({ step: line.step, [name]: line[name] })), (rows) => draw({
      height: 200, y: { grid: true, label: name }, marks: [Plot.line(rows, { x: "step", y: name, stroke: "var(--high)", marker: rows.length < 60 })] })))));

show("evaluation-charts", facts.evaluations.map((one) => h("article", {}, h("h3", {}, one.name), h("div", { class: "columns" },
  chart("Exact match", "Percent, with a 95 % interval.", one.rows.filter((row) => row.em !== null).map((row) => ({ policy: row.policy, em: 100 * row.em, low: 100 * row.low, high: 100 * row.high })), (rows) => draw({
    marginLeft: 120, height: 50 + 32 * rows.length, x: { grid: true, label: "EM (%)", domain: [0, Math.max(10, ...rows.map((row) => row.high))] }, y: { label: null, domain: rows.map((row) => row.policy) },
    marks: [Plot.ruleY(rows, { y: "policy", x1: "low", x2: "high", strokeWidth: 2 }), Plot.dot(rows, { y: "policy", x: "em", fill: "var(--high)", r: 6 })] })),
  h("div", {}, table({ policy: (row) => row.policy, "EM %": (row) => percent(row.em), "F1 %": (row) => percent(row.f1), "cover-EM %": (row) => percent(row.cover_em), questions: (row) => row.n, failed: (row) => row.failed, searches: (row) => row.searches, "invalid %": (row) => percent(row.invalid) }, one.rows),
    one.differences.length ? h("h4", {}, "Difference in EM, points, with a 95 % interval") : null,
    one.differences.length ? table({ policy: (row) => row.policy, "minus": (row) => row.baseline, mean: (row) => percent(row.mean), low: (row) => percent(row.low), high: (row) => percent(row.high) }, one.differences) : null)))));

show("failure-tables", [
  facts.dropped.length ? h("div", {}, h("h3", {}, "Dropped or noted while trees were grown"), table({ reason: (row) => row.reason, n: (row) => row.n }, facts.dropped)) : null,
  facts.failures.length ? h("div", {}, h("h3", {}, "Questions that failed"), table({ question: (row) => row.question_id, stage: (row) => row.stage, kind: (row) => row.kind, detail: (row) => row.detail }, facts.failures.slice(0, 500))) : null,
]);
