// SPDX-License-Identifier: Apache-2.0
'use strict';

/* Elements and numbers. Data of a trace is only inserted as text nodes: these files never use
 * innerHTML. */

/* h('p', {class: 'lead'}, 'text', child, ...): attributes, and `on` for listeners; null is left out. */
function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value === true) {
      element.setAttribute(name, '');
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value);
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

const grouped = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});

function count(value) {
  return grouped.format(value);
}

function scaled(value, base, units, digits) {
  let unit = 0;
  let size = Math.abs(value);
  while (size >= base - 0.5 && unit + 1 < units.length) {
    size /= base;
    unit++;
  }
  const text = trimmed(size, digits || 3);
  return (value < 0 ? '\u2212' : '') + text + (units[unit] ? '\u00a0' + units[unit] : '');
}

/* So many significant digits, without trailing zeros behind the point, never an exponent. */
function trimmed(value, digits) {
  if (value === 0 || !Number.isFinite(value)) return Number.isFinite(value) ? '0' : '\u2013';
  const places = Math.max(0, Math.min(9, digits - 1 - Math.floor(Math.log10(Math.abs(value)))));
  return new Intl.NumberFormat('en-US', {maximumFractionDigits: places}).format(value);
}

function short(value, digits) {
  return scaled(value, 1000, ['', 'k', 'M', 'G', 'T', 'P'], digits).replace('\u00a0', '');
}

function bytes(value) {
  return scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB']);
}

function percent(share, places) {
  return share === null || !Number.isFinite(share) ? '\u2013'
    : (100 * share).toFixed(places === undefined ? 2 : places) + '\u00a0%';
}

function seconds(value, digits = 3) {
  if (!Number.isFinite(value)) return '\u2013';
  const size = Math.abs(value);
  if (size === 0) return '0\u00a0s';
  if (size < 1e-3) return trimmed(value * 1e6, digits) + '\u00a0\u00b5s';
  if (size < 1) return trimmed(value * 1e3, digits) + '\u00a0ms';
  if (size < 120) return trimmed(value, digits) + '\u00a0s';
  if (size < 7200) return trimmed(value / 60, digits) + '\u00a0min';
  if (size < 172800) return trimmed(value / 3600, digits) + '\u00a0h';
  return trimmed(value / 86400, digits) + '\u00a0d';
}

function dollars(value) {
  if (!Number.isFinite(value)) return '\u2013';
  const size = Math.abs(value);
  const text = size >= 1000 ? count(size) : size.toFixed(2);
  return (value < 0 ? '\u2212$' : '$') + text;
}

/* A group of radio buttons; calls `change` with the value that was chosen. */
let groups = 0;

function choice(title, options, chosen, change) {
  const name = `choice-${++groups}`;
  return h('fieldset', null, h('legend', null, title), options.map(([value, text]) =>
    h('label', null,
      h('input', {type: 'radio', name, value, checked: value === chosen,
        on: {change: () => change(value)}}),
      h('span', null, text))));
}

/* "What is this?": terms and what they mean. */
function what(terms, where) {
  return h('details', {class: 'what'}, h('summary', null, 'What is this?'),
    h('dl', null, terms.map(([term, meaning]) => [h('dt', null, term), h('dd', null, meaning)]),
      h('dd', {class: 'unit'}, `More: docs/using/optimizer.md, \u201c${where}\u201d`)));
}
