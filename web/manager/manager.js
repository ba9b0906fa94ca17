// SPDX-License-Identifier: Apache-2.0

/* The manager's page: polls /api/page (described at the top of src/manager/observe/page.c) while it is
 * visible, and shows the answer. */

const POLL_MS = 3000;
const SHOWN_INSTANCES = 200;
const SHOWN_STEPS = 12;

let authorization = null; /* the value of the Authorization header; stored nowhere else */
let samples = [];
let last = 0;
let started = 0;
let timer = 0;
let asking = false;
const groupBlocks = new Map(); /* number -> the result of groupBlock */

const element = id => document.getElementById(id);

/* ---- small texts ---- */

function ratio(part, whole) {
  return whole > 0 ? percent(part / whole, 1) : '\u2013';
}

function mark(good, text) {
  return h('span', {class: good ? 'mark good' : 'mark bad'}, text);
}

function limited(value, most, print) {
  return [print(value), most > 0 && [' ', h('small', null, `of ${print(most)}`)]];
}

function counted(value, word) {
  return `${count(value)} ${word}${value === 1 ? '' : 's'}`;
}

function sum(list, field) {
  return list.reduce((all, one) => all + one[field], 0);
}

function replace(holder, made) {
  if (!holder.firstElementChild || !holder.firstElementChild.isEqualNode(made)) holder.replaceChildren(made);
}

/* ---- head ---- */

function showState(data) {
  const words = {
    starts: ['It starts.', false],
    follows: [data.leader ? `It follows; ${data.leader} leads.` : 'It follows; no leader is known.', false],
    loads: ['It has become the leader and is loading its index.', false],
    leads: ['It leads.', true],
  }[data.state];
  element('title').textContent = data.node;
  document.title = `${data.node} \u2013 tierce manager`;
  element('state').className = words[1] ? 'lead' : 'lead bad';
  element('state').textContent = `${words[0]} Started ${seconds((data.now_us - data.started_us) / 1e6, 2)} ago.`;
}

function showFacts(data) {
  const found = sum(data.instances, 'found_keys');
  const asked = sum(data.instances, 'asked_keys');
  const well = data.storages.filter(s => s.status === 'well').length;
  const unmanaged = data.storages.filter(s => s.status === 'unmanaged').length;
  const recent = perSecond('calls').slice(-1);
  const facts = [
    ['Blocks that serve', count(sum(data.groups, 'keys')), bytes(sum(data.groups, 'serving_bytes')), 'blocks'],
    ['Hit rate', ratio(found, asked), `${count(found)} of ${count(asked)} keys`, 'hits'],
    ['Storages well', `${well} of ${data.storages.length - unmanaged}`, `${unmanaged ? `${unmanaged} unmanaged, ` : ''}${counted(data.instance_count, 'instance')}, ${counted(data.groups.length, 'group')}`, 'well'],
    ['Write sessions', count(sum(data.groups, 'sessions')), `open; ${count(sum(data.groups, 'expired_sessions'))} expired`, 'sessions'],
    data.has_all && ['Calls', count(sum(data.calls, 'calls')), recent.length ? `${trimmed(recent[0][1], 2)} a second of late` : 'since the start', 'calls'],
  ];
  element('facts').replaceChildren(...facts.filter(Boolean).map(([name, value, note, id]) => h('div', {'data-fact': id},
    h('dt', null, name), h('dd', null, h('span', null, value), h('small', null, note)))));
}

/* ---- over time ---- */

/* [second, increase a second] of a counter; a new leader begins at 0 again. */
function perSecond(field) {
  return samples.slice(1).map((s, i) => [s.at_us / 1e6,
    (s[field] - samples[i][field]) / ((s.at_us - samples[i].at_us) / 1e6)]).filter(p => p[1] >= 0);
}

function hitRates() {
  return samples.slice(1).map((s, i) => [s.at_us / 1e6, s.asked_keys - samples[i].asked_keys,
    s.found_keys - samples[i].found_keys]).filter(p => p[1] > 0 && p[2] >= 0).map(p => [p[0], p[2] / p[1]]);
}

function newest() {
  return samples.length ? samples[samples.length - 1].at_us / 1e6 : 0;
}

