// SPDX-License-Identifier: Apache-2.0

/* The page. A section whose data is missing is omitted. */

const data = JSON.parse(document.getElementById('data').textContent);

/* The benefit of a store: over the blocks that the engine did not hold. */
function rate(curve, index) {
  const blocks = curve.blocks - (curve.internal_blocks ?? 0);
  return blocks > 0 ? (curve.hits[index] - (curve.internal_hits?.[index] ?? 0)) / blocks : 0;
}

function isLimit(curve) {
  return curve.kind === 'belady' || curve.kind === 'infinite';
}

/* Colors by index among the distinct curves; equal curves share a color. */
const places = new Map();
for (const match of new Set(data.curves.map(c => c.match))) {
  const seen = [];
  for (const curve of data.curves.filter(c => c.match === match && !isLimit(c))) {
    const text = JSON.stringify([curve.capacity, curve.hits]);
    if (!seen.includes(text)) seen.push(text);
    places.set(curve, seen.indexOf(text));
  }
}

function colorOf(curve) {
  return isLimit(curve) ? 'cx' : 'c' + places.get(curve) % 8;
}

function isDashed(curve) {
  return isLimit(curve) || places.get(curve) >= 8;
}

/* Appends a section to the page. */
function section(id, title, ...children) {
  const out = h('section', {id}, h('h2', null, title), children);
  document.getElementById('main').append(out);
  return out;
}

function showHead() {
  const trace = data.trace;
  const span = (trace.last_us - trace.first_us) / 1e6;
  const facts = [
    ['Requests', count(trace.requests), span > 0 ? 'over ' + seconds(span) : 'all at one time'],
    ['Blocks', count(trace.blocks), trace.read_blocks !== trace.blocks
      ? count(trace.read_blocks) + ' looked up' : 'all looked up'],
    ['Different blocks', count(trace.distinct), percent(trace.distinct / trace.blocks, 1) + ' of them'],
    ['Longest request', count(trace.longest), 'blocks'],
  ];
  if (trace.block_bytes) {
    facts.push(['All different blocks', bytes(trace.distinct * trace.block_bytes),
      bytes(trace.block_bytes) + ' each']);
  }
  const names = [...new Set(data.curves.map(c => c.label))];
  const sizes = new Set(data.curves.flatMap(c => c.capacity));
  const list = trace.instances.filter(name => name !== '');
  document.getElementById('head').append(
    h('dl', {class: 'facts'}, facts.map(([name, value, note]) =>
      h('div', null, h('dt', null, name), h('dd', null, value, h('small', null, note))))),
    h('p', {class: 'lead', id: 'simulated'},
      `Simulated: ${names.join(', ')}; ${sizes.size} ${sizes.size === 1 ? 'capacity' : 'capacities'}.`,
      list.length > 1 && ` Instances, each with blocks of its own: ${list.slice(0, 8).join(', ')}` +
        (list.length > 8 ? ` and ${count(list.length - 8)} more.` : '.'),
      trace.internal_blocks > 0 && ` The engine itself held ${count(trace.internal_blocks)} of the blocks looked up; the hit rates are of the others.`,
      !(trace.internal_blocks > 0) && ' Which blocks the engine held itself is not known: the hit rates are of its own cache and of a store together.'),
    trace.bad_lines > 0 ? h('p', {class: 'note'},
      `${count(trace.bad_lines)} ${trace.bad_lines === 1 ? 'line' : 'lines'} of the file could not be read and were ignored.`) : '');
}

function showContents() {
  const links = [...document.querySelectorAll('main > section')].map(s =>
    h('a', {href: '#' + s.id}, s.querySelector('h2').textContent));
  if (links.length > 2) document.getElementById('head').append(h('nav', {'aria-label': 'Sections'}, links));
}

showHead();
showRates();
showTime();
showTiers();
showEconomy();
showWaits();
showLife();
showPrefixes();
showTrust();
showLimits();
showContents();
