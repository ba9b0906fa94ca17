// SPDX-License-Identifier: Apache-2.0

/* Hits by capacity: the plot, its values at one capacity, and the choice of the axis. */

const rateTerms = [
  ['Hit rate', 'The share of the looked-up blocks that a cache with this policy and capacity held when the request began. Blocks that the engine held itself are not counted, if the trace marks them.'],
  ['Match', 'prefix: the leading blocks that are there; any: those that are there anywhere; stream: what a plain cache simulator counts; window:N: the leading part whose last N blocks are there.'],
  ['Belady', 'A cache that knows the future and keeps the blocks that are needed soonest: an upper bound for all policies, except with a window match, which needs only the end of a chain.'],
  ['Headroom', 'The difference between the best other policy and Belady: the possible gain of a better policy at this capacity.'],
  ['rev, fwd', 'The order in which a request touches its blocks. Production uses rev: the last block first.'],
];

function unitAxes() {
  if (data.unit === 'bytes') return [['bytes', 'bytes', c => c, v => bytes(v), 'capacity', true]];
  const axes = [['blocks', 'blocks', c => c, v => short(v), 'capacity in blocks']];
  if (data.trace.block_bytes) {
    axes.push(['bytes', 'GiB', c => c * data.trace.block_bytes / 2 ** 30, v => trimmed(v, 3), 'capacity in GiB']);
  }
  const valued = data.curves.flatMap(valuedRows).find(row => row.bytes > 0);
  if (valued) {
    const each = valued.bytes / valued.capacity;
    axes.push(['money', '$ an hour', c => storageCost(data.economy, usualSetting(data.economy), c * each, 0),
      v => '$' + trimmed(v, 3), `what the capacity costs an hour in ${data.economy.storage.name}, its wear apart`]);
  }
  return axes;
}

/* A capacity for display: in its unit, or in both units if both are known. */
function capacityName(capacity) {
  return capacity === null ? 'unlimited' : data.unit === 'bytes' ? bytes(capacity) : count(capacity);
}

function capacityText(capacity) {
  if (capacity === null) return 'without a limit';
  if (data.unit === 'bytes') return bytes(capacity);
  const size = data.trace.block_bytes ? `, ${bytes(capacity * data.trace.block_bytes)}` : '';
  return `${count(capacity)} ${capacity === 1 ? 'block' : 'blocks'}${size}`;
}

/* The axis of a chart without a choice of units. */
function capacityAxis() {
  const [, , , print, title, binary] = unitAxes()[0];
  return {log: true, print, title, binary, say: c => 'At ' + capacityText(c)};
}

/* [capacity, best of the others, Belady] for capacities that have all three. */
function headroomOf(curves) {
  const bound = curves.find(c => c.kind === 'belady');
  if (!bound || bound.match.startsWith('window:')) return [];
  return bound.capacity.map((capacity, i) => {
    const others = curves.filter(c => !isLimit(c)).map(c => [c, c.capacity.indexOf(capacity)])
      .filter(([, at]) => at >= 0).map(([c, at]) => rate(c, at));
    return [capacity, others.length ? Math.max(...others) : null, rate(bound, i)];
  }).filter(([capacity, best]) => capacity !== null && best !== null);
}

function rateSeries(curves, convert) {
  return curves.map(curve => {
    const flat = curve.capacity[0] === null;
    const points = curve.capacity.map((c, i) => [flat ? 0 : convert(c), rate(curve, i), c]).filter(p => flat || p[2] !== null);
    return {name: curve.label, color: colorOf(curve), dashed: isDashed(curve), flat,
      points: points.map(([x, y]) => [x, y]),
      exact: curve.exact ? curve.exact.capacity.map((c, i) => [convert(c), curve.exact.hits[i] / Math.max(1, curve.blocks)]) : null,
      band: curve.low && curve.high && !flat && !isLimit(curve)
        ? curve.capacity.map((c, i) => [convert(c), curve.low[i], curve.high[i]]) : null};
  });
}

function policyCell(curve) {
  return h('th', {class: 'left', scope: 'row'},
    h('span', {class: `key ${colorOf(curve)}${isDashed(curve) ? ' dashed' : ''}`, 'aria-hidden': 'true'}), curve.label);
}