function shareOver(group, take) {
  return samples.flatMap(s => {
    const found = s.groups.find(g => g[0] === group.number);
    return found ? [[s.at_us / 1e6, take(found) / group.quota_bytes]] : [];
  });
}

/* ---- groups ---- */

function groupBlock() {
  const made = {name: h('h3'), now: h('div'), facts: h('div'),
    plot: livePlot('Share of the quota in use', {print: v => percent(v, 0), say: v => percent(v, 1)})};
  made.element = h('div', {class: 'group'}, made.name, h('div', {class: 'split'},
    h('div', null, made.now, made.plot.element), made.facts));
  return made;
}

/* By the ghost curve of the group. */
function gained(curve) {
  if (curve === null) return '\u2013';
  const gain = `+${percent(curve.next_gib_hit_ratio, 1)} to ${percent(curve.hit_ratio, 1)} of tokens`;
  return curve.is_warm ? gain : [gain, ' ', h('small', null, 'sample incomplete')];
}

function showGroup(made, group, pilot) {
  made.name.textContent = group.name;
  made.element.dataset.group = group.name;
  replace(made.now, h('div', null,
    meterLine('All storage', group, group.quota_bytes, group.watermark_bytes),
    group.kinds.map(k => meterLine(`In ${k.kind}`, k, k.quota_bytes, k.watermark_bytes)), stateKey(group)));
  made.plot.element.hidden = !(group.quota_bytes > 0) || samples.length < 2;
  if (!made.plot.element.hidden) {
    const level = group.watermark_bytes / group.quota_bytes;
    made.plot.set([
      {name: 'all bytes', color: 'c0', points: shareOver(group, g => g[1] + g[2] + g[3])},
      {name: 'watermark', color: 'cx', dashed: true, flat: true, points: [[0, level]]},
    ], newest());
  }
  replace(made.facts, h('div', null, pairs([
    ['watermark', `${bytes(group.watermark_bytes)}, ${ratio(group.watermark_bytes, group.quota_bytes)}`],
    ['blocks', limited(group.keys, group.keys_max, count)],
    ['instances', count(group.instances)],
    ['write sessions', `${count(group.sessions)} open, ${count(group.expired_sessions)} expired`],
    ['another GiB', gained(group.curve)],
    ['autopilot', pilotOf(pilot)],
  ]), group.warning && h('p', {class: 'bad'}, group.warning)));
}

function showGroups(data) {
  for (const [number, made] of groupBlocks) {
    if (data.groups.some(g => g.number === number)) continue;
    made.element.remove();
    groupBlocks.delete(number);
  }
  const section = element('groups');
  let before = section.firstElementChild;
  for (const group of data.groups) {
    if (!groupBlocks.has(group.number)) groupBlocks.set(group.number, groupBlock());
    const made = groupBlocks.get(group.number);
    if (before.nextElementSibling !== made.element) before.after(made.element);
    showGroup(made, group, data.pilot.groups.find(g => g.name === group.name));
    before = made.element;
  }
}

/* ---- tables ---- */

/* The last scrub, in words; nothing if there was none. */
function scrubbed(storage) {
  const scrub = storage.scrub;
  if (!scrub) return null;
  const repaired = scrub.deleted_orphans + scrub.dropped_locations;
  const found = scrub.orphans + scrub.missing_files;
  return [' ', h('small', null, `scrub ${scrub.state}: ${found} found, ${repaired} repaired` +
    (scrub.reason ? ` (${scrub.reason})` : ''))];
}

/* An operator empties it. */
const DRAINS = {moving: 'being emptied', dropping: 'its blocks are removed', deleting: 'its last objects are deleted',
  drained: 'empty: it can be removed'};
function drain(storage) {
  return storage.drain && [' ', h('span', {class: 'faint mark'}, DRAINS[storage.drain]),
    storage.drain_why && [' ', h('small', null, storage.drain_why)]];
}

function health(storage) {
  return [condition(storage), drain(storage)];
}

function condition(storage) {
  if (storage.status === 'disabled') return h('span', {class: 'faint mark'}, 'disabled');
  if (storage.status === 'unmanaged') {
    return [h('span', {class: 'faint mark'}, 'unmanaged'), ' ',
      h('small', null, storage.warning || 'only its clients reach it: neither probed nor deleted in')];
  }
  return [mark(storage.is_well, storage.is_well ? 'well' : 'unwell'),
    storage.why && [' ', h('small', null, storage.why)], scrubbed(storage)];
}

