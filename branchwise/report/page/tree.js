// The tree viewer: a list of questions, a tree, and the details of one step.
"use strict";

const WIDE = 6; // children of a step that are shown at first; further ones are folded
const ROW = 46, COLUMN = 230;

// Facts that the view needs about each step of a tree.
function prepare(tree) {
  const byId = new Map(tree.nodes.map((node) => [node.node_id, node]));
  for (const node of tree.nodes) Object.assign(node, { children: [], chosenIn: [], rejectedIn: [], parent: byId.get(node.parent_id) ?? null });
  for (const node of tree.nodes) node.parent?.children.push(node);
  for (const pair of tree.pairs) {
    byId.get(pair.chosen_node)?.chosenIn.push(pair);
    byId.get(pair.rejected_node)?.rejectedIn.push(pair);
  }
  const ending = tree.nodes.filter((node) => node.em === 1);
  const rolled = tree.nodes.filter((node) => (node.rollouts ?? []).some((rollout) => rollout.em === 1));
  const best = d3.greatest(ending.length ? ending : rolled, (node) => 1e6 * node.depth + (node.visits ?? 0));
  for (let node = best; node; node = node.parent) node.onPath = true;
  tree.byId = byId;
  tree.iterations = d3.max(tree.nodes, (node) => node.iteration ?? 0);
  tree.rewards = d3.extent(tree.nodes, (node) => node.reward);
  return tree;
}

// Answers that were reached from a step or below it.
function answersBelow(node) {
  const own = (node.rollouts ?? []).map((rollout) => ({ answer: rollout.answer, right: rollout.em === 1 }));
  if (node.terminal && node.em !== undefined) own.push({ answer: node.content, right: node.em === 1 });
  return node.children.reduce((all, child) => all.concat(answersBelow(child)), own);
}

function outcome(node) {
  const answers = answersBelow(node);
  if (!answers.length) return "no finished trajectory from it";
  const right = answers.filter((one) => one.right).length;
  const texts = [...d3.rollup(answers, (all) => all.length, (one) => one.answer ?? "no answer")].sort((a, b) => b[1] - a[1]).slice(0, 3);
  return `${right} of ${answers.length} answers reached from it ${right === 1 ? "is" : "are"} right (${texts.map(([text, n]) => (n > 1 ? `“${text}” ×${n}` : `“${text}”`)).join(", ")})`;
}

const OUTCOMES = { right: "right answer found", wrong: "only wrong answers", open: "no finished trajectory", unanswerable: "unanswerable" };

function outcomeOf(row) {
  if (!row.answerable) return "unanswerable";
  return row.right ? "right" : row.searched ? "wrong" : "open";
}

function whyPreferred(tree, pair) {
  const chosen = tree.byId.get(pair.chosen_node), rejected = tree.byId.get(pair.rejected_node);
  return [`Step ${chosen.node_id} is preferred over step ${rejected.node_id}: reward ${number(chosen.reward)} against ${number(rejected.reward)}, gap ${number(pair.reward_gap)}.`,
    `Step ${chosen.node_id}: ${outcome(chosen)}.`, `Step ${rejected.node_id}: ${outcome(rejected)}.`];
}

