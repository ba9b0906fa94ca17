// SPDX-License-Identifier: Apache-2.0

/* How far the numbers can be trusted, and their general limits. */

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
      `: how much the hit rate would differ with another sample of them, with their recorded hits. ${sentence(trust.sessions_text)}`),
    rows.length > 0 ? [h('p', null, 'Caveats to the rates, with the capacities to which they apply:'), h('ul', {class: 'plain'}, rows)]
      : h('p', null, 'Every cache was full, its content was replaced, and it had avoidable misses.'));
}

function showLimits() {
  const limits = [
    'A replay uses the requests of this trace in their order. A faster cache would have changed their times and the users\u2019 next requests.',
    'Stored blocks are available at once: the replay has no transfers in flight, no failures and no long pins.',
    'Belady\u2019s line is a bound for blocks of one size, but not for window matches. It knows the future; no policy reaches it.',
  ];
  if (data.curves.some(c => c.capacity.includes(null))) limits.push('An unlimited cache starts empty and keeps everything forever.');
  if (data.tiers) limits.push('A tier without a write speed writes in no time, and its loads do not delay each other.');
  if (data.economy) {
    limits.push('Costs and times do not include queues, batches or decoding; saved GPU time has a value only if it can be used or returned.');
    limits.push('A tier is assumed to be exactly as large as the cache. Prices are those of the sliders.');
  }
  section('limits', 'What this does not say', h('ul', {class: 'plain'}, limits.map(t => h('li', null, t))));
}