function probe(storage) {
  return storage.probe_age_ms === null ? '\u2013'
    : [seconds(storage.probe_age_ms / 1000, 2) + ' ago ', h('small', null, `took ${seconds(storage.probe_took_us / 1e6)}`)];
}

/* An account of one group is not shown the bytes of all groups. */
function known(value) {
  return value === undefined ? '\u2013' : bytes(value);
}

const STORAGE_COLUMNS = [
  {head: 'Storage', cell: s => s.name},
  {head: 'Kind', left: true, cell: s => s.kind},
  {head: 'Health', left: true, wide: true, cell: health},
  {head: 'Last probe', cell: probe},
  {head: 'Medium used', cell: s => percent(s.used_share, 1)},
  {head: 'Serving', cell: s => known(s.serving_bytes)},
  {head: 'Writing', cell: s => known(s.writing_bytes)},
  {head: 'Deleting', cell: s => known(s.deleting_bytes)},
  {head: 'Capacity', cell: s => s.capacity_bytes > 0 ? [bytes(s.capacity_bytes), ' ', h('small', null, `reclaimed above ${bytes(s.watermark_bytes)}`)] : '\u2013'},
];

/* Which part of a prompt's KV the instance's layers need. */
function attention(instance) {
  const tokens = instance.window_tokens || instance.every_tokens;
  return tokens > 0 ? `${instance.attention_kind} of ${count(tokens)}` : instance.attention_kind ?? '';
}

const INSTANCE_COLUMNS = [
  {head: 'Instance', cell: i => i.id},
  {head: 'Group', left: true, cell: i => i.group},
  {head: 'Attention', left: true, cell: attention},
  {head: 'Blocks', cell: i => count(i.keys)},
  {head: 'Bytes', cell: i => bytes(i.serving_bytes)},
  {head: 'Hit rate', cell: i => ratio(i.found_keys, i.asked_keys)},
  {head: 'Keys found', cell: i => limited(i.found_keys, i.asked_keys, count)},
  {head: 'Sessions', cell: i => [count(i.sessions), i.expired_sessions > 0 && [' ', h('small', null, `${count(i.expired_sessions)} expired`)]]},
];

const TIER_NAMES = ['memory', 'disk'];

/* "memory 12, disk 40" */
function tiers(worker) {
  const held = worker.tier_keys.map((keys, i) => [keys, TIER_NAMES[i] ?? `tier ${i}`]).filter(([keys]) => keys > 0);
  return held.map(([keys, name]) => `${name} ${count(keys)}`).join(', ') || '\u2013';
}

function exactness(worker) {
  if (worker.is_complete) return mark(true, 'complete');
  return [mark(false, 'incomplete'), ' ', h('small', null, worker.left_out > 0
    ? `${count(worker.left_out)} left out: directory.memory is full`
    : worker.is_synced ? 'it may hold more' : 'it sends its contents')];
}

const WORKER_COLUMNS = [
  {head: 'Worker', cell: w => w.name},
  {head: 'Group', left: true, cell: w => w.group},
  {head: 'Models', left: true, cell: w => w.models || '\u2013'},
  {head: 'Contents', left: true, wide: true, cell: exactness},
  {head: 'Chunks', cell: w => count(w.keys)},
  {head: 'In tiers', left: true, cell: tiers},
  {head: 'Serves at', left: true, cell: w => w.transfer_address ? w.transfer_address + (w.transfer_tls ? ' (TLS)' : '') : '\u2013'},
  {head: 'Load', cell: w => percent(w.load / 1000)},
  {head: 'Last report', cell: w => seconds(w.heard_ms / 1000, 2) + ' ago'},
];

const CALL_COLUMNS = [
  {head: 'Call', cell: c => c.method},
  {head: 'Calls', cell: c => count(c.calls)},
  {head: 'Errors', cell: c => c.errors > 0 ? h('span', {class: 'bad'}, count(c.errors)) : '0'},
  {head: 'Median', cell: c => seconds(c.p50_us / 1e6, 2)},
  {head: 'p90', cell: c => seconds(c.p90_us / 1e6, 2)},
  {head: 'p99', cell: c => seconds(c.p99_us / 1e6, 2)},
];

