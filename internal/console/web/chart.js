// Charts as SVG: shares of a whole, and values over time.

import { bytes, el, percent } from './dom.js';

// meter returns a bar that is filled by a share of 0 to 1, or an empty one for an unknown share.
// text stands beside it.
export function meter(label, share, text, kind) {
  const known = Number.isFinite(share);
  const now = known ? Math.round(100 * Math.min(1, Math.max(0, share))) : 0;
  return el('div', { class: 'meter' },
    el('svg', { class: 'bar', role: 'meter', 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': now, 'aria-valuetext': known ? `${percent(share)}, ${text}` : 'unknown' },
      el('rect', { class: 'track', width: '100%', height: '100%' }),
      el('rect', { class: `fill-${kind}`, width: `${now}%`, height: '100%' })),
    el('span', { class: 'beside' }, text));
}

// stacked returns a bar of parts [{name, value, kind}] of a whole. label says all of it.
export function stacked(label, parts, whole) {
  let at = 0;
  return el('svg', { class: 'bar', role: 'img', 'aria-label': label },
    el('rect', { class: 'track', width: '100%', height: '100%' }),
    parts.filter((p) => p.value > 0).map((p) => {
      const width = whole > 0 ? (100 * p.value) / whole : 0;
      const r = el('rect', { class: `fill-${p.kind}`, x: `${at.toFixed(3)}%`, width: `${width.toFixed(3)}%`, height: '100%' }, el('title', {}, `${p.name}: ${p.value}`));
      at += width;
      return r;
    }));
}

// legend returns the names of kinds of parts.
export const legend = (kinds) => el('ul', { class: 'legend', 'aria-label': 'Legend' },
  kinds.map(([kind, name]) => el('li', {}, el('svg', { class: 'swatch', 'aria-hidden': 'true' }, el('rect', { class: `fill-${kind}`, width: '100%', height: '100%' })), ` ${name}`)));

// niceMax returns a round number that is not below v. Bytes are round in units of 1024.
function niceMax(v, isBytes) {
  if (!(v > 0)) return 2;
  const scale = isBytes ? 1024 ** Math.floor(Math.log(v) / Math.log(1024)) : 1;
  const unit = 10 ** Math.floor(Math.log10(v / scale)) * scale;
  return [1, 2, 4, 6, 10].map((f) => f * unit).find((m) => m >= v * 0.999);
}

const height = 170, left = 56, top = 8, bottom = 22, letter = 7.4;

// timeChart returns a chart of series [{name, kind, values}] at the times at, in milliseconds. A
// value is null where it is unknown. The axis begins at 0. With stack the series lie on one
// another. write makes text of a value.
export function timeChart({ title, unit, at, series, width, write, max, stack }) {
  const latest = (s) => s.values.at(-1) ?? null;
  const label = (s) => `${write(latest(s) ?? NaN)} ${s.name}`.trim();
  const inner = width - left - 14 - letter * Math.max(4, ...series.map((s) => label(s).length)), floor = height - bottom;
  const sums = at.map(() => 0);
  const drawn = series.map((s) => ({ ...s, line: s.values.map((v, i) => (v === null ? null : stack ? (sums[i] += v) : v)) }));
  const highest = Math.max(0, ...drawn.flatMap((s) => s.line.filter((v) => v !== null)));
  const limit = max ?? niceMax(highest, write === bytes);
  const end = at.at(-1) ?? 0, begin = Math.min(at[0] ?? 0, end - 60_000);
  const x = (t) => left + (inner * (t - begin)) / (end - begin || 1);
  const y = (v) => floor - ((floor - top) * Math.min(v, limit)) / limit;
  const summary = series.map((s) => `${s.name} ${latest(s) === null ? 'unknown' : write(latest(s))}`).join(', ');
  const runs = drawn.map((s) => pieces(s.line, at).map((run) => run.map(([t, v]) => [x(t), y(v)])));
  const shapes = [];
  drawn.forEach((s, k) => runs[k].forEach((run) => {
    const path = run.map(([px, py], i) => `${i ? 'L' : 'M'}${px.toFixed(1)} ${py.toFixed(1)}`).join('');
    if (stack || series.length === 1) shapes.unshift(el('path', { class: `area fill-${s.kind}`, d: `${path}L${run.at(-1)[0].toFixed(1)} ${floor}L${run[0][0].toFixed(1)} ${floor}Z` }));
    shapes.push(el('path', { class: `curve line-${s.kind}`, d: path }));
    if (run === runs[k].at(-1)) shapes.push(el('circle', { class: `fill-${s.kind}`, cx: run.at(-1)[0].toFixed(1), cy: run.at(-1)[1].toFixed(1), r: 2.5 }));
  }));
  return el('figure', { class: 'chart' },
    el('figcaption', {}, title, el('span', { class: 'unit' }, ` (${unit})`)),
    el('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${title} (${unit}), now: ${summary}` },
      [0, 0.5, 1].map((f) => [
        el('line', { class: 'grid', x1: left, x2: left + inner, y1: y(f * limit), y2: y(f * limit) }),
        el('text', { x: left - 6, y: y(f * limit) + 4, 'text-anchor': 'end' }, write(f * limit))]),
      el('text', { x: left, y: height - 6 }, at.length ? `−${Math.round((end - begin) / 60000)} min` : ''),
      el('text', { x: left + inner, y: height - 6, 'text-anchor': 'end' }, at.length ? 'now' : 'no data yet'),
      shapes, labels(drawn, label, y, left + inner + 6, floor)));
}

// pieces cuts a line where values are unknown.
function pieces(line, at) {
  const all = [];
  let run = [];
  line.forEach((v, i) => {
    if (v !== null) run.push([at[i], v]);
    if (v === null || i === line.length - 1) {
      if (run.length) all.push(run);
      run = [];
    }
  });
  return all;
}

// labels returns the last value and the name of each series beside its end, without overlaps.
function labels(drawn, label, y, x, floor) {
  const gap = 14;
  const all = drawn.map((s) => ({ s, at: y(s.line.at(-1) ?? 0) + 4 })).sort((a, b) => b.at - a.at); // the lowest first
  all.forEach((l, i) => { l.at = Math.min(l.at, i === 0 ? floor + 4 : all[i - 1].at - gap); });
  all.reverse().forEach((l, i) => { l.at = Math.max(l.at, i === 0 ? top + 6 : all[i - 1].at + gap); });
  return all.map(({ s, at }) => el('text', { class: 'label', x, y: at }, label(s)));
}

// window is over how many points rates are taken: half a minute.
const window = 6;

// change returns how much a counter grew up to each point, in half a minute; null where it is
// unknown and after a restart.
export function change(values) {
  return values.map((v, i) => {
    const before = Math.max(0, i - window);
    return i === 0 || v < values[before] ? null : v - values[before];
  });
}

// perSecond returns the rate of a counter at each point.
export function perSecond(values, at) {
  return change(values).map((v, i) => (v === null ? null : (1000 * v) / (at[i] - at[Math.max(0, i - window)])));
}

// ratio returns part / whole at each point; null without a whole.
export const ratio = (part, whole) => part.map((v, i) => (v === null || !(whole[i] > 0) ? null : v / whole[i]));