function showReadout(holder, curves, capacity) {
  const rows = curves.map(curve => {
    const at = curve.capacity[0] === null ? 0 : curve.capacity.indexOf(capacity);
    return at < 0 ? null : {curve, at, rate: rate(curve, at)};
  }).filter(Boolean).sort((a, b) => b.rate - a.rate);
  const banded = rows.some(r => r.curve.low);
  holder.replaceChildren(
    h('p', {class: 'where'}, 'At ' + capacityText(capacity)),
    h('table', null,
      h('thead', null, h('tr', null, h('th', {class: 'left', scope: 'col'}, 'Policy'),
        h('th', {scope: 'col', title: 'Share of the blocks looked up'}, 'Hit rate'),
        banded && h('th', {scope: 'col', title: '95 % interval over samples of the sessions'}, '95 %'),
        h('th', {scope: 'col', title: 'Blocks that hit'}, 'Hits'))),
      h('tbody', null, rows.map(({curve, at, rate: share}) => h('tr', null,
        policyCell(curve),
        h('td', null, percent(share)),
        banded && h('td', null, curve.low ? `${(100 * curve.low[at]).toFixed(1)}\u2013${(100 * curve.high[at]).toFixed(1)}` : ''),
        h('td', null, count(curve.hits[at])))))));
}

function markTableRow(match, capacity) {
  for (const table of document.querySelectorAll('table.rates')) {
    table.parentElement.hidden = table.dataset.match !== match;
  }
  for (const row of document.querySelectorAll('table.rates tbody tr')) {
    row.classList.toggle('here', row.closest('table').dataset.match === match && row.dataset.capacity === String(capacity));
  }
}

function showRates() {
  const matches = [...new Set(data.curves.map(c => c.match))];
  const axes = unitAxes();
  const state = {match: matches[0], axis: axes[0], log: true, capacity: null};
  const figure = h('div');
  const readout = h('div', {class: 'readout', 'aria-live': 'polite'});
  let chart = null;
  function ofMatch() {
    return data.curves.filter(c => c.match === state.match);
  }
  function choose(capacity) {
    state.capacity = capacity;
    showReadout(readout, ofMatch(), capacity);
    markTableRow(state.match, capacity);
  }
  function spec() {
    const [, , convert, print, title, binary] = state.axis;
    const curves = ofMatch();
    const sizes = [...new Set(curves.flatMap(c => c.capacity).filter(c => c !== null))].sort((a, b) => a - b);
    const back = new Map(sizes.map(c => [convert(c), c]));
    if (!sizes.includes(state.capacity)) state.capacity = sizes[Math.floor(sizes.length * 0.6)] ?? null;
    return {label: `Hit rate by capacity, match ${state.match}`,
      x: {log: state.log, print, title, binary}, y: {most: 1, print: v => percent(v, v < 0.01 && v > 0 ? 1 : 0), title: 'hit rate'},
      series: rateSeries(curves, convert),
      headroom: headroomOf(curves).map(([c, low, high]) => [convert(c), low, high]),
      mark: state.capacity === null ? null : convert(state.capacity), pick: x => choose(back.get(x))};
  }
  function redraw(change) {
    Object.assign(state, change);
    const next = spec();
    if (chart) chart.set(next);
    else chart = lineChart(figure, next);
    choose(state.capacity);
  }
  const banded = data.curves.some(curve => curve.low);
  document.getElementById('rates-figure').append(
    banded ? h('p', {class: 'lead'}, 'Bands are 95\u00a0% intervals over the sessions of the trace.') : '',
    what(rateTerms, 'The table and the curve'),
    h('div', {class: 'controls'},
      matches.length > 1 && choice('Match', matches.map(m => [m, m]), state.match, match => redraw({match})),
      axes.length > 1 && choice('Capacity in', axes.map(a => [a[0], a[1]]), 'blocks',
        name => redraw({axis: axes.find(a => a[0] === name)})),
      choice('Axis', [['log', 'log'], ['linear', 'linear']], 'log', v => redraw({log: v === 'log'}))),
    h('div', {class: 'split'}, figure, readout));
  redraw({});
}