const treeView = {
  index: data("tree-index"), tree: null, selected: null, folded: new Set(), unfolded: new Set(), timer: null,

  start() {
    if (!this.index.length) return;
    for (const id of ["tree-search", "tree-outcome", "tree-pairs"]) document.getElementById(id).addEventListener("input", () => this.list());
    document.querySelector("#trees form").addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("tree-iteration").addEventListener("input", (event) => this.replayTo(Number(event.target.value)));
    document.getElementById("tree-play").addEventListener("click", () => this.play());
    document.getElementById("tree-unfold").addEventListener("click", () => { this.folded.clear(); this.tree.nodes.forEach((node) => this.unfolded.add(node.node_id)); this.draw(); });
    this.list();
    this.open(d3.greatest(this.index, (row) => (row.right && row.pairs ? 1e9 : 0) - row.nodes));
  },

  list() {
    const [text, wanted, pairs] = ["tree-search", "tree-outcome", "tree-pairs"].map((id) => document.getElementById(id).value);
    const has = { "": () => true, some: (row) => row.pairs > 0, none: (row) => row.pairs === 0 };
    const rows = this.index.filter((row) => row.question.toLowerCase().includes(text.toLowerCase()) && ["", outcomeOf(row)].includes(wanted) && has[pairs](row));
    const list = document.getElementById("tree-list");
    const label = (row) => [row.question, h("small", {}, `${OUTCOMES[outcomeOf(row)]} · ${row.nodes} steps · ${row.pairs} pairs`)];
    document.getElementById("tree-count").textContent = fillList(list, rows, label, (row) => this.open(row, true));
    markCurrent(list, this.row);
  },

  async open(row, focus = false, node = null) {
    this.row = row;
    markCurrent(document.getElementById("tree-list"), row);
    const tree = (await blob(`trees-${row.blob}`))[row.place];
    if (this.row !== row) return;  // another one was opened meanwhile
    this.tree = tree.byId ? tree : prepare(tree);
    this.folded.clear(); this.unfolded.clear();
    document.getElementById("tree-title").textContent = tree.question;
    document.getElementById("tree-answers").textContent = `Gold answer: ${tree.answers.join(" | ") || "none (unanswerable)"}`;
    const slider = document.getElementById("tree-iteration");
    slider.max = this.tree.iterations; slider.value = this.tree.iterations;
    this.replayTo(this.tree.iterations);
    const first = d3.greatest(this.tree.pairs, (pair) => pair.reward_gap)?.chosen_node ?? 0;
    this.select(this.tree.byId.get(node ?? first) ?? this.tree.nodes[0]);
    if (focus) document.getElementById("tree-title").focus();
  },

  replayTo(iteration) {
    this.iteration = iteration;
    document.getElementById("tree-iteration-now").textContent = `${iteration} of ${this.tree.iterations}`;
    this.draw();
  },

  play() {
    const button = document.getElementById("tree-play"), slider = document.getElementById("tree-iteration");
    if (this.timer) { clearInterval(this.timer); this.timer = null; button.textContent = "Replay"; return; }
    slider.value = 0; button.textContent = "Stop";
    this.replayTo(0);
    this.timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      this.replayTo(Number(slider.value));
      if (this.iteration >= this.tree.iterations) this.play();
    }, 400);
  },

  // The children that the view shows: not folded, grown by now, and of a wide step the important ones.
  shown(node) {
    const grown = node.children.filter((child) => (child.iteration ?? 0) <= this.iteration);
    if (this.folded.has(node.node_id)) return [];
    if (grown.length <= WIDE || this.unfolded.has(node.node_id)) return grown;
    const important = (child) => (child.onPath ? 4 : 0) + (child.chosenIn.length ? 2 : 0) + (child.rejectedIn.length ? 1 : 0);
    const kept = new Set([...grown].sort((a, b) => important(b) - important(a) || b.visits - a.visits).slice(0, WIDE));
    return grown.filter((child) => kept.has(child));
  },

  hidden(node) {
    return node.children.filter((child) => (child.iteration ?? 0) <= this.iteration).length - this.shown(node).length;
  },

  draw() {
    const root = d3.tree().nodeSize([ROW, COLUMN])(d3.hierarchy(this.tree.nodes[0], (node) => this.shown(node)));
    const [top, bottom] = d3.extent(root.descendants(), (one) => one.x);
    const width = (root.height + 1) * COLUMN + 40, height = bottom - top + 2 * ROW;
    const [least, most] = this.tree.rewards;
    const colour = d3.scaleLinear([Math.min(0, least ?? 0), Math.max(1, most ?? 1)], [0, 1]);
    const size = d3.scaleSqrt([0, d3.max(this.tree.nodes, (node) => node.visits) ?? 1], [4, 13]);
    const svg = d3.create("svg").attr("width", width).attr("height", height).attr("viewBox", [-30, top - ROW, width, height]).attr("role", "tree").attr("aria-label", `Search tree of ${this.tree.nodes.length - 1} steps`);
    svg.append("g").selectAll("path").data(root.links()).join("path")
      .attr("class", (link) => `link${link.target.data.onPath ? " right" : ""}`)
      .attr("d", ({ source, target }) => { // straight between the two lines of the label, then curved
        const bend = source.y + COLUMN - 60, middle = (bend + target.y) / 2;
        return `M${source.y},${source.x}H${bend}C${middle},${source.x} ${middle},${target.x} ${target.y},${target.x}`;
      });
    const steps = svg.append("g").selectAll("g").data(root.descendants()).join("g")
      .attr("transform", (one) => `translate(${one.y},${one.x})`)
      .attr("role", "treeitem").attr("tabindex", (one) => (one.data === this.selected ? 0 : -1))
      .attr("aria-level", (one) => one.depth + 1).attr("aria-selected", (one) => one.data === this.selected)
      .attr("aria-expanded", (one) => (one.data.children.length ? this.shown(one.data).length > 0 : null))
      .attr("aria-label", (one) => this.describe(one.data)).attr("data-node", (one) => one.data.node_id)
      .attr("class", (one) => [one.data.chosenIn.length ? "chosen" : "", one.data.rejectedIn.length ? "rejected" : "", one.data.reward === undefined ? "unlabelled" : ""].join(" "))
      .on("click", (event, one) => (one.data === this.selected ? this.fold(one.data) : this.select(one.data)))
      .on("keydown", (event, one) => this.key(event, one));
    steps.append("rect").attr("class", "box").attr("x", -17).attr("y", -20).attr("width", COLUMN - 24).attr("height", 40).attr("rx", 4);
    steps.filter((one) => one.data.chosenIn.length || one.data.rejectedIn.length).append("circle").attr("class", "ring").attr("r", (one) => size(one.data.visits ?? 0) + 4);
    steps.append("circle").attr("r", (one) => size(one.data.visits ?? 0)).attr("fill", (one) => (one.data.reward === undefined ? null : shade(colour(one.data.reward))));
    steps.append("text").attr("x", 19).attr("dy", "-0.45em").text((one) => this.label(one.data));
    steps.append("text").attr("class", "mark").attr("x", 19).attr("dy", "1.25em").text((one) => this.mark(one.data));
    document.getElementById("tree-canvas").replaceChildren(svg.node());
    document.getElementById("tree-legend").replaceChildren(
      h("span", {}, `reward ${number(colour.domain()[0])} `, h("span", { class: "swatch" }), ` ${number(colour.domain()[1])}`),
      h("span", {}, "dashed circle: no reward"), h("span", {}, "✓ solid ring: chosen in a pair"), h("span", {}, "✗ dashed ring: rejected in a pair"), h("span", {}, "thick line: path to a right answer"), h("span", {}, "+n: n folded steps"));
    if (this.restore) { this.focusNode(this.selected); this.restore = false; }
  },

  label(node) {
    const text = node.depth === 0 ? "question" : `${node.action}: ${node.content ?? ""}`;
    return text.length > 27 ? `${text.slice(0, 26)}…` : text;
  },

  mark(node) {
    const marks = [node.reward === undefined ? "" : `reward ${number(node.reward, 2)}`];
    if (node.chosenIn.length) marks.push("✓ chosen");
    if (node.rejectedIn.length) marks.push("✗ rejected");
    if (node.terminal && node.em !== undefined) marks.push(node.em === 1 ? "right answer" : "wrong answer");
    if (this.hidden(node) > 0) marks.push(`+${this.hidden(node)}`);
    return marks.filter(Boolean).join(" · ");
  },

  describe(node) {
    return `Step ${node.node_id}, ${node.depth === 0 ? "question" : `${node.action}: ${node.content ?? ""}`}. ${this.mark(node)}`;
  },

  fold(node) {
    if (this.hidden(node) > 0) { this.folded.delete(node.node_id); this.unfolded.add(node.node_id); }
    else if (node.children.length) { this.folded.add(node.node_id); this.unfolded.delete(node.node_id); }
    this.restore = true;
    this.draw();
  },

  key(event, one) {
    const siblings = one.parent ? one.parent.children : [one];
    const place = siblings.indexOf(one);
    const cousins = one.parent ? this.level(one) : [one];
    const next = {
      ArrowRight: one.children?.[0], ArrowLeft: one.parent,
      ArrowDown: cousins[cousins.indexOf(one) + 1] ?? siblings[place + 1], ArrowUp: cousins[cousins.indexOf(one) - 1] ?? siblings[place - 1], Home: one.ancestors().at(-1),
    }[event.key];
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.fold(one.data); }
    else if (next) { event.preventDefault(); this.restore = true; this.select(next.data); }
  },

  // All shown steps of the same depth, from top to bottom.
  level(one) {
    return one.ancestors().at(-1).descendants().filter((other) => other.depth === one.depth).sort((a, b) => a.x - b.x);
  },

  focusNode(node) {
    document.querySelector(`#tree-canvas [data-node="${node.node_id}"]`)?.focus();
  },

  select(node) {
    this.selected = node;
    for (let above = node.parent; above; above = above.parent) { this.folded.delete(above.node_id); if (!this.shown(above).includes(node)) this.unfolded.add(above.node_id); }
    this.draw();
    document.getElementById("node").replaceChildren(...this.details(node).filter(Boolean));
  },

  details(node) {
    const pairs = [...node.chosenIn, ...node.rejectedIn];
    const path = [];
    for (let one = node; one; one = one.parent) path.unshift(one);
    const rollouts = node.rollouts ?? [];
    return [
      h("h4", {}, node.depth === 0 ? "Question" : `Step ${node.node_id}: ${node.action}${node.forced ? " (forced)" : ""}${node.cut ? " (cut at the token limit)" : ""}`),
      node.depth ? h("div", { class: "model words" }, node.text ?? "(empty)") : h("p", {}, this.tree.question),
      this.passages(node),
      table({ reward: (one) => number(one.reward), "value Q": (one) => number(one.value), "visits N": (one) => number(one.visits), outcomes: (one) => number(one.n_outcomes), judge: (one) => number(one.judge_score), iteration: (one) => number(one.iteration), tokens: (one) => number(one.output_tokens) }, [node]),
      h("p", {}, `Outcome: ${outcome(node)}.`),
      node.reasoning ? h("details", {}, h("summary", {}, "Reasoning"), h("div", { class: "words" }, node.reasoning)) : null,
      node.judge_text ? h("details", {}, h("summary", {}, "The judge's words"), h("div", { class: "words" }, node.judge_text)) : null,
      node.components?.length ? h("details", {}, h("summary", {}, "Reward components"), components(node.components)) : null,
      rollouts.length ? h("details", {}, h("summary", {}, `${rollouts.length} rollout${rollouts.length > 1 ? "s" : ""} from here`), table({ answer: (one) => one.answer ?? "(none)", EM: (one) => number(one.em), F1: (one) => number(one.f1), steps: (one) => one.steps, end: (one) => one.stop_reason }, rollouts)) : null,
      ...pairs.flatMap((pair) => [h("h4", {}, `Pair: ${pair.chosen_node === node.node_id ? "chosen" : "rejected"}`), ...whyPreferred(this.tree, pair).map((line, place) => h("p", { class: place ? null : "why" }, line)),
        h("button", { type: "button", onclick: () => this.select(this.tree.byId.get(pair.chosen_node === node.node_id ? pair.rejected_node : pair.chosen_node)) }, `Go to step ${pair.chosen_node === node.node_id ? pair.rejected_node : pair.chosen_node}`)]),
      path.length > 1 ? h("details", {}, h("summary", {}, "The whole turn up to here"), ...path.flatMap((one) => [one.depth ? h("div", { class: "model words" }, one.text ?? "") : null, one.passages ? h("div", { class: "environment" }, h("small", { class: "quiet" }, "from the environment"), ...one.passages.map((passage) => h("div", {}, h("strong", {}, passage.title), ` ${this.tree.passages[passage.id] ?? ""}`))) : null].filter(Boolean))) : null,
    ];
  },

  passages(node) {
    if (!node.passages?.length) return null;
    return h("div", {}, h("h4", {}, "Passages"), ...node.passages.map((passage) => h("details", { class: "environment" },
      h("summary", {}, `${passage.title} (score ${number(passage.score, 2)})`), h("div", { class: "words" }, this.tree.passages[passage.id] ?? "The corpus does not have this passage now."))));
  },
};

// The colour of a share of the reward range.
function shade(share) {
  const style = getComputedStyle(document.documentElement);
  const [low, middle, high] = ["--low", "--middle", "--high"].map((name) => style.getPropertyValue(name).trim());
  return share < 0.5 ? d3.interpolateRgb(low, middle)(share * 2) : d3.interpolateRgb(middle, high)(share * 2 - 1);
}

document.addEventListener("DOMContentLoaded", () => treeView.start()); // the blobs come last in the file
