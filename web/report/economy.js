// SPDX-License-Identifier: Apache-2.0

/* From hits to money, by the formulas of src/optimizer/analysis/economy.h; here because they answer while a
   slider moves. A setting is {price, mfu, storage, years, scale}: dollars an hour of a GPU, the
   share of its peak that prefill reaches, dollars a GB (10^9 bytes) of the tier, years until it is
   replaced, and how many times as many requests an hour as in the trace. */

const HOURS_PER_YEAR = 8766;

function usualSetting(economy) {
  return {price: economy.gpu.price.value, mfu: economy.gpu.mfu.value, storage: economy.storage.price.value,
    years: economy.storage.years.value, scale: 1};
}

function storageCost(economy, setting, size, written) {
  if (!(size > 0)) return 0;
  let hours = setting.years * HOURS_PER_YEAR;
  const writes = economy.storage.writes.value;
  if (writes > 0 && written > 0) hours = Math.min(hours, writes * size / written);
  return size / 1e9 * setting.storage / hours;
}

/* One row: {saved_flops, bytes, written}, as in the trace. */
function worth(economy, setting, row) {
  const gpuSeconds = row.saved_flops / (setting.mfu * economy.peak_flops);
  const gpus = gpuSeconds * setting.scale / (economy.span_hours * 3600);
  const saved = gpus * setting.price;
  const cost = storageCost(economy, setting, row.bytes, row.written * setting.scale);
  return {gpus, saved, cost, net: saved - cost};
}

/* Converts a row from the report's own setting to another one. */
function breakEven(economy, setting, row) {
  const usual = usualSetting(economy);
  const of = name => setting[name] / usual[name];
  return {bandwidth: row.bandwidth * of('mfu'),
    residency: row.residency * of('price') / of('mfu') / of('storage') * of('years')};
}

/* The rows of a curve that have a value: those with a limit. */
function valuedRows(curve) {
  const e = curve.economy;
  if (!e) return [];
  return curve.capacity.map((capacity, i) => ({capacity, at: i, saved_flops: e.saved_flops[i],
    hit_tokens: e.hit_tokens[i], bytes: e.bytes[i], written: e.written[i], bandwidth: e.bandwidth[i],
    residency: e.residency[i]})).filter(row => row.capacity !== null && row.saved_flops !== null);
}

const moneyTerms = [
  ['Saved', 'GPU time that hits save, as GPUs at the price of the slider: FLOPs of the hit prefixes, divided by the speed that the GPU reaches.'],
  ['Cost', 'Hourly cost of a tier as large as the cache: its price divided by its lifetime, which is shorter if the writes exceed its endurance.'],
  ['Net', 'Saved less cost.'],
  ['Pays most at', 'The simulated capacity with the largest net value. If that is negative, no capacity pays.'],
  ['Break-even bandwidth', 'The bandwidth above which loading a hit is faster than computing it, in bytes per second and GPU.'],
  ['Break-even residency', 'The time after which keeping an unused token costs as much as computing it again.'],
  ['MFU', 'Model FLOPs utilisation: the share of its peak that a GPU reaches in prefill.'],
];

