// The views of a router.

import { age, bytes, el, ms, number, percent, section, state, table, tile, unknown, words } from './dom.js';
import { change, legend, meter, perSecond, ratio, stacked, timeChart } from './chart.js';

const tiers = [['device', 'device'], ['host', 'host'], ['disk', 'disk'], ['external', 'external']];
const field = { device: 'device', host: 'host_pinned', disk: 'disk', external: 'external' };

// maxCards and maxRows bound what is drawn. The view says how many are left out.
const maxCards = 200, maxRows = 200;

const name = (w) => `${w.worker_id}/${w.dp_rank}`;

// short returns the name of a worker in few characters. Ids that the router makes of an address have 20 digits.
function short(w) {
  const id = String(w.worker_id);
  return id.length > 10 ? el('span', { title: name(w) }, `${id.slice(0, 4)}…${id.slice(-4)}/${w.dp_rank}`) : name(w);
}

const sum = (list, of) => list.reduce((total, one) => total + (of(one) ?? 0), 0);
const more = (list, most) => list.length > most && el('p', { class: 'note' }, `${list.length - most} more are not shown.`);
const last = (values) => values?.at(-1) ?? null;

// quality returns the state of a worker.
function quality(w) {
  if (w.silent) return state('off', 'no events');
  return state({ exact: 'ok', degraded: 'warn' }[w.quality] ?? 'off', w.quality);
}

// past returns the series of /v1/history and what is computed from them.
function past(page) {
  const h = page.data('/v1/history') ?? { at: [], series: {} };
  const of = (series) => h.series[series] ?? h.at.map(() => 0);
  return { at: h.at, of, names: Object.keys(h.series) };
}

// health returns the tiles at the top.
function health(page) {
  const { at, of } = past(page);
  const ready = page.data('/readyz');
  const feeds = page.data('/v1/feeds') ?? [];
  const exact = feeds.filter((f) => f.health === 'exact' && f.digest_ok).length;
  const agents = page.data('/v1/agents') ?? [];
  const connected = agents.filter((a) => a.connected).length;
  const tokens = change(of('prompt_tokens'));
  const hits = tiers.map(([t]) => change(of(`hit_tokens_${field[t]}`)));
  const share = last(ratio(tokens.map((v, i) => (v === null ? null : sum(hits, (h) => h[i]))), tokens));
  return el('div', { class: 'tiles' },
    tile('Router', !ready ? state('off', 'unknown') : ready.error ? state('bad', 'not ready') : state('ok', 'ready'), ready?.error),
    tile('Publishers exact', state(exact === feeds.length ? 'ok' : 'warn', `${exact} of ${feeds.length}`), agents.length > 0 && `${connected} of ${agents.length} agents connected`),
    tile('Hit rate', percent(share), 'prompt tokens, last 30\u00a0s'),
    tile('Prefill saved', `${number(last(perSecond(of('saved_seconds'), at)))} s/s`, 'at the workers’ measured speed'),
    tile('Decisions', `${number(last(perSecond(of('decisions'), at)))} /s`, 'last 30 s'),
    tile('Requests', number(last(of('active_requests'))), `active; ${number(last(of('waiting_requests')))} wait`),
    tile('Event lag', number(last(of('event_lag'))), 'events not applied yet'));
}

// charts returns the charts over the last minutes.
function charts(page) {
  const { at, of } = past(page);
  const width = page.width(2);
  const tokens = change(of('prompt_tokens'));
  const shares = tiers.map(([kind, title]) => ({ kind, name: title, values: ratio(change(of(`hit_tokens_${field[kind]}`)), tokens) }))
    .filter((s, i) => i < 3 || s.values.some((v) => v > 0));
  const one = (title, unit, kind, values, write) => timeChart({ title, unit, at, width, write, series: [{ kind, name: '', values }] });
  return el('div', { class: 'charts' },
    timeChart({ title: 'Hit rate by tier', unit: '% of prompt tokens', at, width, series: shares, write: percent, max: 1, stack: true }),
    one('Prefill time saved by hits', 'seconds per second', 'device', perSecond(of('saved_seconds'), at), number),
    one('Decisions', 'per second', 'device', perSecond(of('decisions'), at), number),
    one('Event lag', 'events announced, not applied', 'device', of('event_lag'), number));
}

