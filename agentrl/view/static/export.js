// A conversation as one HTML file: no script, no server. What pointing at a token shows is the token's title there.

import { h } from "./dom.js";
import { Conversation } from "./conversation.js";

const STYLES = ["style.css", "pages.css"];
const FREE = "html, body { height: auto; } body { display: block; } .conversation { max-width: 1100px; margin: auto; overflow: visible; }";

export async function save(record, mode, head) {
  const text = await page(record, mode, head);
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type: "text/html" })), download: name(record) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function page(record, mode, head) {
  const styles = await Promise.all(STYLES.map(async (file) => (await fetch(file)).text()));
  const shown = new Conversation(record, mode, head, { whole: true });
  shown.nameTokens();
  const html = h("html", { lang: "en", data: { theme: document.documentElement.dataset.theme } },
    h("head", {}, h("meta", { charset: "utf-8" }), h("title", {}, record.key), h("style", {}, [...styles, FREE].join("\n"))),
    h("body", {}, shown.element));
  return `<!doctype html>\n${html.outerHTML}\n`;
}

const name = (record) => `${record.key.replace(/[^\w.-]+/g, "-")}.html`;