function sliders(economy, setting, change) {
  const usual = usualSetting(economy);
  const rows = [
    ['price', 'GPU price', usual.price, v => `${dollars(v)}/h`, economy.gpu.price.mark, 0.1, 10],
    ['mfu', 'MFU', usual.mfu, v => percent(v, 0), economy.gpu.mfu.mark, null, null],
    ['storage', `Price of ${economy.storage.name}`, usual.storage, v => `$${trimmed(v, 3)}/GB`, economy.storage.price.mark, 0.1, 10],
    ['years', 'Replaced after', usual.years, v => `${trimmed(v, 2)} years`, economy.storage.years.mark, 0.25, 4],
    ['scale', 'Request rate', 1, v => `\u00d7\u2009${trimmed(v, 3)}`, 'of the trace\u2019s, with its hits', 0.1, 100],
  ];
  return h('div', {class: 'sliders'}, rows.map(([name, title, value, print, mark, least, most]) => {
    /* Prices and rates in equal factors; a share in equal steps. */
    const log = least !== null && value > 0;
    const range = log ? [Math.log(value * least), Math.log(value * most)] : least === null ? [0.05, 1] : [0, 10];
    const read = v => log ? Math.exp(v) : v;
    const out = h('output', null, print(value));
    const input = h('input', {type: 'range', name, min: range[0], max: range[1], step: 'any',
      'aria-label': title, 'aria-valuetext': print(value), on: {input: () => {
        const now = Math.abs(input.valueAsNumber - (log ? Math.log(value) : value)) < 1e-9 ? value : read(input.valueAsNumber);
        out.textContent = print(now);
        input.setAttribute('aria-valuetext', print(now));
        change(name, now);
      }}});
    input.value = log ? Math.log(value) : value;
    return h('label', null, h('span', null, title), out, h('small', null, mark), input);
  }));
}

function worthTable(economy, setting, curves, capacity) {
  const rows = curves.map(curve => ({curve, row: valuedRows(curve).find(r => r.capacity === capacity)}))
    .filter(r => r.row).map(({curve, row}) => ({curve, ...worth(economy, setting, row)})).sort((a, b) => b.net - a.net);
  return [h('p', {class: 'where'}, 'At ' + capacityText(capacity)), h('table', null,
    h('thead', null, h('tr', null, h('th', {class: 'left', scope: 'col'}, 'Policy'),
      ['Saved', 'Cost', 'Net'].map(t => h('th', {scope: 'col', title: 'Dollars an hour'}, t)))),
    h('tbody', null, rows.map(({curve, saved, cost, net}) => h('tr', null, policyCell(curve),
      [saved, cost, net].map(v => h('td', null, dollars(v)))))))];
}

function bestTable(economy, setting, curves) {
  const rows = curves.map(curve => {
    const values = valuedRows(curve).map(row => ({row, ...worth(economy, setting, row)}));
    /* Of values that differ only by rounding, the smaller one. */
    return {curve, best: values.reduce((a, b) => b.net - a.net > 1e-9 * Math.abs(a.net) ? b : a)};
  });
  const heads = ['Pays most at', 'Size', 'Saved', 'Cost', 'Net', 'GPUs saved', 'Break-even bandwidth', 'Residency'];
  return h('table', {class: 'money'},
    h('caption', null, 'Dollars an hour, at each policy\u2019s best capacity of those simulated'),
    h('thead', null, h('tr', null, h('th', {class: 'left', scope: 'col'}, 'Policy'), heads.map(t => h('th', {scope: 'col'}, t)))),
    h('tbody', null, rows.map(({curve, best}) => h('tr', {'data-policy': curve.label},
      policyCell(curve), [count(best.row.capacity), bytes(best.row.bytes), dollars(best.saved), dollars(best.cost), dollars(best.net),
        trimmed(best.gpus, 3)].map(text => h('td', null, text)),
      h('td', null, best.row.bandwidth > 0 ? `${trimmed(breakEven(economy, setting, best.row).bandwidth / 1e9, 3)} GB/s` : '\u2013'),
      h('td', null, best.row.residency > 0 ? seconds(breakEven(economy, setting, best.row).residency) : '\u2013')))));
}

function figuresUsed(economy) {
  const parts = [['model', economy.model], ['GPU', economy.gpu], ['tier', economy.storage]];
  return h('details', {class: 'what'}, h('summary', null, 'The figures behind it, and where they come from'),
    h('div', {class: 'scroll'}, h('table', null,
      h('thead', null, h('tr', null, ['Figure', 'Value', 'From'].map((t, i) => h('th', {scope: 'col', class: i === 1 ? null : 'left'}, t)))),
      h('tbody', null, parts.flatMap(([title, profile]) => Object.entries(profile).filter(([key]) => key !== 'name').map(([key, figure]) =>
        h('tr', null, h('th', {class: 'left', scope: 'row'}, `${title} ${profile.name}: ${figure.title || key}`),
          h('td', null, trimmed(figure.value, 4) + (figure.unit ? ' ' + figure.unit : '')),
          h('td', {class: 'left'}, figure.mark))))))));
}