// map returns the workers, by the pool that they share.
function map(page) {
  const workers = page.data('/v1/workers') ?? [];
  const pools = new Map();
  for (const w of workers.slice(0, maxCards)) pools.set(w.pool, [...(pools.get(w.pool) ?? []), w]);
  const servers = new Map((page.data('/v1/servers') ?? []).map((s) => [String(s.worker_id), s]));
  return section('Cluster', 'Workers, by the pool of their node.',
    workers.length === 0 && el('p', { class: 'none' }, 'The router knows no worker.'),
    el('div', { class: 'pools' }, [...pools].map(([pool, members]) => {
      const load = members.find((w) => w.pool_load)?.pool_load;
      return el('article', { class: 'pool', 'data-key': `p${pool}`, 'aria-label': pool ? `Pool ${pool}` : 'Workers without a pool' },
        el('h3', {}, pool ? `Pool ${pool}` : 'Without a pool'),
        load && el('div', { class: 'loads' },
          tierMeter('host', load.host_bytes_used, load.host_bytes_total),
          tierMeter('disk', load.disk_bytes_used, load.disk_bytes_total)),
        el('div', { class: 'cards' }, members.map((w) => card(w, servers.get(String(w.worker_id))))));
    })), more(workers, maxCards));
}

const tierMeter = (tier, used, total) => (total > 0 ? el('div', { class: 'row' }, el('span', { class: 'key' }, tier),
  meter(`${tier} used`, used / total, `${percent(used / total)} of ${bytes(total)}`, tier)) : null);

