// The views of an agent.

import { bytes, el, number, percent, section, state, table, tile, unknown } from './dom.js';
import { change, meter, perSecond, ratio, timeChart } from './chart.js';

const sum = (list, of) => list.reduce((total, one) => total + (of(one) ?? 0), 0);
const last = (values) => values?.at(-1) ?? null;

function past(page) {
  const h = page.data('/v1/history') ?? { at: [], series: {} };
  return { at: h.at, of: (series) => h.series[series] ?? h.at.map(() => 0) };
}

// asked returns the blocks that lookups asked for, at each point.
function asked(of) {
  const [host, disk, misses] = ['host_hits', 'disk_hits', 'misses'].map((s) => change(of(s)));
  return host.map((v, i) => (v === null ? null : v + disk[i] + misses[i]));
}

function health(page) {
  const s = page.data('/v1/stats'), { at, of } = past(page);
  const ready = page.data('/readyz');
  const streams = s?.streams ?? [];
  const exact = streams.filter((r) => r.health === 'exact').length;
  const all = asked(of);
  const hits = change(of('host_hits')).map((v, i) => (v === null ? null : v + change(of('disk_hits'))[i]));
  return el('div', { class: 'tiles' },
    tile('Agent', !ready ? state('off', 'unknown') : ready.error ? state('bad', 'not ready') : state('ok', 'ready'), s && `node ${s.node}`),
    tile('Engines', number(s?.sessions), 'sessions'),
    tile('Streams exact', state(exact === streams.length ? 'ok' : 'warn', `${exact} of ${streams.length}`), `${number(s?.events.lost)} events lost`),
    tile('Hit rate', percent(last(ratio(hits, all))), 'blocks of lookups, last 30\u00a0s'),
    tile('From cache', `${number(last(perSecond(of('matched_tokens'), at)))} tokens/s`, 'found by lookups'),
    tile('Disk', `${bytes(last(perSecond(of('bytes_read'), at)))}/s`, `read; ${bytes(last(perSecond(of('bytes_written'), at)))}/s written`));
}

function charts(page) {
  const { at, of } = past(page);
  const width = page.width(2), all = asked(of);
  const share = (tier) => ratio(of(`${tier}_used`), of(`${tier}_capacity`));
  return el('div', { class: 'charts' },
    timeChart({ title: 'Hit rate by tier', unit: '% of the blocks of lookups', at, width, max: 1, stack: true, write: percent,
      series: [{ kind: 'host', name: 'host', values: ratio(change(of('host_hits')), all) }, { kind: 'disk', name: 'disk', values: ratio(change(of('disk_hits')), all) }] }),
    timeChart({ title: 'Slots in use', unit: '% of the tier', at, width, max: 1, write: percent,
      series: [{ kind: 'host', name: 'host', values: share('host') }, { kind: 'disk', name: 'disk', values: share('disk') }] }),
    timeChart({ title: 'Evictions', unit: 'blocks per second', at, width, write: number,
      series: [{ kind: 'host', name: 'host', values: perSecond(of('host_evictions'), at) }, { kind: 'disk', name: 'disk', values: perSecond(of('disk_evictions'), at) }] }),
    timeChart({ title: 'Disk traffic', unit: 'bytes per second', at, width, write: bytes,
      series: [{ kind: 'device', name: 'read', values: perSecond(of('bytes_read'), at) }, { kind: 'other', name: 'written', values: perSecond(of('bytes_written'), at) }] }));
}

// tiersOf returns a row for each tier of each pool.
const tiersOf = (pools) => pools.flatMap((p) => ['host', 'disk'].filter((t) => p[t].capacity > 0).map((name) => ({ pool: p, name, tier: p[name] })));

function tierTable(page) {
  const pools = page.data('/v1/stats')?.pools ?? [];
  const used = (r) => (r.tier.capacity - r.tier.free) / r.tier.capacity;
  const lookups = (p) => p.host_hits + p.disk_hits + p.misses;
  return section('Pools', 'A pool has the blocks of one namespace: model, weights and layout.',
    table('Pools', [['Model', (r) => r.pool.model], ['Namespace', (r) => r.pool.namespace.slice(0, 12), 'wide'], ['Tier', (r) => r.name],
      ['Used', (r) => meter(`${r.name} slots used`, used(r), `${percent(used(r))} of ${number(r.tier.capacity)}`, r.name)],
      ['In use now', (r) => r.tier.active, 'num'], ['Size', (r) => bytes(r.tier.bytes), 'num'],
      ['Hits', (r) => percent(lookups(r.pool) > 0 ? r.pool[`${r.name}_hits`] / lookups(r.pool) : NaN), 'num'],
      ['Evicted', (r) => number(r.pool[`${r.name}_evictions`]), 'num'], ['Engines', (r) => r.pool.sessions, 'num wide']],
    tiersOf(pools), (r) => r.pool.namespace + r.name));
}

