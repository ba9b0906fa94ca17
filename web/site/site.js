// SPDX-License-Identifier: Apache-2.0
// The search of the documentation. The index is loaded as a script when the field is first used: a page that was opened as a
// file may not fetch other files.
"use strict";

const SHOWN = 25;
const AROUND = 90; // half the characters of an excerpt
const TIMES_MAX = 4; // occurrences in a text that count
const WEIGHT = {"Using Tierce": 4, "Parameters": 2, "": 2};
const root = document.documentElement.dataset.root;
const form = document.querySelector("header form");
const field = form.querySelector("input");
const results = document.getElementById("results");
let index = null; // not asked for yet
let isLoaded = false;

function loadIndex() {
  if (index !== null) return;
  index = [];
  const script = document.createElement("script");
  script.src = `${root}/search-index.js`;
  script.onload = () => {
    index = tierceIndex.sections.map(([page, heading, anchor, text]) => {
      const [address, title, group] = tierceIndex.pages[page];
      return {address, title, group, heading, anchor, text,
              low: [heading, title, text].map((part) => part.toLowerCase())};
    });
    isLoaded = true;
    show();
  };
  script.onerror = () => results.replaceChildren(element("p", "The index of the search could not be loaded."));
  document.head.append(script);
}

// How well a section matches, 0 if a word is missing. A heading weighs more than a title, and that more than the text.
function score(section, words) {
  const [heading, title, text] = section.low;
  let sum = 0;
  for (const word of words) {
    const times = Math.min(TIMES_MAX, text.split(word).length - 1);
    const found = (heading.includes(word) ? 10 : 0) + (title.includes(word) ? 4 : 0) + (times ? 1 + times : 0);
    if (found === 0) return 0;
    sum += found;
  }
  const phrase = words.join(" ");
  if (words.length > 1) sum += (heading.includes(phrase) ? 12 : 0) + (text.includes(phrase) ? 4 : 0);
  if (heading === phrase) sum += 10;
  return sum + (WEIGHT[section.group] || 0);
}

// The text with the words in marks.
function marked(text, words) {
  const out = [], low = text.toLowerCase();
  let at = 0;
  while (at < text.length) {
    let next = -1, length = 0;
    for (const word of words) {
      const where = low.indexOf(word, at);
      if (where >= 0 && (next < 0 || where < next)) [next, length] = [where, word.length];
    }
    if (next < 0) break;
    const mark = document.createElement("mark");
    mark.textContent = text.slice(next, next + length);
    out.push(text.slice(at, next), mark);
    at = next + length;
  }
  return [...out, text.slice(at)];
}

function excerpt(section, words) {
  const first = Math.min(...words.map((word) => section.low[2].indexOf(word)).filter((at) => at >= 0));
  const from = Number.isFinite(first) ? Math.max(0, first - AROUND) : 0;
  const cut = section.text.slice(from, from + 2 * AROUND);
  const whole = from ? cut.replace(/^\S*\s/, "… ") : cut;
  return from + 2 * AROUND < section.text.length ? whole.replace(/\s\S*$/, " …") : whole;
}

function element(name, ...content) {
  const made = document.createElement(name);
  made.append(...content);
  return made;
}

function show() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  results.hidden = words.length === 0;
  if (results.hidden) return;
  const found = index.map((section) => [score(section, words), section]).filter(([points]) => points > 0)
    .sort(([a], [b]) => b - a).slice(0, SHOWN);
  results.replaceChildren(...found.map(([, section]) => {
    const place = section.heading === section.title ? [] : [element("span", ` ${section.title}`)];
    const link = element("a", element("b", ...marked(section.heading, words)), ...place,
                         element("p", ...marked(excerpt(section, words), words)));
    link.href = `${root}/${section.address}${section.anchor && `#${section.anchor}`}`;
    return link;
  }));
  if (found.length === 0) results.append(element("p", isLoaded ? "Nothing was found." : "The index is being loaded …"));
}

function hide() { results.hidden = true; }

function move(event, step) {
  const links = [...results.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement) + step;
  event.preventDefault();
  (at < 0 ? field : links[Math.min(at, links.length - 1)] || field).focus();
}

form.hidden = false;
field.addEventListener("focus", () => { loadIndex(); show(); });
field.addEventListener("input", show);
form.addEventListener("submit", (event) => { event.preventDefault(); results.querySelector("a")?.click(); });
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing) { event.preventDefault(); field.focus(); }
  else if (event.key === "Escape") { hide(); field.blur(); }
  else if (!results.hidden && event.key === "ArrowDown") move(event, 1);
  else if (!results.hidden && event.key === "ArrowUp") move(event, document.activeElement === field ? 0 : -1);
});
document.addEventListener("click", (event) => {
  if (!results.contains(event.target) && event.target !== field) hide();
  else if (event.target.closest("#results a")) hide(); // the page may be the same
  if (event.target.closest("nav a")) document.getElementById("menu").checked = false;
});
document.querySelector("nav [aria-current]")?.scrollIntoView({block: "center"});