// card returns a worker.
function card(w, server) {
  const l = w.load;
  const share = l?.device_blocks_total ? l.device_blocks_used / l.device_blocks_total : NaN;
  return el('div', { class: 'card', role: 'group', 'aria-label': `Worker ${name(w)}`, 'data-key': `w${name(w)}` },
    el('div', { class: 'head' }, el('strong', {}, short(w)), server && server.state !== 'ready' ? state('warn', server.state) : quality(w)),
    el('div', { class: 'model' }, w.model),
    server && el('div', { class: 'model' }, server.url.replace(/^https?:\/\//, '')),
    el('div', { class: 'row' }, el('span', { class: 'key' }, 'device'), meter('Device blocks used', share, percent(share), 'device')),
    el('div', { class: 'model' }, l ? `${l.running_requests} running, ${l.waiting_requests} waiting` : 'no load report'));
}

// occupancy returns the use of each tier by model.
function occupancy(page) {
  const workers = page.data('/v1/workers') ?? [];
  const models = [...new Set(workers.map((w) => w.model))].sort();
  const rows = models.map((model) => {
    const own = workers.filter((w) => w.model === model);
    const pools = new Map(own.filter((w) => w.pool_load).map((w) => [w.pool, w.pool_load]));
    const loads = [...pools.values()];
    return { model, workers: own.length, running: sum(own, (w) => w.load?.running_requests), waiting: sum(own, (w) => w.load?.waiting_requests),
      device: [sum(own, (w) => w.load?.device_blocks_used), sum(own, (w) => w.load?.device_blocks_total)],
      host: [sum(loads, (l) => l.host_bytes_used), sum(loads, (l) => l.host_bytes_total)],
      disk: [sum(loads, (l) => l.disk_bytes_used), sum(loads, (l) => l.disk_bytes_total)] };
  });
  const cell = (tier, write) => (r) => (r[tier][1] > 0 ? meter(`${tier} used`, r[tier][0] / r[tier][1], `${percent(r[tier][0] / r[tier][1])} of ${write(r[tier][1])}`, tier) : unknown);
  return section('Occupancy by model and tier', 'Device in blocks of all its workers, host and disk in bytes of their pools.',
    table('Occupancy', [['Model', (r) => r.model], ['Workers', (r) => r.workers, 'num'], ['Running', (r) => r.running, 'num wide'], ['Waiting', (r) => r.waiting, 'num wide'],
      ['Device', cell('device', (v) => `${number(v)} blocks`)], ['Host', cell('host', bytes)], ['Disk', cell('disk', bytes)]], rows, (r) => r.model));
}

// The parts of a price that its cost adds, by the objective. A wait counts six times:
// once in ttft and five times in again.
const objectives = { balanced: ['ttft', 'again', 'decode', 'imposed'], ttft: ['ttft', 'again', 'imposed'], throughput: ['machine', 'imposed'] };
const partNames = { wait: 'wait', again: 'wait, counted again', prompt: 'prompt', decode: 'answer', imposed: 'cost to others', machine: 'machine', prefill: 'prompt', load: 'blocks active' };
const partKinds = { wait: 'external', again: 'external', prompt: 'device', decode: 'host', imposed: 'other', machine: 'device', prefill: 'device', load: 'host' };

// parts returns what a candidate's cost consists of: milliseconds of a price, or blocks.
function parts(c) {
  const p = c.price;
  if (!p) return [['prefill', c.weight * c.prefill_blocks], ['load', c.decode_blocks]];
  const value = (k) => (k === 'again' ? 5 * p.wait_ms : p[`${k}_ms`]);
  return objectives[p.objective].flatMap((k) => (k === 'ttft' ? [['wait', p.wait_ms], ['prompt', p.ttft_ms - p.wait_ms]] : [[k, value(k)]]));
}

const written = (c, v) => (c.price ? ms(v) : `${number(v)} blocks`);

// candidates returns the compared workers with the parts of their costs.
function candidates(workers, score) {
  const most = Math.max(...workers.map((c) => sum(parts(c), ([, v]) => v)));
  const kinds = new Map(workers.flatMap((c) => parts(c).map(([k]) => [partNames[k], partKinds[k]])));
  return [legend([...kinds].map(([title, kind]) => [kind, title])),
    table('Compared workers', [
      ['Worker', (c) => [short(c), c === workers[0] ? el('span', { class: 'chosen' }, ' chosen') : '']],
      [`Cost by ${score || 'order'}`, (c) => written(c, c.cost), 'num'],
      ['Parts', (c) => {
        const all = parts(c).filter(([, v]) => v > 0), text = all.map(([k, v]) => `${partNames[k]} ${written(c, v)}`);
        return [stacked(text.join(', ') || 'nothing', all.map(([k, v]) => ({ name: partNames[k], value: v, kind: partKinds[k] })), most), el('span', { class: 'parts' }, text.join(' · '))];
      }],
      ['Hits', (c) => tiers.filter(([t]) => c[field[t]] > 0).map(([t]) => `${c[field[t]]} ${t}`).join(' ') || '0', 'wide'],
      ['Active', (c) => (workers.length > 1 ? `${c.active_requests} request${c.active_requests === 1 ? '' : 's'}` : unknown), 'wide'],
    ], workers, (c) => name(c))];
}

// decisions returns the last decisions. A row opens to the costs of its candidates.
function decisions(page) {
  const all = page.data('/v1/decisions') ?? [];
  const chosen = (d) => d.explanation.workers[0];
  const hit = (d) => Math.min(1, (sum(tiers, ([t]) => chosen(d)[field[t]]) * d.block_size) / d.prompt_tokens);
  const list = [...page.expanded.values(), ...all.filter((d) => !page.expanded.has(d.request_id))];
  return section('Last decisions', 'Newest first; one that is open stays at the top. A decision names the other workers that it compared while this view is open, for at most 20 decisions a second.',
    list.length === 0 && el('p', { class: 'none' }, 'No request has been routed yet.'),
    legend(tiers.map(([kind, title]) => [kind, title])),
    el('ul', { class: 'decisions' }, list.map((d) => {
      const c = chosen(d), open = page.expanded.has(d.request_id);
      return el('li', { 'data-key': d.request_id },
        el('button', { type: 'button', class: 'decision', 'data-do': 'expand', 'data-id': d.request_id, 'aria-expanded': String(open) },
          el('span', { class: 'when' }, open ? 'open' : `${age(d.age_seconds)} ago`),
          el('strong', {}, 'worker ', short(c)), el('span', { class: 'model wide' }, d.model),
          el('span', { class: 'bars' }, stacked(`${percent(hit(d))} of the prompt was cached`, tiers.map(([t]) => ({ name: t, value: c[field[t]] * d.block_size, kind: t })), d.prompt_tokens)),
          el('span', {}, `${percent(hit(d))} of ${number(d.prompt_tokens)} tokens`),
          el('span', { class: 'cost' }, written(c, c.cost)),
          d.waited_ms >= 1 && el('span', { class: 'wide' }, `waited ${ms(d.waited_ms)}`),
          d.quality !== 'exact' && state('warn', d.quality)),
        open && el('div', { class: 'inside' },
          el('p', { class: 'note' }, `Request ${d.request_id}. ${d.explanation.compared > 0 ? `${d.explanation.compared} workers compared` : 'The other workers were not recorded'}. Score: ${d.explanation.score || 'none'}.`),
          candidates(d.explanation.workers, d.explanation.score)));
    })));
}

// prompt returns the form for a prompt, and where its blocks are.
function prompt(page) {
  const models = [...new Set((page.data('/v1/workers') ?? []).map((w) => w.model))].sort();
  const r = page.result;
  return [section('A prompt’s blocks', 'Shows which worker has which blocks of a prompt, and where it would go now. It books nothing.',
    el('form', { id: 'prompt' },
      el('label', { for: 'prompt-text' }, 'Prompt: text, token ids as [1, 2, 3], or an OpenAI request with messages'),
      el('textarea', { id: 'prompt-text', name: 'prompt', rows: 5, required: true, spellcheck: 'false' }),
      el('div', { class: 'fields' },
        el('label', {}, 'Model ', el('select', { name: 'model' }, models.map((m) => el('option', { value: m }, m)))),
        el('label', {}, 'Adapter ', el('input', { name: 'lora', autocomplete: 'off' })),
        el('label', {}, 'Cache salt ', el('input', { name: 'salt', autocomplete: 'off' })),
        el('button', {}, 'Show blocks')))),
  page.failed && el('p', { class: 'problem', role: 'alert' }, page.failed),
  r && found(r)];
}

// found returns where the blocks of a prompt are.
function found(r) {
  const whole = Math.ceil(r.tokens / r.blockSize);
  const count = (o) => sum(tiers, ([t]) => o[field[t]]);
  const rows = [...r.overlaps].sort((a, b) => count(b) - count(a));
  const text = (o) => [...tiers.filter(([t]) => o[field[t]] > 0).map(([t]) => `${o[field[t]]} ${t}`), `${whole - count(o)} to compute`].join(' · ');
  return el('div', { id: 'found' },
    section('Blocks by worker', `${number(r.tokens)} tokens are ${whole} block${whole === 1 ? '' : 's'} of ${r.blockSize}.${r.reason ? ` The tokens are not exactly the engine’s: ${r.reason}.` : ''}`,
      legend([...tiers.map(([kind, title]) => [kind, title]), ['track', 'to compute']]),
      table('Blocks by worker', [['Worker', (o) => [short(o), name(o) === name(r.explain) ? el('span', { class: 'chosen' }, ' would get it') : '']],
        ['Blocks of the prompt', (o) => [stacked(text(o), tiers.map(([t]) => ({ name: t, value: o[field[t]], kind: t })), whole), el('span', { class: 'parts' }, text(o))]],
        ['Cached', (o) => percent(count(o) / whole), 'num']], rows.slice(0, maxRows), name), more(rows, maxRows)),
    section('Where it would go', null, candidates(r.explain.explanation.workers, r.explain.explanation.score)),
    r.explain.explanation.misses && section('Tokens to compute there', 'By the cause why they are not cached.',
      table('Tokens to compute', [['Cause', (m) => words(m.cause)], ['Tokens', (m) => m.tokens, 'num'], ['Owner', (m) => m.owner ?? unknown]], r.explain.explanation.misses)));
}

// read returns the tokens that a text names: [1, 2, 3], or 1 2 3; null for other texts.
const read = (text) => (/^\s*\[?\s*\d+([\s,]+\d+)*\s*\]?\s*$/.test(text) ? text.match(/\d+/g).map(Number) : null);

async function inspect(page, form) {
  const of = (field) => form.elements[field].value;
  page.failed = null;
  try {
    const text = of('prompt'), query = { lora_name: of('lora'), cache_namespace: of('salt') };
    query.model = of('model');
    query.tokens = read(text);
    let reason = '';
    if (!query.tokens) {
      let body;
      try {
        body = JSON.parse(text);
      } catch { /* a text */ }
      if (!body?.messages && !body?.prompt) body = { prompt: text };
      const t = await page.ask('/v1/tokens', JSON.stringify({ model: query.model, ...body }));
      [query.tokens, reason] = [t.tokens, t.exact ? '' : t.reason];
    }
    const route = (method) => page.ask('/v1/route', JSON.stringify({ method, ...query }));
    const [overlap, explain] = await Promise.all([route('overlap'), route('explain')]);
    const blockSize = (page.data('/v1/workers') ?? []).find((w) => w.model === query.model)?.block_size ?? 1;
    page.result = { overlaps: overlap.overlaps, explain, tokens: query.tokens.length, blockSize, reason };
  } catch (e) {
    page.failed = e.message;
    page.result = null;
  }
  page.draw();
}

// events returns what the router knows of its publishers.
function events(page) {
  const lag = (f) => Math.max(0, f.announced - f.cursor);
  const feeds = [...(page.data('/v1/feeds') ?? [])].sort((a, b) => lag(b) - lag(a) || (a.health === 'exact') - (b.health === 'exact') || (a.owner < b.owner ? -1 : 1));
  const { at, of } = past(page);
  const agents = page.data('/v1/agents');
  return [el('div', { class: 'charts' },
    timeChart({ title: 'Event lag', unit: 'events announced, not applied', at, width: page.width(2), write: number, series: [{ kind: 'device', name: '', values: of('event_lag') }] }),
    timeChart({ title: 'Publishers', unit: 'count', at, width: page.width(2), write: number, series: [{ kind: 'host', name: 'exact', values: of('feeds_exact') }, { kind: 'external', name: 'known', values: of('feeds') }] })),
  section('Publishers', 'Those with a lag or a fault come first.',
    table('Publishers', [['Owner', (f) => f.owner], ['Health', (f) => state(f.health === 'exact' ? 'ok' : 'warn', f.health)], ['Lag', lag, 'num'],
      ['Applied', (f) => f.cursor, 'num wide'], ['Gaps', (f) => f.gaps, 'num'], ['Repaired', (f) => f.repaired, 'num'], ['Diverged', (f) => f.divergences, 'num wide'],
      ['Digest', (f) => (f.digest_ok ? state('ok', 'equal') : state('bad', 'differs'))], ['Rival', (f) => f.rival ?? '', 'wide']], feeds.slice(0, maxRows), (f) => f.publisher_id), more(feeds, maxRows)),
  agents && section('Agents', 'Those that the router follows over HTTP.',
    table('Agents', [['Address', (a) => a.url], ['Connected', (a) => (a.connected ? state('ok', 'yes') : state('bad', 'no'))], ['Publishers', (a) => a.publishers, 'num'],
      ['Dropped', (a) => a.dropped, 'num'], ['Error', (a) => a.error ?? '', 'wide']], agents.slice(0, maxRows), (a) => a.url))];
}

// misses returns why tokens were not cached.
function misses(page) {
  const m = page.data('/v1/misses?limit=50');
  if (!m) return section('Misses by cause', 'The router has not answered yet.');
  const all = Object.entries(m.missed_tokens).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  const total = sum(all, ([, n]) => n);
  const { at, of } = past(page);
  const rate = all.slice(0, 3).map(([cause]) => ({ kind: 'host', name: '', title: cause, values: perSecond(of(`missed_tokens_${cause}`), at) }));
  return [section('Misses by cause', 'Prompt tokens that workers had to compute, since the router started. Only answers at the front door tell.',
    !m.explained && el('p', { class: 'none' }, 'The router keeps nothing to explain misses with: miss_memory_blocks or use_kv_events is off.'),
    all.length === 0 && el('p', { class: 'none' }, 'No answer has reported cached tokens yet.'),
    all.length > 0 && table('Tokens by cause', [['Cause', ([cause]) => words(cause)], ['Tokens', ([, n]) => number(n), 'num'],
      ['Share', ([cause, n]) => stacked(`${words(cause)}: ${percent(n / total)}`, [{ name: words(cause), value: n, kind: 'host' }], total)], ['', ([, n]) => percent(n / total), 'num']], all, ([cause]) => cause)),
  rate.length > 0 && el('div', { class: 'charts' }, rate.map((r) => timeChart({ title: `Missed: ${words(r.title)}`, unit: 'tokens per second', at, width: page.width(3), write: number, series: [r] }))),
  section('Last requests', null, table('Last requests', [['Request', (r) => r.request_id], ['Worker', (r) => r.worker], ['Ago', (r) => age(r.age_seconds), 'num'], ['Prompt', (r) => r.prompt_tokens, 'num'],
    ['Expected', (r) => r.cached_predicted, 'num wide'], ['Cached', (r) => r.cached_delivered, 'num'],
    ['Causes', (r) => r.misses.map((p) => `${words(p.cause)} ${p.tokens}`).join(', ')]], m.requests, (r) => r.request_id))];
}

const frame = ['/readyz', '/v1/history', '/v1/workers', '/v1/feeds', '/v1/agents'];

export const views = [
  { name: 'cluster', title: 'Cluster', paths: [...frame, '/v1/servers'], render: (page) => [health(page), charts(page), map(page), occupancy(page)] },
  { name: 'decisions', title: 'Decisions', paths: ['/v1/decisions'], render: decisions,
    actions: {
      expand(page, button) {
        const id = button.dataset.id;
        const found = (page.data('/v1/decisions') ?? []).find((d) => d.request_id === id);
        if (!page.expanded.delete(id) && found) page.expanded.set(id, found);
        page.draw();
      },
    } },
  { name: 'prompt', title: 'Prompt', paths: ['/v1/workers'], render: prompt, actions: { submit: inspect } },
  { name: 'events', title: 'Events', paths: ['/v1/feeds', '/v1/agents', '/v1/history'], render: events },
  { name: 'misses', title: 'Misses', paths: ['/v1/misses?limit=50', '/v1/history'], render: misses },
];
