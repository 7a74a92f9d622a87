// Page: the settings of the runs side by side: those that differ, or all.

import { ask, h, note } from "./dom.js";

let root, runs, view;

export async function render(page, allRuns, query) {
  root = page;
  runs = allRuns;
  view = { find: query.find ?? "", all: runs.length === 1 || query.all === "1" };
  const found = (await ask("settings")).runs;
  const body = h("div", { className: "settings" });
  const find = h("input", { type: "search", placeholder: "Find a setting", value: view.find, oninput: () => { view.find = find.value; draw(body, found); } });
  const every = h("input", { type: "checkbox", checked: view.all, onchange: () => { view.all = every.checked; draw(body, found); } });
  page.replaceChildren(h("div", { className: "bar" },
    runs.length > 1 && h("label", { className: "field" }, every, h("span", {}, "also those that are the same")),
    h("span", { className: "grow" }), find), body);
  draw(body, found);
}

function draw(body, found) {
  note("settings", { find: view.find, all: view.all && runs.length > 1 ? 1 : "" });
  const words = view.find.toLowerCase().split(/\s+/).filter(Boolean);
  const keys = [...new Set(found.flatMap(Object.keys))].sort()
    .filter((key) => words.every((word) => key.toLowerCase().includes(word)))
    .filter((key) => view.all || differs(found, key));
  if (!keys.length) {
    body.replaceChildren(h("p", { className: "empty" }, empty(found, words)));
    return;
  }
  body.replaceChildren(h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, "setting"), runs.map((run) => h("th", { title: run.path }, run.name)))),
    h("tbody", {}, keys.map((key) => h("tr", { className: runs.length > 1 && differs(found, key) ? "differs" : "" },
      h("td", {}, key), found.map((settings) => h("td", {}, written(settings[key]))))))));
}

function empty(found, words) {
  if (!found.some((settings) => Object.keys(settings).length)) return "No settings here: a run writes them to config.yaml.";
  return words.length ? "No setting is called that." : "The runs have the same settings.";
}

const written = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));
const differs = (found, key) => new Set(found.map((settings) => written(settings[key]))).size > 1;
