// Helpers of the page. Everything that comes from data is inserted as text, never as HTML.
"use strict";

function data(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

// Creates an element: h("p", {class: "quiet"}, "text", otherElement, null).
function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => child));
  return element;
}

const unpacked = new Map();

// Resolves to the rows of a blob (see report/trees.py).
function blob(id) {
  if (!unpacked.has(id)) {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    unpacked.set(id, new Response(stream).json());
  }
  return unpacked.get(id);
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(digits).replace(/\.?0+$/, "");
}

function percent(value) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(1);
}

// A table of rows (objects). `columns` maps heading to a function of the row.
function table(columns, rows) {
  const numeric = (value) => typeof value === "number";
  const body = rows.map((row) => Object.values(columns).map((cell) => cell(row)));
  const isNumber = Object.keys(columns).map((_, column) => body.every((cells) => numeric(cells[column]) || /^[–\d.,+−-]*$/.test(cells[column] ?? "")));
  const cells = (kind, values) => h("tr", {}, ...values.map((value, column) =>
    h(kind, { class: isNumber[column] ? "number" : null, scope: kind === "th" ? "col" : null }, numeric(value) ? number(value) : String(value ?? "–"))));
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "table" },
    h("table", {}, h("thead", {}, cells("th", Object.keys(columns))), h("tbody", {}, ...body.map((values) => cells("td", values)))));
}

// Fills a list with at most 200 of the rows that match, as buttons.
function fillList(list, rows, label, onpick) {
  const shown = rows.slice(0, 200);
  list.replaceChildren(...shown.map((row) => {
    const button = h("button", { type: "button", onclick: () => onpick(row) }, ...label(row));
    button.row = row;
    return h("li", {}, button);
  }));
  return rows.length > shown.length ? `${number(rows.length)} match, the first ${shown.length} are listed` : `${number(rows.length)} match`;
}

function markCurrent(list, row) {
  for (const button of list.querySelectorAll("button")) {
    if (button.row === row) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

function messages(rows) {
  return rows.map((one) => h("div", { class: one.role === "assistant" ? "model" : "environment" },
    h("small", { class: "quiet" }, one.role), h("div", { class: "words" }, one.content)));
}

function components(rows) {
  return rows && rows.length ? table({ component: (row) => row.name, value: (row) => row.value }, rows) : null;
}
