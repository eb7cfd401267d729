// The frame of the console: which view is shown, and what it asks the listener for.

import { age, el, morph } from './dom.js';
import * as agent from './agent.js';
import * as router from './router.js';

const period = 2000, limit = 10_000;
const find = (id) => document.getElementById(id);
const main = find('main');

// data has the last answer of each path; page is what views share.
const data = new Map();
const page = { data: (path) => data.get(path), ask, draw, width: chartWidth, expanded: new Map() };
let views = [], current = null, answered = 0, paused = false, timer = 0, asking = false;

// Whole numbers beyond 2^53 stay texts: worker ids and pools may be that large.
const exact = (_, value, context) => (typeof value === 'number' && !Number.isSafeInteger(value) && /^\d+$/.test(context?.source ?? '') ? context.source : value);

// ask returns the JSON answer of a path. It throws an error with the status and the listener's
// text. After 401 it asks the operator for the token, and tries again.
async function ask(path, body) {
  for (;;) {
    const headers = {};
    const token = sessionStorage.getItem('blockyard-token');
    if (token) headers.Authorization = `Bearer ${token}`;
    const response = await fetch(path, { method: body === undefined ? 'GET' : 'POST', body, headers, cache: 'no-store', signal: AbortSignal.timeout(limit) });
    const text = await response.text();
    if (response.status === 401) {
      await login();
      continue;
    }
    let value = text;
    try {
      value = JSON.parse(text, exact);
    } catch { /* health is plain text at an agent */ }
    if (!response.ok) throw Object.assign(new Error(value?.error ?? `${path}: status ${response.status}`), { status: response.status });
    return value;
  }
}

let loggingIn = null;

// login shows the dialog for the token, and ends when it has one. A reader who closes the dialog
// pauses the display.
function login() {
  loggingIn ??= new Promise((done, fail) => {
    const dialog = find('login');
    dialog.returnValue = '';
    dialog.addEventListener('close', () => {
      loggingIn = null;
      if (dialog.returnValue !== 'ok') {
        if (!paused) actions.pause();
        fail(new Error('the listener wants a token'));
        return;
      }
      sessionStorage.setItem('blockyard-token', find('token').value);
      find('token').value = '';
      done();
    }, { once: true });
    dialog.showModal();
  });
  return loggingIn;
}

// look asks for the paths of the view, and draws it.
async function look() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  const problems = [];
  await Promise.all(current.paths.map(async (path) => {
    try {
      data.set(path, await ask(path));
    } catch (e) {
      data.delete(path);
      // A path may be absent (404). Readiness is a state and no failure.
      if (path === '/readyz') data.set(path, { error: e.message });
      else if (e.status !== 404) problems.push(e.message);
    }
  }));
  asking = false;
  const problem = find('problem');
  problem.hidden = problems.length === 0;
  problem.textContent = problems.length ? `No answer: ${problems[0]}` : '';
  if (problems.length < current.paths.length) answered = Date.now();
  draw();
  if (!paused && !document.hidden) timer = setTimeout(look, period);
}

// draw shows the view with what is known.
function draw() {
  const shown = el('main', { id: 'main', tabindex: -1, 'data-view': current.name });
  shown.append(...[current.render(page)].flat(Infinity).filter(Boolean));
  if (main.dataset.view !== current.name) main.replaceChildren();
  const focused = document.activeElement;
  morph(main, shown);
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true }); // it was moved
  find('fresh').textContent = answered ? `updated ${age((Date.now() - answered) / 1000)} ago${paused ? ', paused' : ''}` : '';
}

// chartWidth returns the width of a chart where at most most stand side by side.
function chartWidth(most) {
  const width = main.clientWidth - 2 * parseFloat(getComputedStyle(main).paddingLeft);
  const columns = Math.max(1, Math.min(most, Math.floor(width / 380)));
  return Math.floor((width - 16 * (columns - 1)) / columns) - 26; // gaps, and padding of a chart
}

// show shows the view that the address names.
function show() {
  current = views.find((v) => `#${v.name}` === location.hash) ?? views[0];
  find('views').replaceChildren(...views.map((v, i) => el('li', {},
    el('a', { href: `#${v.name}`, 'aria-current': v === current ? 'page' : null, 'aria-keyshortcuts': i + 1 }, v.title))));
  document.title = `${current.title} – Blockyard`;
  draw();
  look();
}

const actions = {
  pause() {
    paused = !paused;
    find('pause').setAttribute('aria-pressed', paused);
    find('pause').textContent = paused ? 'Resume' : 'Pause';
    if (paused) clearTimeout(timer);
    else look();
  },
  theme() {
    const order = ['auto', 'dark', 'light'];
    setTheme(order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length]);
  },
  help() {
    find('help').showModal();
  },
};

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  find('theme').textContent = `Theme: ${theme}`;
  localStorage.setItem('blockyard-theme', theme);
}

const keys = { p: 'pause', t: 'theme', '?': 'help' };

addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input, textarea, select, dialog')) return;
  const view = views[Number(e.key) - 1];
  if (view) location.hash = view.name;
  else if (keys[e.key]) actions[keys[e.key]]();
});
addEventListener('click', (e) => {
  const button = e.target.closest('[data-do]');
  if (!button) return;
  const act = actions[button.dataset.do] ?? current.actions?.[button.dataset.do];
  act?.(page, button);
});
addEventListener('submit', (e) => {
  if (e.target.method === 'dialog') return;
  e.preventDefault();
  current.actions?.submit?.(page, e.target);
});
addEventListener('hashchange', () => {
  show();
  main.focus();
});
addEventListener('resize', () => current && draw());
document.addEventListener('visibilitychange', () => !document.hidden && !paused && current && look());

setTheme(localStorage.getItem('blockyard-theme') ?? 'auto');
// start asks whose console this is until there is an answer, and shows its first view.
async function start() {
  try {
    const about = await (await fetch('about.json')).json();
    views = about.kind === 'router' ? router.views : agent.views;
    find('kind').textContent = about.kind;
    find('about').textContent = `${about.kind} ${about.version}`;
    show();
  } catch {
    find('problem').hidden = false;
    find('problem').textContent = 'No answer. The page tries again.';
    setTimeout(start, period);
  }
}

start();