function table(id, label, columns, rows, empty) {
  const holder = element(id).querySelector('.table') || element(id).appendChild(h('div', {class: 'table'}));
  replace(holder, rows.length ? rowsTable(label, columns, rows) : h('p', {class: 'empty'}, empty));
}

/* "GetCacheLocation", and the service where two have a call of that name. */
function callName(call, all) {
  return all.filter(c => c.method === call.method).length > 1
    ? {...call, method: `${call.method} (${call.service.split('.').slice(-2)[0]})`} : call;
}

/* ---- autopilot ---- */

function pilotOf(group) {
  if (group === undefined) return '\u2013';
  return group.autopilot === 'off' || group.is_followed ? group.autopilot
    : [group.autopilot, ' ', h('small', null, 'not followed: it has no curve')];
}

function ttlText(value) {
  return value > 0 ? `${count(value)} s` : 'none';
}

function stepText(step) {
  if (step.kind === 'quota') return `${bytes(step.bytes)} (${step.quota}) from ${step.from || 'another group'}`;
  return [step.policy_from !== step.policy_to && `policy ${step.policy_from} to ${step.policy_to}`,
    step.ttl_seconds_from !== step.ttl_seconds_to
      && `time to live ${ttlText(step.ttl_seconds_from)} to ${ttlText(step.ttl_seconds_to)}`].filter(Boolean).join(', ');
}

function rate(value) {
  return value === null ? '\u2013' : trimmed(value, 3);
}

const STEP_COLUMNS = [
  {head: 'Step', cell: s => s.step},
  {head: 'At', left: true, cell: s => new Date(s.at_us / 1000).toLocaleString()},
  {head: 'Group', left: true, cell: s => s.to},
  {head: 'Change', left: true, cell: stepText},
  {head: 'State', left: true, cell: s => s.state},
  {head: 'Expected, hit tokens a second', cell: s => rate(s.expected_tokens_per_second)},
  {head: 'Measured', cell: s => rate(s.measured_tokens_per_second)},
];

function showSteps(data) {
  const steps = [...data.pilot.steps].sort((a, b) => b.step - a.step).slice(0, SHOWN_STEPS);
  table('autopilot', 'Autopilot', STEP_COLUMNS, steps, 'No steps.');
}

function showTables(data) {
  showSteps(data);
  table('storages', 'Storages', STORAGE_COLUMNS, data.storages, 'None.');
  const largest = [...data.instances].sort((a, b) => b.serving_bytes - a.serving_bytes).slice(0, SHOWN_INSTANCES);
  table('instances', 'Instances', INSTANCE_COLUMNS, largest, 'None is registered.');
  element('more-instances').textContent = data.instance_count > largest.length
    ? `The ${count(largest.length)} with the most bytes; ${count(data.instance_count - largest.length)} more.` : '';
  table('workers', 'Workers', WORKER_COLUMNS, data.workers.slice(0, SHOWN_INSTANCES),
    'No engine or node has joined the directory.');
  if (!data.has_all) {
    table('calls', 'Calls', CALL_COLUMNS, [], 'Shown to accounts of all groups.');
    return;
  }
  const calls = [...data.calls].sort((a, b) => b.calls - a.calls).map(c => callName(c, data.calls));
  table('calls', 'Calls', CALL_COLUMNS, calls, 'None yet.');
}

/* ---- background ---- */

const plots = {
  hits: livePlot('Hit rate', {most: 1, print: v => percent(v, 0), say: v => percent(v, 1)}),
  calls: livePlot('Calls a second', {print: v => trimmed(v, 3)}),
  work: livePlot('Reclaim and deletion, a second', {print: v => trimmed(v, 3)}),
};

function showPlots() {
  const series = {
    hits: [{name: 'found', color: 'c0', points: hitRates()}],
    calls: [{name: 'calls', color: 'c0', points: perSecond('calls')},
      {name: 'errors', color: 'c1', points: perSecond('errors')}],
    work: [{name: 'blocks reclaimed', color: 'c0', points: perSecond('reclaimed_blocks')},
      {name: 'locations deleted', color: 'c1', points: perSecond('deleted_locations')}],
  };
  for (const [name, plot] of Object.entries(plots)) {
    plot.element.hidden = series[name].every(s => s.points.length < 2);
    if (!plot.element.hidden) plot.set(series[name], newest());
  }
}

