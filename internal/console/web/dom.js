// Elements, and numbers as text.

const SVG = 'http://www.w3.org/2000/svg';
const svgTags = new Set(['svg', 'g', 'rect', 'path', 'line', 'text', 'circle', 'title']);

// el returns an element. Attributes that are null or false are left out. Children are nodes,
// texts, and lists of both.
export function el(tag, attributes, ...children) {
  const e = svgTags.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) e.setAttribute(name, value === true ? '' : value);
  }
  e.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

// kept are attributes that belong to the reader: what is open, and what a field holds.
const kept = new Set(['open']);

// morph makes a like b, so that focus, selection and scrolling survive. Elements with the same
// data-key are the same element.
export function morph(a, b) {
  if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) {
    a.replaceWith(b);
    return;
  }
  if (a.nodeType !== Node.ELEMENT_NODE) {
    if (a.data !== b.data) a.data = b.data;
    return;
  }
  for (const { name } of [...a.attributes]) {
    if (!b.hasAttribute(name) && !kept.has(name)) a.removeAttribute(name);
  }
  for (const { name, value } of b.attributes) {
    if (a.getAttribute(name) !== value && !kept.has(name)) a.setAttribute(name, value);
  }
  const keyed = new Map();
  for (const c of a.children) if (c.dataset.key) keyed.set(c.dataset.key, c);
  const wanted = [...b.childNodes];
  wanted.forEach((child, i) => {
    const there = a.childNodes[i];
    const same = child.dataset?.key ? keyed.get(child.dataset.key) : null;
    if (same) {
      if (same !== there) a.insertBefore(same, there ?? null);
      morph(same, child);
    } else if (!there || child.dataset?.key || there.dataset?.key) {
      a.insertBefore(child, there ?? null);
    } else {
      morph(there, child);
    }
  });
  while (a.childNodes.length > wanted.length) a.lastChild.remove();
}

export const unknown = '–';
const known = (v) => typeof v === 'number' && Number.isFinite(v);

// percent, number, bytes, ms and age write a value in few characters.
export function percent(share) {
  if (!known(share)) return unknown;
  if (share > 0 && share < 0.01) return '<1%';
  return share < 1 && share > 0.995 ? '>99%' : `${Math.round(100 * share)}%`;
}

export function number(v) {
  if (!known(v)) return unknown;
  const size = Math.abs(v);
  if (size >= 1e9) return `${(v / 1e9).toFixed(1)} G`;
  if (size >= 1e6) return `${(v / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(v / 1e3).toFixed(0)} k`;
  if (size >= 100 || Number.isInteger(v)) return v.toFixed(0);
  return size < 1 ? v.toFixed(2) : v.toFixed(1);
}

export function bytes(v) {
  if (!known(v)) return unknown;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; Math.abs(v) >= 1024 && unit < units.length - 1; unit++) v /= 1024;
  return `${v >= 100 || Number.isInteger(v) ? v.toFixed(0) : v.toFixed(1)} ${units[unit]}`;
}

export const ms = (v) => (known(v) ? (v >= 10000 ? `${(v / 1000).toFixed(1)} s` : `${number(Math.round(v * 10) / 10)} ms`) : unknown);

export function age(seconds) {
  if (!known(seconds)) return unknown;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// words makes a name of the interface readable: host_pinned becomes host.
export const words = (name) => (name === 'host_pinned' ? 'host' : name.replaceAll('_', ' '));

// table returns a table that scrolls sideways where it is too wide. A column is [title, cell of a
// row, class]; the class wide is left out on a phone, num is aligned to the right.
export function table(label, columns, rows, key) {
  if (rows.length === 0) return el('p', { class: 'none' }, `${label}: none.`);
  return el('div', { class: 'scroll', role: 'region', 'aria-label': label, tabindex: 0 },
    el('table', {},
      el('caption', { class: 'hidden' }, label),
      el('thead', {}, el('tr', {}, columns.map(([title, , kind]) => el('th', { scope: 'col', class: kind }, title)))),
      el('tbody', {}, rows.map((row) => el('tr', { 'data-key': key?.(row) },
        columns.map(([, cell, kind], i) => el(i === 0 ? 'th' : 'td', { class: kind, scope: i === 0 ? 'row' : null }, cell(row))))))));
}

const marks = { ok: '●', warn: '▲', bad: '■', off: '○' };

// state returns a mark with a word. Its shape tells the state too, not the colour alone.
export const state = (level, text) => el('span', { class: `state ${level}` }, el('span', { 'aria-hidden': 'true' }, marks[level]), ` ${text}`);

// section returns a part of a view with a heading.
export function section(title, note, ...children) {
  const id = `s-${title.toLowerCase().replace(/[^a-z]+/g, '-')}`;
  return el('section', { 'aria-labelledby': id }, el('h2', { id }, title), note && el('p', { class: 'note' }, note), children);
}

// tile returns a number with its name.
export const tile = (name, value, note) => el('div', { class: 'tile', role: 'group', 'aria-label': name },
  el('div', { class: 'name' }, name), el('div', { class: 'value' }, value), el('div', { class: 'note' }, note ?? ''));
