// The pairs: a list, and one pair side by side.
"use strict";

const pairView = {
  index: data("pair-index"),

  start() {
    if (!this.index.length) return;
    const actions = document.getElementById("pair-action");
    actions.append(...[...new Set(this.index.map((row) => row.chosen_action))].sort().map((action) => h("option", {}, action)));
    for (const id of ["pair-search", "pair-action"]) document.getElementById(id).addEventListener("input", () => this.list());
    document.querySelector("#pairs form").addEventListener("submit", (event) => event.preventDefault());
    this.list();
    this.open(this.index[0]);
  },

  list() {
    const text = document.getElementById("pair-search").value.toLowerCase(), action = document.getElementById("pair-action").value;
    const rows = this.index.filter((row) => row.question.toLowerCase().includes(text) && (!action || row.chosen_action === action));
    const list = document.getElementById("pair-list");
    const label = (row) => [row.question, h("small", {}, `${row.chosen_action} · depth ${row.depth} · gap ${number(row.reward_gap)}`)];
    document.getElementById("pair-count").textContent = fillList(list, rows, label, (row) => this.open(row));
    markCurrent(list, this.row);
  },

  async open(row) {
    this.row = row;
    markCurrent(document.getElementById("pair-list"), row);
    const pair = (await blob(`pairs-${row.blob}`))[row.place];
    if (this.row !== row) return;  // another one was opened meanwhile
    const tree = treeView.index.find((one) => one.tree === pair.tree_id);
    document.getElementById("pair").replaceChildren(
      h("h3", {}, pair.question), h("p", {}, `Gold answer: ${pair.answers.join(" | ") || "none"}`),
      h("div", { class: "sides" }, this.side("chosen", "✓ Chosen", pair), this.side("rejected", "✗ Rejected", pair)),
      h("p", { class: "why" }, `Gap ${number(pair.reward_gap)}, at depth ${pair.depth}.`),
      tree ? h("button", { type: "button", onclick: () => { treeView.open(tree, true, pair.chosen_node); document.getElementById("trees").scrollIntoView(); } }, "Show in the tree") : "",
      h("details", { open: "" }, h("summary", {}, "Prompt"), ...messages(pair.prompt)));
  },

  side(side, title, pair) {
    return h("div", { class: `side ${side}` }, h("h4", {}, `${title}: ${pair[`${side}_action`]}`),
      h("div", { class: "words" }, pair[side].map((one) => one.content).join("\n")),
      h("p", { class: "quiet" }, `reward ${number(pair[`${side}_reward`])} from ${number(pair[`${side}_outcomes`])} outcomes`), components(pair[`${side}_components`]) ?? "");
  },
};

document.addEventListener("DOMContentLoaded", () => pairView.start());