function showWork(data) {
  const {reclaim, deletions, reports, moves} = data;
  if (!data.has_all) {
    replace(element('work').querySelector('.pairs'), h('p', {class: 'empty'}, 'Shown to accounts of all groups.'));
    return;
  }
  replace(element('work').querySelector('.pairs'), h('div', {class: 'small'},
    h('div', null, h('h3', null, 'Reclaim'), pairs([
      ['blocks taken out', count(reclaim.blocks)],
      ['their bytes', bytes(reclaim.bytes)],
      ['rounds that found too much', limited(reclaim.triggered_rounds, reclaim.rounds, count)],
    ])),
    h('div', null, h('h3', null, 'Deletion'), pairs([
      ['batches waiting', count(deletions.waiting)],
      ['batches in progress', count(deletions.executing)],
      ['tries that failed', count(deletions.failed_tries)],
      ['locations deleted', count(deletions.done_locations)],
      ['orphaned: only their owner can delete them', count(deletions.orphaned_locations)],
    ])),
    h('div', null, h('h3', null, 'Moves between storages'), pairs([
      ...Object.entries(moves.queued).map(([reason, blocks]) => [`blocks waiting: ${reason}`, count(blocks)]),
      ['being copied', count(moves.running)],
      ['moved', [count(moves.moved), ' ', h('small', null, bytes(moves.moved_bytes))]],
      ['failed', count(moves.failed)],
      ['of these, unverifiable', count(moves.unverifiable)],
      ['tried again later', count(moves.resting)],
    ])),
    h('div', null, h('h3', null, 'Places reported by clients'),
      pairs(Object.entries(reports).map(([reason, places]) => [reason, count(places)])))));
}

function buildPage() {
  element('instances').append(h('div', {class: 'table'}), h('p', {id: 'more-instances', class: 'empty'}), plots.hits.element);
  element('work').append(h('div', {class: 'pairs'}), plots.work.element);
  element('calls').append(h('div', {class: 'table'}), h('p', {class: 'unit'}, 'Latencies since the start, from bins of powers of two.'), plots.calls.element);
  element('kind').append(choice('With', [['token', 'a token'], ['name', 'name and password']], 'token', askWith));
  askWith('token');
}

/* ---- asking ---- */

function askWith(kind) {
  for (const label of document.querySelectorAll('#login [data-with]')) label.hidden = label.dataset.with !== kind;
}

function basic(name, password) {
  const octets = new TextEncoder().encode(`${name}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...octets))}`;
}

function signIn(event) {
  event.preventDefault();
  const kind = document.querySelector('#kind input:checked').value;
  authorization = kind === 'token' ? `Bearer ${element('token').value.trim()}`
    : basic(element('name').value, element('password').value);
  ask();
}

function askWho() {
  if (authorization !== null) element('refused').textContent = 'The credentials were not accepted. Try again.';
  authorization = null;
  element('login').hidden = false;
  element('main').hidden = true;
  element('state').textContent = 'Authentication required.';
}

function take(data) {
  if (data.started_us !== started || data.last < last) {
    samples = [];
    started = data.started_us;
    if (last > 0) { /* another process: its samples are requested from the first on */
      last = 0;
      return;
    }
  }
  const oldest = data.now_us - 3600e6;
  samples = samples.concat(data.samples).filter(s => s.at_us >= oldest);
  last = data.last;
  element('login').hidden = true;
  element('main').hidden = false;
  showState(data);
  showFacts(data);
  showGroups(data);
  showTables(data);
  showWork(data);
  showPlots();
  document.body.dataset.at = data.now_us;
}

async function ask() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch(`/api/page?since=${last}`, {credentials: 'omit', cache: 'no-store',
      headers: authorization === null ? {} : {Authorization: authorization}});
    if (answer.status === 401) {
      askWho();
      return;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    take(await answer.json());
  } catch (error) {
    element('state').className = 'lead bad';
    element('state').textContent = `The manager does not answer (${error.message}). The numbers below are outdated. Retrying.`;
  } finally {
    asking = false;
    if (element('login').hidden) timer = setTimeout(ask, POLL_MS);
  }
}

document.addEventListener('visibilitychange', ask);
element('login').addEventListener('submit', signIn);
buildPage();
ask();
