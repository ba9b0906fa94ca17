// SPDX-License-Identifier: Apache-2.0

/* A hierarchy of tiers. */

const tierTerms = [
  ['Hits of a tier', 'Blocks that this tier had and no faster one. The stacked bar shows the hits of all tiers as shares of the looked-up blocks.'],
  ['Hit rate of a tier', 'Its hits divided by the blocks that it was asked for: those that the faster tiers did not have.'],
  ['Load time', 'Latency of the tier plus bytes divided by its bandwidth, plus the wait for earlier operations if the tier has a write speed. A request waits for the slowest of its tiers.'],
  ['Busy', 'Time of the reads or writes at the bandwidth of the tier, as a share of the duration of the trace. Above 100\u00a0% the tier cannot keep up.'],
  ['Worn out in', 'The time until the writes reach the endurance of the device, at the rate of the trace.'],
];

function stackBar(parts, total) {
  let x = 0;
  return h('div', {class: 'stack', role: 'img', 'aria-label': parts.map(p => `${p.name} ${percent(p.value / total, 1)}`).join(', ')},
    svg('svg', {viewBox: '0 0 1000 28', preserveAspectRatio: 'none'}, parts.map(part => {
      const width = 1000 * part.value / total;
      const rect = svg('rect', {class: part.color, x, y: 0, width, height: 28}, svg('title', null, `${part.name}: ${count(part.value)}`));
      x += width;
      return rect;
    })));
}

function tierRow(tier, i, block) {
  const span = (data.trace.last_us - data.trace.first_us) / 1e6;
  const busy = s => s > 0 && span > 0 ? percent(s / span, 1) : '\u2013';
  const size = tier.capacity === null ? 'unlimited' : tier.in_bytes ? bytes(tier.capacity)
    : block ? bytes(tier.capacity * block) : count(tier.capacity) + ' blocks';
  const full = tier.capacity === null ? '\u2013' : percent(tier.used_max / tier.capacity, 0);
  return h('tr', null,
    h('th', {class: 'left', scope: 'row'}, h('span', {class: 'key c' + i % 8, 'aria-hidden': 'true'}), tier.name),
    [size, full, count(tier.hits), percent(tier.asked > 0 ? tier.hits / tier.asked : 0, 1),
      tier.read_bytes ? bytes(tier.read_bytes) : count(tier.read_blocks) + ' blocks',
      tier.written_bytes ? bytes(tier.written_bytes) : count(tier.written_blocks) + ' blocks',
      count(tier.evicted + tier.expired), busy(tier.read_s), busy(tier.write_s),
      tier.worn > 0 ? seconds(span / tier.worn) : '\u2013'].map(text => h('td', null, text)));
}

function showTiers() {
  const run = data.tiers;
  if (!run || !run.tiers.length) return;
  const parts = [...run.tiers.map((tier, i) => ({name: tier.name, value: tier.hits, color: 'c' + i % 8})),
    {name: 'computed', value: run.blocks - run.hits, color: 'cwash'}].filter(p => p.value > 0);
  const heads = ['Capacity', 'Full at most', 'Hits', 'Hit rate', 'Read', 'Written', 'Left', 'Busy reading', 'Busy writing', 'Worn out in'];
  section('tiers', 'Tiers',
    h('p', {class: 'lead'}, `Together ${percent(run.hits / run.blocks)} of ${count(run.blocks)} blocks looked up; writes: ${run.writes}, promotion: ${run.promote}.`),
    what(tierTerms, 'Tiers behind each other'), stackBar(parts, run.blocks),
    h('ul', {class: 'legend'}, parts.map(p => h('li', null, h('span', {class: 'key ' + p.color, 'aria-hidden': 'true'}),
      `${p.name} ${percent(p.value / run.blocks, 1)}`))),
    h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Tiers'}, h('table', null,
      h('thead', null, h('tr', null, h('th', {class: 'left', scope: 'col'}, 'Tier'), heads.map(t => h('th', {scope: 'col'}, t)))),
      h('tbody', null, run.tiers.map((tier, i) => tierRow(tier, i, data.trace.block_bytes))))),
    run.load && run.load.loads > 0 && h('p', null, `${count(run.load.loads)} requests load something, for ${seconds(run.load.mean_s)} on average; ` +
      `half of them within ${seconds(run.load.p50_s)}, 90\u00a0% within ${seconds(run.load.p90_s)}, 99\u00a0% within ${seconds(run.load.p99_s)}.`),
    run.tiers.some(tier => tier.waits > 0) && h('p', {class: 'note'}, run.tiers.filter(tier => tier.waits > 0).map(tier =>
      `${count(tier.waits)} of ${count(tier.loads)} loads waited for ${tier.name}, ${seconds(tier.wait_s)} in all; its queue was ${seconds(tier.queue_max_s)} at most.`).join(' ')),
    run.failed > 0 && h('p', {class: 'note'}, `${count(run.failed)} hits could not be loaded: no room in the first tier.`));
}