function showEconomy() {
  const economy = data.economy;
  const curves = data.curves.filter(c => valuedRows(c).length > 0);
  if (!economy || curves.length === 0) return;
  const setting = usualSetting(economy);
  const figure = h('div');
  const table = h('div', {class: 'scroll more', tabindex: 0, role: 'region', 'aria-label': 'Savings by policy'});
  const readout = h('div', {class: 'readout', 'aria-live': 'polite'});
  const sizes = valuedRows(curves[0]).map(row => row.capacity);
  let capacity = sizes[Math.floor(sizes.length * 0.6)];
  let chart = null;
  function choose(x) {
    capacity = x;
    readout.replaceChildren(...worthTable(economy, setting, curves, capacity));
  }
  const spec = () => ({mark: capacity, pick: choose, label: 'Net dollars an hour by capacity', x: capacityAxis(),
    y: {print: v => (v < 0 ? '\u2212$' : '$') + trimmed(Math.abs(v), 3), title: 'net dollars an hour'},
    series: curves.map(curve => ({name: curve.label, color: colorOf(curve), dashed: isDashed(curve),
      points: valuedRows(curve).map(row => [row.capacity, worth(economy, setting, row).net])}))});
  function redraw() {
    if (chart) chart.set(spec());
    else chart = lineChart(figure, spec());
    choose(capacity);
    table.replaceChildren(bestTable(economy, setting, curves));
  }
  const controls = h('div');
  function reset() {
    Object.assign(setting, usualSetting(economy));
    controls.replaceChildren(sliders(economy, setting, (name, value) => { setting[name] = value; redraw(); }));
    redraw();
  }
  section('savings', 'Savings',
    h('p', null, `${economy.model.name} on ${economy.gpu.name}, the cache in ${economy.storage.name}: without a cache, prefill of this trace keeps ${trimmed(economy.prefill_gpus, 3)} GPUs busy. `,
      h('span', {class: 'lead'}, 'Prices are placeholders until you bring your own; a GPU-second saved counts as one that need not be bought.')),
    what(moneyTerms, 'From hits to money'), controls, h('button', {type: 'button', on: {click: reset}}, 'Back to the report\u2019s figures'),
    h('div', {class: 'split'}, figure, readout), table, figuresUsed(economy));
  reset();
}

/* ---- waiting ---- */

const waitTerms = [
  ['Time to first token', 'For a single request on its GPUs: hits are loaded layer by layer while the rest is computed. Without queueing, batching and decoding.'],
  ['p50, p90, p99', 'Half, 90 % and 99 % of the requests have their first token within this time.'],
];

function showWaits() {
  const curves = data.curves.filter(c => c.ttft);
  if (!data.economy || !data.economy.ttft || curves.length === 0) return;
  const holder = h('div', {class: 'small three'});
  section('waits', 'Time to first token',
    h('p', {class: 'lead'}, `${data.economy.model.name} on ${data.economy.gpu.name}. Without a cache: ` +
      ['p50', 'p90', 'p99'].map(p => `${p} ${seconds(data.economy.ttft[p])}`).join(', ') + '.'),
    what(waitTerms, 'From hits to money'), holder);
  for (const p of ['p50', 'p90', 'p99']) {
    const slow = data.economy.ttft[p] >= 1;
    smallChart(holder, `${p} by capacity`, {
      x: capacityAxis(),
      y: {say: v => seconds(v), print: slow ? v => trimmed(v, 3) + '\u00a0s' : v => trimmed(v * 1e3, 3) + '\u00a0ms'},
      series: curves.map(curve => ({name: curve.label, color: colorOf(curve), dashed: isDashed(curve),
        points: curve.capacity.map((c, i) => [c, curve.ttft[p][i]]).filter(q => q[0] !== null && q[1] !== null)}))
        .filter(s => s.points.length > 0)});
  }
}
