// SPDX-License-Identifier: Apache-2.0

/* What a few caches did over the time of the trace. */

const timeTerms = [
  ['Slice', 'The time of the trace is cut into equal slices; each point is one of them.'],
  ['Used', 'What the cache holds after the last request of the slice, as a share of its capacity.'],
  ['Evicted', 'Blocks that left in the slice to make room, or because their time had come.'],
];

function clockAxis(slice, slices) {
  const span = slice * slices;
  const [unit, name] = span < 300 ? [1, 'seconds'] : span < 3 * 3600 ? [60, 'minutes']
    : span < 3 * 86400 ? [3600, 'hours'] : [86400, 'days'];
  return {unit, title: `${name} since the first request`, print: v => trimmed(v, 4)};
}

function showTime() {
  const timeline = data.timeline;
  if (!timeline || !timeline.lines.length) return;
  const slice = timeline.slice_us / 1e6;
  const {unit, title, print} = clockAxis(slice, timeline.slices);
  const at = i => (i + 0.5) * slice / unit;
  const holder = h('div', {class: 'small'});
  section('time', 'Over time',
    h('p', {class: 'lead'}, `Match ${timeline.match}, in slices of ${seconds(slice)}.`),
    what(timeTerms, 'Over time'), holder);
  function plot(caption, values, y) {
    const figure = h('div');
    holder.append(h('div', null, h('p', {class: 'caption'}, caption), figure));
    lineChart(figure, {label: caption, low: 210, high: 260, x: {log: false, print, title, least: 0}, y,
      series: timeline.lines.map((line, i) => ({name: line.label, color: 'c' + i % 8, dashed: i >= 8, dots: false,
        points: line.blocks.map((_, k) => [at(k), values(line, k)]).filter(p => p[1] !== null)}))});
  }
  plot('Hit rate', (line, k) => line.blocks[k] > 0 ? line.hits[k] / line.blocks[k] : null,
    {most: 1, print: v => percent(v, 0)});
  if (timeline.lines.some(line => line.capacity !== null)) {
    plot('Used, of the capacity', (line, k) => line.capacity === null ? null : line.used[k] / line.capacity,
      {most: 1, print: v => percent(v, 0)});
  }
  plot('Blocks evicted in a slice', (line, k) => line.evicted[k], {print: v => short(v)});
  const busy = h('div');
  holder.append(h('div', null, h('p', {class: 'caption'}, 'Blocks looked up in a slice'), busy));
  lineChart(busy, {label: 'Blocks looked up in a slice', low: 210, high: 260, names: false,
    x: {log: false, print, title, least: 0}, y: {print: v => short(v)},
    series: [{name: 'blocks', color: 'cf', dots: false, points: timeline.lines[0].blocks.map((n, k) => [at(k), n])}]});
}
