// Page: the settings of the runs side by side: those that differ, or all.

import { ask, chosen, h, joined, note, written } from "./dom.js";

let root, runs, view;

export async function render(page, allRuns, query) {
  root = page;
  runs = chosen(allRuns, query);
  view = { find: query.find ?? "", all: runs.length === 1 || query.all === "1", query };
  const found = await ask("settings", { runs: joined(runs.map((run) => run.name)) });
  const body = h("div", { className: "settings" });
  const find = h("input", { type: "search", placeholder: "Find a setting", value: view.find, oninput: () => { view.find = find.value; draw(body, found); } });
  const every = h("input", { type: "checkbox", checked: view.all, onchange: () => { view.all = every.checked; draw(body, found); } });
  page.replaceChildren(h("div", { className: "bar" },
    runs.length > 1 && h("label", { className: "field" }, every, h("span", {}, "also those that are the same")),
    h("span", { className: "grow" }), find), body);
  draw(body, found);
}

function draw(body, { runs: settings, differing }) {
  const found = runs.map((run) => settings[run.name] ?? {});
  note("settings", { ...view.query, find: view.find, all: view.all && runs.length > 1 ? 1 : "" });
  const words = view.find.toLowerCase().split(/\s+/).filter(Boolean);
  const keys = [...new Set(found.flatMap(Object.keys))].sort()
    .filter((key) => words.every((word) => key.toLowerCase().includes(word)))
    .filter((key) => view.all || differing.includes(key));
  if (!keys.length) {
    body.replaceChildren(h("p", { className: "empty" }, empty(found, words)));
    return;
  }
  body.replaceChildren(h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, "setting"), runs.map((run) => h("th", { title: run.path }, run.name)))),
    h("tbody", {}, keys.map((key) => h("tr", { className: differing.includes(key) ? "differs" : "" },
      h("td", {}, key), found.map((one) => h("td", {}, written(one[key]))))))));
}

function empty(found, words) {
  if (!found.some((settings) => Object.keys(settings).length)) return "No settings here: a run writes them to config.yaml.";
  return words.length ? "No setting is called that." : "The runs have the same settings, but for their names and folders.";
}

