// SPDX-License-Identifier: Apache-2.0

/* Tables, pairs and plots that are updated with every answer of the manager. Its data is only
 * inserted as text nodes. */

/* Columns: {head, cell(row), left, wide}. The first is the row's name. On a phone each cell says its
   column. */
function rowsTable(label, columns, rows) {
  return h('table', {class: 'rows', 'aria-label': label},
    h('thead', null, h('tr', null, columns.map((c, i) =>
      h('th', {scope: 'col', class: i === 0 || c.left ? 'left' : null}, c.head)))),
    h('tbody', null, rows.map(row => h('tr', null, columns.map((c, i) => i === 0
      ? h('th', {scope: 'row', class: 'name'}, c.cell(row))
      : h('td', {class: c.wide ? 'left wide' : c.left ? 'left' : null, 'data-head': c.head}, h('span', null, c.cell(row))))))));
}

function pairs(entries) {
  return h('dl', {class: 'pair'}, entries.filter(Boolean).map(([term, value]) =>
    h('div', null, h('dt', null, term), h('dd', null, value))));
}

/* The content of a section below its heading. */
function setSection(id, ...children) {
  const section = document.getElementById(id);
  section.replaceChildren(section.firstElementChild, ...children.flat().filter(Boolean));
}

function kept(group) {
  return group.serving_bytes + group.writing_bytes + group.deleting_bytes;
}

/* Bytes by state in a bar of `room` bytes, with a line at the watermark. */
const STATES = [['serving', 'c0'], ['writing', 'c2'], ['deleting', 'c1']];

function meter(of, room, mark) {
  const whole = Math.max(room, kept(of), 1);
  let from = 0;
  const parts = STATES.map(([state, color]) => {
    const width = 1000 * of[`${state}_bytes`] / whole;
    const part = svg('g', {class: color}, svg('rect', {class: 'part', x: from, y: 0, width, height: 14}));
    from += width;
    return part;
  });
  const at = 1000 * mark / whole;
  return svg('svg', {class: 'meter', viewBox: '0 0 1000 14', preserveAspectRatio: 'none', role: 'img',
    'aria-label': `${bytes(kept(of))} of ${bytes(room)} in use`},
  svg('rect', {class: 'room', x: 0, y: 0, width: 1000, height: 14}), parts,
  mark > 0 && svg('line', {class: 'limit', x1: at, x2: at, y1: 0, y2: 14, 'vector-effect': 'non-scaling-stroke'}));
}

/* The same with its numbers above; null: no quota of its own, so there is nothing to compare
 * with. */
function meterLine(name, of, quota, mark) {
  return h('div', {class: 'measure'}, h('p', null, h('span', null, name), h('span', null, bytes(kept(of)),
    quota > 0 && [h('small', null, ` of ${bytes(quota)}`), ` ${percent(kept(of) / quota, 1)}`])),
  quota > 0 && meter(of, quota, mark));
}

function stateKey(of) {
  return h('ul', {class: 'legend'}, STATES.map(([state, color]) => h('li', null,
    h('span', {class: `key ${color}`}), `${state} `, h('strong', null, bytes(of[`${state}_bytes`])))),
  h('li', null, h('span', {class: 'tick'}), 'watermark'));
}

/* A plot over the last while. set(series, newest): points are [second of the manager's clock,
   value]; the axis counts back from the newest sample, and the cursor stays at its second. */
function livePlot(caption, y) {
  const figure = h('div');
  const said = h('p', {class: 'said', 'aria-live': 'polite'}, '\u00a0');
  let chart = null;
  let spec = null;
  let marked = null;
  function say() {
    const values = spec.series.map(line => [line, line.points.find(p => p[2] === marked)]).filter(v => v[1]);
    said.replaceChildren(values.length === 0 ? '\u00a0' : `${new Date(1000 * marked).toLocaleTimeString('en-GB')}: `,
      values.map(([line, point]) => `${line.name} ${(y.say || y.print)(point[1])}`).join('; '));
  }
  function pick(x) {
    spec.mark = x;
    marked = spec.series.flatMap(line => line.points).find(p => p[0] === x)[2];
    say();
  }
  return {element: h('div', {class: 'plot'}, h('p', {class: 'caption'}, caption), figure, said), set(series, newest) {
    const times = series.flatMap(line => line.flat ? [] : line.points.map(p => p[0]));
    const [unit, word] = newest - Math.min(newest, ...times) < 150 ? [1, 'seconds'] : [60, 'minutes'];
    const place = at => (at - newest) / unit;
    spec = {label: caption, low: 200, high: 240, y, pick, mark: times.includes(marked) ? place(marked) : null,
      x: {log: false, title: `${word} ago`, print: v => v === 0 ? 'now' : trimmed(-v, 3)},
      series: series.map(line => ({dots: false, ...line,
        points: line.points.map(([at, value]) => [line.flat ? at : place(at), value, at])}))};
    if (chart) chart.set(spec);
    else chart = lineChart(figure, spec);
    if (spec.mark === null) marked = null;
    say();
  }};
}
