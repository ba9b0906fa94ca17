// SPDX-License-Identifier: Apache-2.0

/* The life of blocks, and the most used prefixes. */

const lifeTerms = [
  ['Reuse distance', 'The number of distinct blocks named since this one was last named, itself included: the smallest LRU cache that would still hold it.'],
  ['Time to the next use', 'From one request that names a block to the next that looks it up.'],
  ['Uses', 'How many requests look a block up.'],
  ['Lifetime', 'From the first request that names a block to the last that uses it, of blocks that are used again.'],
  ['Dead on arrival', 'Stored, and never looked up by a later request. An ideal cache would not store these blocks.'],
];

/* Bins that double: 0, 1, 2-3, 4-7, ... From the first that holds something to the last; many empty
   ones in a row are one gap. */
function binBars(histogram, print) {
  const bars = [];
  let empty = [];
  histogram.bins.forEach((value, bin) => {
    const from = bin === 0 ? 0 : 2 ** (bin - 1);
    const to = bin === 0 ? 0 : 2 ** bin - 1;
    const bar = {value, name: print(from),
      note: (to > from ? `${print(from)} to ${print(to)}` : print(from)) +
        `: ${count(value)} (${percent(value / histogram.count, 1)})`};
    if (value === 0) {
      empty.push(bar);
      return;
    }
    if (bars.length > 0) bars.push(...(empty.length > 3 ? [{value: 0, name: '\u2026', note: 'nothing'}] : empty));
    bars.push(bar);
    empty = [];
  });
  return bars;
}

function showHistogram(holder, caption, note, histogram, print, title) {
  if (!histogram || histogram.count === 0) return;
  const figure = h('div');
  holder.append(h('div', null, h('p', {class: 'caption'}, caption, h('span', null, ' \u2013 ' + note)), figure));
  barChart(figure, {label: `${caption}, ${note}`, bars: binBars(histogram, print), print: v => short(v), title});
}

function showLife() {
  const life = data.life;
  if (!life) return;
  const holder = h('div', {class: 'small'});
  section('life', 'Reuse',
    h('p', null, `Of ${count(life.uses)} blocks looked up, ${count(life.reuses)} (${percent(life.reuses / life.uses, 1)}) had been named before. `,
      life.stored > 0 && `${count(life.dead)} of ${count(life.stored)} different blocks stored (${percent(life.dead / life.stored, 1)}) were never looked up again.`),
    what(lifeTerms, 'How blocks live'), holder);
  const us = v => v === 0 ? '0' : seconds(v / 1e6, 2).replace('\u00a0', '\u202f');
  showHistogram(holder, 'Reuse distance', 'reuses by different blocks since', life.distance, v => short(v, 2), 'blocks');
  showHistogram(holder, 'Time to the next use', 'reuses by time since the last request', life.gap_us, us, 'time');
  showHistogram(holder, 'Uses', 'different blocks by uses', life.uses_of, v => short(v, 2), 'uses');
  showHistogram(holder, 'Lifetime', 'different blocks by time from first to last use', life.span_us, us, 'time');
}

/* ---- prefixes ---- */

const prefixTerms = [
  ['Row', 'A run of blocks that the same requests share: a system prompt, a document, the earlier turns of a conversation. The rows below continue it.'],
  ['Bar', 'Its requests, relative to those of the most used row of the same list.'],
  ['At depth', 'The number of blocks of a request before the run.'],
];

const ROWS_SHOWN = 12;

function prefixRow(node, most) {
  const many = n => `${count(n)} ${n === 1 ? 'block' : 'blocks'}`;
  return h('span', {class: 'row'},
    h('span', null, many(node.blocks), h('span', {class: 'faint'},
      node.depth > 0 ? ` at depth ${count(node.depth)}` : ' from the start',
      node.tokens ? `, ${short(node.tokens)} tokens` : '')),
    h('span', null, `${count(node.requests)} requests`),
    h('span', {class: 'bar', 'aria-hidden': 'true'}, svg('svg', {viewBox: '0 0 100 6', preserveAspectRatio: 'none'},
      svg('rect', {x: 0, y: 0, height: 6, width: Math.max(0.3, 100 * node.requests / most)}))));
}

function prefixBranch(node, most, open) {
  return h('li', null, node.below.length === 0
    ? h('div', {class: 'leaf'}, prefixRow(node, most))
    : h('details', {open}, h('summary', null, prefixRow(node, most)), prefixList(node.below, false)));
}

/* Siblings, the most used first; at most a few of many. */
function prefixList(nodes, open) {
  const sorted = nodes.slice().sort((a, b) => b.requests - a.requests);
  const rows = (some, first) => some.map((node, i) => prefixBranch(node, sorted[0].requests, first && i === 0));
  const rest = sorted.slice(ROWS_SHOWN);
  return h('ul', null, rows(sorted.slice(0, ROWS_SHOWN), open),
    rest.length > 0 && h('li', null, h('details', {class: 'more'},
      h('summary', null, `${count(rest.length)} more`), h('ul', null, rows(rest, false)))));
}

function showPrefixes() {
  if (!data.life || !data.life.nodes || !data.life.nodes.length) return;
  const nodes = data.life.nodes.map(node => ({...node, below: []}));
  const roots = new Map();
  for (const node of nodes) {
    if (node.parent !== null) nodes[node.parent].below.push(node);
    else roots.set(node.instance, [...(roots.get(node.instance) || []), node]);
  }
  const holder = section('prefixes', 'The hottest prefixes',
    h('p', {class: 'lead'}, `The ${count(nodes.length)} runs of blocks that most requests go through.`),
    what(prefixTerms, 'How blocks live'));
  for (const [instance, own] of roots) {
    const name = data.trace.instances[instance];
    holder.append(roots.size > 1 ? h('h3', null, name || 'without a name') : '',
      h('div', {class: 'tree'}, prefixList(own, true)));
  }
}
