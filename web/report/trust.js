// SPDX-License-Identifier: Apache-2.0

/* How far the numbers can be trusted, and what they never say. */

function sentence(text) {
  return text === '' ? '' : text[0].toUpperCase() + text.slice(1) + '.';
}

function rangesOf(indexes, capacities) {
  const ranges = [];
  for (const i of indexes) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] === i - 1) last[1] = i;
    else ranges.push([i, i]);
  }
  const name = i => capacityName(capacities[i]);
  return ranges.map(([a, b]) => a === b ? name(a) : a === 0 && b === capacities.length - 1 ? 'all capacities' : `${name(a)}\u2013${name(b)}`).join(', ');
}

function findingRow(bit) {
  const where = new Map();
  for (const curve of data.curves.filter(c => c.findings)) {
    const hit = curve.findings.map((set, i) => set & (1 << bit) ? i : -1).filter(i => i >= 0);
    if (hit.length === 0) continue;
    const text = rangesOf(hit, curve.capacity);
    const name = curve.label + (new Set(data.curves.map(c => c.match)).size > 1 ? ` (${curve.match})` : '');
    where.set(text, [...(where.get(text) || []), name]);
  }
  if (where.size === 0) return null;
  return h('li', null, sentence(data.trust.findings[bit]) + ' ',
    h('span', {class: 'lead'}, [...where].map(([text, names]) => `${names.join(', ')}: ${text}`).join('; ') + '.'));
}

function showTrust() {
  const trust = data.trust;
  if (!trust) return;
  const rows = trust.findings.map((_, bit) => findingRow(bit)).filter(Boolean);
  section('trust', 'How far to trust it',
    trust.rounds > 0 && h('p', null, `The bands are 95\u00a0% intervals from ${count(trust.rounds)} draws of ${count(trust.sessions)} sessions` +
      (trust.clusters < trust.sessions ? ` in ${count(trust.clusters)} groups that stay together` : '') +
      `: how much the hit rate would differ had others of them come, with their hits as they were. ${sentence(trust.sessions_text)}`),
    rows.length > 0 ? [h('p', null, 'What the rates do not show, and at which capacities:'), h('ul', {class: 'plain'}, rows)]
      : h('p', null, 'Every cache was full, was renewed, and had misses to avoid.'));
}

function showLimits() {
  const limits = [
    'A replay knows the requests of this trace and their order. A faster cache would have changed when they come, and what users ask next.',
    'Blocks count as there from the moment they are stored: nothing is in flight, nothing fails, nothing is pinned for long.',
    'Belady\u2019s line is a bound for blocks of one size, and not by a window. It knows the future; no policy reaches it.',
  ];
  if (data.curves.some(c => c.capacity.includes(null))) limits.push('An unlimited cache keeps everything for ever, from an empty start.');
  if (data.tiers) limits.push('Writes to a tier take no time here, and loads do not hinder each other.');
  if (data.economy) {
    limits.push('Money and seconds know no queues, batches or decoding; saved GPU time counts only if it can be used or given back.');
    limits.push('A tier is bought as large as the cache and no larger. Prices are those of the sliders.');
  }
  section('limits', 'What this does not say', h('ul', {class: 'plain'}, limits.map(t => h('li', null, t))));
}