// faults returns what an operator should know of the pools' disks.
function faults(page) {
  const found = (page.data('/v1/stats')?.pools ?? []).flatMap((p) => [
    p.disk_breaker_open && [p, 'the disk fails and is not used'], p.disk_read_only && [p, 'the disk is read-only'],
    p.unverified > 0 && [p, `${number(p.unverified)} blocks of an earlier agent are not verified yet`],
    p.grants_overdue > 0 && [p, `${p.grants_overdue} granted slots are overdue: an engine hangs`],
    p.corrupt_reads > 0 && [p, `${p.corrupt_reads} blocks on disk had wrong bytes`],
    p.corrupt_host > 0 && [p, `${p.corrupt_host} blocks in host memory had wrong bytes`],
  ].filter(Boolean));
  return found.length > 0 && section('Look at this', null, el('ul', {}, found.map(([p, text]) => el('li', {}, state('warn', `${p.model}: ${text}`)))));
}

function queues(page) {
  const pools = page.data('/v1/stats')?.pools ?? [], { at, of } = past(page);
  const chart = (title, series) => timeChart({ title, unit: 'blocks', at, width: page.width(3), write: number, series: [{ kind: 'device', name: '', values: of(series) }] });
  return [el('div', { class: 'charts' }, chart('Wait for a checksum', 'seal_queue'), chart('Wait for the disk', 'write_queue'), chart('Reads from disk', 'read_queue')),
    section('Queues by pool', null, table('Queues', [['Model', (p) => p.model], ['Checksum', (p) => p.seal_queue, 'num'], ['Write', (p) => p.write_queue, 'num'], ['Read', (p) => p.promote_queue, 'num'],
      ['Granted', (p) => p.host.granted, 'num'], ['Quarantine', (p) => p.host.quarantined, 'num'], ['Pinned', (p) => p.pinned_slots, 'num']], pools, (p) => p.namespace))];
}

function engines(page) {
  const s = page.data('/v1/stats');
  const list = s?.connectors ?? [];
  return [queues(page),
    section('Connectors', 'What the connectors in the engines count, once a second.',
      table('Connectors', [['Worker', (c) => `${c.worker}/${c.rank}`], ['Role', (c) => c.role], ['Connected', (c) => (c.connected > 0 ? state('ok', String(c.connected)) : state('off', 'no'))],
        ['Lookups', (c) => number(c.lookups), 'num'], ['Hit blocks', (c) => number(c.hit_blocks), 'num'], ['Loaded', (c) => number(c.loaded_blocks), 'num'], ['Stored', (c) => number(c.stored_blocks), 'num'],
        ['Failed loads', (c) => (c.failed_loads > 0 ? state('warn', number(c.failed_loads)) : '0'), 'num'], ['Copied', (c) => bytes(c.copied_bytes), 'num wide'], ['Version', (c) => c.connector ?? '', 'wide']],
      list, (c) => `${c.worker}/${c.rank}/${c.role}`))];
}

function events(page) {
  const s = page.data('/v1/stats');
  const streams = s?.streams ?? [];
  const e = s?.events ?? {}, out = s?.outputs ?? {}, totals = s?.totals ?? {};
  return [el('div', { class: 'tiles' },
    tile('Events in', number(e.in), 'of engines and pools'), tile('Events out', number(e.out), 'to routers'),
    tile('Gaps', number(e.gaps), `${number(e.repaired)} repaired`), tile('Lost', e.lost > 0 ? state('bad', number(e.lost)) : state('ok', '0'), 'not repaired'),
    tile('Event lag', number((totals.ranks?.parked ?? NaN) + (totals.feeds?.unsent ?? 0)), 'events that wait'),
    tile('Engine restarts', number(e.restarts), `${number(e.bad_events)} bad events`)),
  section('Ways out', null, table('Ways out', [['Way', (w) => w[0]], ['Routers', (w) => w[1], 'num'], ['Messages', (w) => number(w[2]), 'num'], ['Wait', (w) => number(w[3]), 'num'], ['Dropped', (w) => number(w[4]), 'num']], [
    ['HTTP', number(out.http?.clients), out.http?.frames, 0, out.http?.dropped],
    ['NATS', unknown, totals.feeds?.messages, totals.feeds?.unsent, totals.feeds?.publish_errors],
    ['read-ahead hints', unknown, out.read_ahead?.taken, NaN, out.read_ahead?.dropped]], (w) => w[0])),
  section('Streams', 'What the agent tells routers of each engine rank and pool.',
    table('Streams', [['Owner', (r) => r.owner], ['Health', (r) => state(r.health === 'exact' ? 'ok' : 'warn', r.health)], ['Last event', (r) => r.last_event_id, 'num'], ['Blocks', (r) => number(r.blocks), 'num'],
      ['Gaps', (r) => r.rank?.gaps ?? unknown, 'num'], ['Lost', (r) => r.rank?.lost ?? unknown, 'num'], ['Dropped', (r) => sum(Object.values(r.dropped ?? {}), (n) => n), 'num'], ['Digest', (r) => el('code', {}, r.digest), 'wide']],
    streams, (r) => r.owner))];
}

const frame = ['/readyz', '/v1/stats', '/v1/history'];

export const views = [
  { name: 'tiers', title: 'Tiers', paths: frame, render: (page) => [health(page), faults(page), charts(page), tierTable(page)] },
  { name: 'engines', title: 'Engines', paths: ['/v1/stats', '/v1/history'], render: engines },
  { name: 'events', title: 'Events', paths: ['/v1/stats'], render: events },
];
