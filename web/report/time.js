// SPDX-License-Identifier: Apache-2.0

/* The results of a few caches over the time of the trace. */

const timeTerms = [
  ['Slice', 'The duration of the trace is divided into equal slices; each point is one slice.'],
  ['Used', 'The use of the cache after the last request of the slice, as a share of its capacity.'],
  ['Left', 'Blocks that were evicted or expired in the slice.'],
];

function clockAxis(slice, slices) {
  const span = slice * slices;
  const [unit, name] = span < 300 ? [1, 'seconds'] : span < 3 * 3600 ? [60, 'minutes']
    : span < 3 * 86400 ? [3600, 'hours'] : [86400, 'days'];
  return {unit, title: `${name} since the first request`, print: v => trimmed(v, 4), least: 0, log: false,
    say: v => `At ${trimmed(v, 3)} ${name}`};
}

/* As its curve has it. */
function styleOf(line, match) {
  const curve = data.curves.find(c => c.policy === line.policy && c.match === match);
  return curve ? {color: colorOf(curve), dashed: isDashed(curve)} : {color: 'cf'};
}

function showTime() {
  const timeline = data.timeline;
  if (!timeline || !timeline.lines.length) return;
  const slice = timeline.slice_us / 1e6;
  const x = clockAxis(slice, timeline.slices);
  const at = i => (i + 0.5) * slice / x.unit;
  const limited = timeline.lines.find(line => line.capacity !== null);
  const holder = h('div', {class: 'small'});
  section('time', 'Over time',
    h('p', {class: 'lead'}, `${limited ? 'In caches of ' + capacityText(limited.capacity) + ', match' : 'Match'} ${timeline.match}, in slices of ${seconds(slice)}.`),
    what(timeTerms, 'How blocks live'), holder);
  function plot(caption, values, y) {
    smallChart(holder, caption, {x, y,
      series: timeline.lines.map(line => ({name: line.policy, ...styleOf(line, timeline.match), dots: false,
        points: line.blocks.map((_, k) => [at(k), values(line, k)]).filter(p => p[1] !== null)}))});
  }
  plot('Hit rate', (line, k) => line.blocks[k] > 0 ? line.hits[k] / line.blocks[k] : null,
    {most: 1, print: v => percent(v, 0), say: v => percent(v, 1)});
  if (limited) {
    plot('Used, of the capacity', (line, k) => line.capacity === null ? null : line.used[k] / line.capacity,
      {most: 1, print: v => percent(v, 0)});
  }
  plot('Blocks that were evicted or expired in a slice', (line, k) => line.evicted[k] + line.expired[k], {print: v => short(v)});
  smallChart(holder, 'Blocks looked up in a slice', {names: false, x, y: {print: v => short(v)},
    series: [{name: 'blocks', color: 'cf', dots: false, points: timeline.lines[0].blocks.map((n, k) => [at(k), n])}]});
}
