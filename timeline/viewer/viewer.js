// The page's program: unpacks the rows, builds busy masks at four resolutions per lane, draws the
// lanes on one canvas, and fills the tables. No library, no network.
'use strict';
const CATEGORIES = ['compute', 'comm', 'memcpy', 'memset', 'graph'];
const LEVEL_BITS = [12, 14, 16, 18];
const MOST_EXACT = 4000;  // rows per lane that are drawn one by one; more are drawn as masks
const LANE = 20, HEADER = 22, AXIS = 24, LEFT = 150;
const $ = (id) => document.getElementById(id);
const started = performance.now();
let info, lanes = [], names = [], view, full, dpr, canvas, paint;

async function unpack(id) {
  const text = $(id).textContent;
  const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Lane columns are varints one after the other: gaps to the end before (zigzag), lengths, names.
function readLanes(bytes, header) {
  let at = 0;
  const varint = () => {
    let value = 0, factor = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte & 128);
    return value;
  };
  for (const lane of header) {
    const n = lane.rows;
    const start = new Float64Array(n), length = new Float64Array(n), name = new Uint32Array(n);
    for (let k = 0; k < n; ++k) {
      const v = varint();
      start[k] = v % 2 ? -(v + 1) / 2 : v / 2;
    }
    let end = 0;
    for (let k = 0; k < n; ++k) {
      length[k] = varint();
      start[k] += end;
      end = start[k] + length[k];
    }
    for (let k = 0; k < n; ++k) name[k] = varint();
    lanes.push({...lane, n, start, length, name, longest: n ? length.reduce((a, b) => Math.max(a, b), 0) : 0});
  }
}

// Per bin the categories that were active in it and the busy share, for every resolution.
function buildLevels(lane) {
  lane.levels = LEVEL_BITS.map((bits) => {
    const bins = 1 << bits, width = full.length / bins;
    const mask = new Uint8Array(bins), busy = new Float32Array(bins);
    for (let k = 0; k < lane.n; ++k) {
      const from = lane.start[k], to = from + lane.length[k], bit = 1 << names[lane.name[k]].c;
      const last = Math.min(bins - 1, Math.floor(to / width));
      for (let b = Math.max(0, Math.floor(from / width)); b <= last; ++b) {
        mask[b] |= bit;
        busy[b] += Math.max(0, Math.min(to, (b + 1) * width) - Math.max(from, b * width));
      }
    }
    return {bins, width, mask, busy};
  });
}

function timeText(ns) {
  const a = Math.abs(ns);
  if (a >= 1e9) return (ns / 1e9).toPrecision(4) + ' s';
  if (a >= 1e6) return (ns / 1e6).toPrecision(4) + ' ms';
  if (a >= 1e3) return (ns / 1e3).toPrecision(4) + ' us';
  return Math.round(ns) + ' ns';
}
const share = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + ' %' : '-';

let colours;
function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = {};
  for (const name of [...CATEGORIES, 'idle', 'fg', 'dim', 'line', 'soft', 'bg']) {
    colours[name] = style.getPropertyValue('--' + name).trim();
  }
}
// Where several categories share a pixel, communication and copies must not hide under compute.
const PRIORITY = [1, 2, 4, 3, 0];
const topCategory = (mask) => PRIORITY.find((c) => mask & (1 << c));

function lowerBound(array, value) {
  let low = 0, high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

function layout() {
  let y = AXIS, device = null;
  for (const lane of lanes) {
    if (lane.device !== device) {
      device = lane.device;
      lane.header = y;
      y += HEADER;
    } else {
      lane.header = null;
    }
    lane.y = y;
    y += LANE + 2;
  }
  return y + 6;
}

function resize() {
  dpr = window.devicePixelRatio || 1;
  const height = layout();
  canvas.style.height = height + 'px';
  canvas.width = Math.max(300, canvas.clientWidth) * dpr;
  canvas.height = height * dpr;
  draw();
}

function drawLane(lane, width) {
  const scale = width / (view.to - view.from);
  const first = Math.max(0, lowerBound(lane.start, view.from - lane.longest));
  const last = lowerBound(lane.start, view.to);
  paint.fillStyle = colours.soft;
  paint.fillRect(LEFT, lane.y, width, LANE);
  if (last - first <= MOST_EXACT) {
    for (let k = first; k < last; ++k) {
      const x = (lane.start[k] - view.from) * scale, w = lane.length[k] * scale;
      if (x + w < 0) continue;
      const left = Math.max(0, x), drawn = Math.min(width, x + w) - left;
      paint.fillStyle = colours[CATEGORIES[names[lane.name[k]].c]];
      paint.fillRect(LEFT + left, lane.y, Math.max(0.6, drawn - (drawn > 3 ? 0.8 : 0)), LANE);
      if (drawn > 46) {
        paint.fillStyle = '#fff';
        paint.save();
        paint.beginPath();
        paint.rect(LEFT + left, lane.y, drawn - 3, LANE);
        paint.clip();
        paint.fillText(names[lane.name[k]].s, LEFT + left + 4, lane.y + 14);
        paint.restore();
      }
    }
    return;
  }
  // The coarsest resolution that still has a bin per pixel, so that a pixel reads few bins.
  const pixel = (view.to - view.from) / width;
  const level = lane.levels.find((l) => l.width <= pixel) || lane.levels[lane.levels.length - 1];
  for (let x = 0; x < width; ++x) {
    const from = view.from + x * pixel;
    let b = Math.max(0, Math.floor(from / level.width));
    const end = Math.min(level.bins - 1, Math.floor((from + pixel) / level.width));
    let mask = 0, busy = 0, bins = 0;
    for (; b <= end; ++b, ++bins) {
      mask |= level.mask[b];
      busy += level.busy[b];
    }
    if (!mask) continue;
    const part = Math.min(1, busy / (bins * level.width));
    const h = Math.max(1, Math.round(LANE * part));
    paint.fillStyle = colours[CATEGORIES[topCategory(mask)]];
    paint.fillRect(LEFT + x, lane.y + LANE - h, 1, h);
  }
}

function drawAxis(width) {
  const span = view.to - view.from;
  let step = Math.pow(10, Math.floor(Math.log10(span / 5)));
  while (span / step > 10) step *= span / step > 20 ? 5 : 2;
  paint.fillStyle = colours.dim;
  paint.strokeStyle = colours.line;
  for (let t = Math.ceil(view.from / step) * step; t < view.to; t += step) {
    const x = LEFT + (t - view.from) / span * width;
    paint.beginPath();
    paint.moveTo(x, AXIS - 4);
    paint.lineTo(x, canvas.height / dpr);
    paint.stroke();
    paint.fillText('+' + timeText(t), x + 3, 12);
  }
}

function draw() {
  const width = canvas.width / dpr - LEFT;
  paint.setTransform(dpr, 0, 0, dpr, 0, 0);
  paint.clearRect(0, 0, canvas.width / dpr, canvas.height / dpr);
  paint.font = '11.5px system-ui,sans-serif';
  drawAxis(width);
  for (const scope of info.scopes) {
    for (const [begin, end] of scope.windows_ns) {
      const x = (begin - full.zero - view.from) / (view.to - view.from) * width;
      const w = (end - begin) / (view.to - view.from) * width;
      if (scope.name === 'full' || x > width || x + w < 0) continue;
      paint.fillStyle = colours.dim + '22';
      paint.fillRect(LEFT + Math.max(0, x), AXIS - 4, Math.min(width, x + w) - Math.max(0, x), canvas.height);
    }
  }
  for (const lane of lanes) {
    paint.fillStyle = colours.fg;
    if (lane.header !== null) paint.fillText(lane.label, 4, lane.header + 16);
    paint.fillStyle = colours.dim;
    paint.fillText('stream ' + lane.stream, 14, lane.y + 14);
    drawLane(lane, width);
  }
}

function clampView() {
  const span = Math.min(full.length, Math.max(50, view.to - view.from));
  view.from = Math.min(Math.max(0, view.from), full.length - span);
  view.to = view.from + span;
}
let pending = false;
function redraw() {
  clampView();
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}
function zoomAt(fraction, factor) {
  const at = view.from + fraction * (view.to - view.from);
  view.from = at - (at - view.from) * factor;
  view.to = at + (view.to - at) * factor;
  redraw();
}
function show(from, to) {
  const margin = (to - from) * 0.5 + 200;
  view = {from: from - full.zero - margin, to: to - full.zero + margin};
  select('timeline');
  resize();
  redraw();
}

function rowAt(x, y) {
  const lane = lanes.find((l) => y >= l.y && y < l.y + LANE);
  if (!lane || x < LEFT) return null;
  const width = canvas.width / dpr - LEFT;
  const pixel = (view.to - view.from) / width, t = view.from + (x - LEFT) * pixel;
  for (let k = lowerBound(lane.start, t + pixel) - 1, steps = 0; k >= 0 && steps < 400; --k, ++steps) {
    if (lane.start[k] + lane.length[k] >= t - pixel) return {lane, k};
    if (lane.start[k] + lane.longest < t) break;
  }
  return null;
}

function wireCanvas() {
  let drag = null;
  canvas.addEventListener('wheel', (e) => {
    e.preventDefault();
    const width = canvas.clientWidth - LEFT;
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      const move = e.deltaX / width * (view.to - view.from);
      view.from += move;
      view.to += move;
      redraw();
    } else {
      zoomAt(Math.max(0, (e.offsetX - LEFT) / width), Math.exp(e.deltaY * 0.0015));
    }
  }, {passive: false});
  canvas.addEventListener('pointerdown', (e) => {
    drag = {x: e.offsetX, from: view.from, to: view.to};
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener('pointerup', () => { drag = null; });
  canvas.addEventListener('pointermove', (e) => {
    if (drag) {
      const move = (drag.x - e.offsetX) / (canvas.clientWidth - LEFT) * (drag.to - drag.from);
      view = {from: drag.from + move, to: drag.to + move};
      redraw();
    }
    const hit = rowAt(e.offsetX, e.offsetY), tip = $('tip');
    tip.style.display = hit ? 'block' : 'none';
    if (!hit) return;
    const {lane, k} = hit;
    tip.textContent = timeText(lane.length[k]) + '  at +' + timeText(lane.start[k]) + '  ' +
        names[lane.name[k]].n;
    tip.style.left = Math.min(e.clientX + 14, innerWidth - 570) + 'px';
    tip.style.top = e.clientY + 16 + 'px';
  });
  canvas.addEventListener('pointerleave', () => { $('tip').style.display = 'none'; });
  canvas.addEventListener('dblclick', () => { view = {from: 0, to: full.length}; redraw(); });
  document.addEventListener('keydown', (e) => {
    if (e.target.tagName === 'INPUT') return;
    const span = view.to - view.from;
    if (e.key === 'w') zoomAt(0.5, 0.7);
    else if (e.key === 's') zoomAt(0.5, 1.4);
    else if (e.key === 'a' || e.key === 'd') {
      const move = (e.key === 'a' ? -0.2 : 0.2) * span;
      view.from += move;
      view.to += move;
      redraw();
    }
  });
}

function element(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

// columns: [title, key or function for sorting, text function, left-aligned]
function table(parent, columns, rows, filterText, onClick) {
  const state = {column: -1, down: true, filter: ''};
  const most = 500;
  if (filterText) {
    const input = element('input');
    input.type = 'search';
    input.placeholder = 'filter';
    input.addEventListener('input', () => { state.filter = input.value.toLowerCase(); fill(); });
    parent.append(input);
  }
  const box = element('div', undefined, 'scroll'), node = element('table');
  const head = element('tr'), body = element('tbody'), note = element('p', '', 'note');
  columns.forEach((column, k) => {
    const cell = element('th', column[0], column[3] ? 'text' : '');
    cell.addEventListener('click', () => {
      state.down = state.column === k ? !state.down : !column[3];
      state.column = k;
      fill();
    });
    head.append(cell);
  });
  function fill() {
    let shown = rows.filter((row) => !state.filter || filterText(row).toLowerCase().includes(state.filter));
    if (state.column >= 0) {
      const key = columns[state.column][1];
      shown = [...shown].sort((a, b) => {
        const x = key(a), y = key(b), order = x < y ? -1 : x > y ? 1 : 0;
        return state.down ? -order : order;
      });
    }
    body.replaceChildren(...shown.slice(0, most).map((row) => {
      const line = element('tr', undefined, onClick ? 'go' : '');
      for (const column of columns) {
        const value = column[2](row);
        line.append(value instanceof Node ? value : element('td', value, column[3] ? 'text' : ''));
      }
      if (onClick) line.addEventListener('click', () => onClick(row));
      return line;
    }));
    note.textContent = shown.length > most ? shown.length - most + ' more rows: use the filter' : shown.length + ' rows';
  }
  const top = element('thead');
  top.append(head);
  node.append(top, body);
  box.append(node);
  parent.append(box, note);
  fill();
}

function stack(parent, label, buckets, window) {
  const row = element('div', undefined, 'bar'), bar = element('div', undefined, 'stack');
  row.append(element('span', label), bar);
  let busy = 0;
  for (const [name, ns] of Object.entries(buckets)) {
    if (name === 'idle') continue;
    busy += ns;
    const parts = name.split('+'), piece = element('div');
    const colour = (c) => 'var(--' + c + ')';
    piece.style.width = 100 * ns / window + '%';
    piece.style.background = parts.length === 1 ? colour(parts[0]) :
        'repeating-linear-gradient(135deg,' + colour(parts[0]) + ' 0 4px,' + colour(parts[1]) + ' 4px 8px)';
    piece.title = name + ': ' + timeText(ns) + ', ' + share(ns, window);
    bar.append(piece);
  }
  row.append(element('span', share(busy, window)));
  parent.append(row);
}

function fillScope(scope) {
  for (const id of ['windows', 'kernels', 'gaps', 'host', 'ranges', 'coverage']) $(id).replaceChildren();
  const w = $('windows');
  w.append(element('h2', 'Busy time by category, scope ' + scope.name + ', ' + timeText(scope.window_ns)));
  w.append(element('p', 'Striped pieces are overlaps of two categories. ' + scope.note, 'note'));
  for (const d of scope.devices) {
    stack(w, d.label + (d.state === 'active' ? '' : ' (no activity)'), d.buckets_ns, d.window_ns);
  }
  w.append(element('h2', 'Devices'));
  const ns = (key) => [(d) => d[key], (d) => timeText(d[key])];
  table(w, [['device', (d) => d.label, (d) => d.label + ' ' + d.model, true],
    ['busy', ...ns('busy_ns')], ['busy %', (d) => d.busy_ns, (d) => share(d.busy_ns, d.window_ns)],
    ['compute', ...ns('compute_ns')], ['comm', ...ns('comm_ns')],
    ['exposed comm', ...ns('exposed_comm_ns')], ['memcpy', ...ns('memcpy_ns')],
    ['memset', ...ns('memset_ns')], ['graph', ...ns('graph_ns')], ['gap', ...ns('gap_ns')],
    ['launch-bound', (d) => d.launch.launch_bound_ns, (d) => share(d.launch.launch_bound_ns, d.window_ns)],
    ['queue delay p50', (d) => d.launch.queue_delay.p50_ns, (d) => timeText(d.launch.queue_delay.p50_ns)]],
  scope.devices);
  w.append(element('h2', 'Copies'));
  table(w, [['direction', (c) => c.direction, (c) => c.direction, true],
    ['count', (c) => c.count, (c) => String(c.count)],
    ['time', (c) => c.clipped_ns, (c) => timeText(c.clipped_ns)],
    ['bytes', (c) => c.bytes_full_overlapping_calls, (c) => c.bytes_full_overlapping_calls.toLocaleString('en')],
    ['GB/s', (c) => c.achieved_gb_per_s, (c) => c.achieved_gb_per_s.toFixed(1)]], scope.copies);
  const triple = (v) => v ? v.join('x') : '-';
  table($('kernels'), [['kernel', (g) => g.name, (g) => {
    const cell = element('td', g.short_name || g.name, 'text');
    cell.title = g.name;
    return cell;
  }, true],
    ['category', (g) => g.category, (g) => g.category],
    ['calls', (g) => g.count, (g) => g.count.toLocaleString('en')],
    ['total', (g) => g.total_ns, (g) => timeText(g.total_ns)],
    ['share', (g) => g.share, (g) => (100 * g.share).toFixed(2) + ' %'],
    ['mean', (g) => g.mean_ns, (g) => timeText(g.mean_ns)],
    ['p50', (g) => g.length.p50_ns, (g) => timeText(g.length.p50_ns)],
    ['p95', (g) => g.length.p95_ns, (g) => timeText(g.length.p95_ns)],
    ['max', (g) => g.length.max_ns, (g) => timeText(g.length.max_ns)],
    ['grid', (g) => triple(g.grid), (g) => triple(g.grid)],
    ['block', (g) => triple(g.block), (g) => triple(g.block)],
    ['regs', (g) => g.registers || 0, (g) => g.registers ? String(g.registers) : '-'],
    ['smem', (g) => (g.static_smem_bytes + g.dynamic_smem_bytes) || 0,
      (g) => g.grid ? String(g.static_smem_bytes + g.dynamic_smem_bytes) : '-']],
  scope.kernel_groups, (g) => g.name + ' ' + g.category);
  const gaps = scope.devices.flatMap((d) => d.gaps.map((g) => ({...g, device: d.label})))
    .sort((a, b) => b.length_ns - a.length_ns || a.begin_ns - b.begin_ns);
  table($('gaps'), [['length', (g) => g.length_ns, (g) => timeText(g.length_ns)],
    ['at', (g) => g.begin_ns, (g) => '+' + timeText(g.begin_ns - full.zero)],
    ['device', (g) => g.device, (g) => g.device],
    ['after', (g) => g.before || '', (g) => g.before || '(border of the window)', true],
    ['before', (g) => g.after || '', (g) => g.after || '(border of the window)', true],
    ['waited for launch', (g) => g.waited_for_launch, (g) => g.waited_for_launch ? 'yes' : 'no'],
    ['host meanwhile (correlated)', (g) => g.correlated_host_calls.join(), (g) => g.correlated_host_calls.join(', '), true]],
  gaps, (g) => (g.before || '') + (g.after || '') + g.device, (g) => show(g.begin_ns, g.end_ns));
  table($('host'), [['call', (c) => c.api, (c) => c.api, true], ['kind', (c) => c.kind, (c) => c.kind],
    ['calls', (c) => c.count, (c) => c.count.toLocaleString('en')],
    ['thread time', (c) => c.summed_thread_ms, (c) => timeText(c.summed_thread_ms * 1e6)],
    ['threads waiting', (c) => c.thread_equivalents, (c) => c.thread_equivalents.toFixed(3)],
    ['threads', (c) => c.threads, (c) => String(c.threads)],
    ['longest', (c) => c.longest_ns, (c) => timeText(c.longest_ns)]], scope.wait_apis, (c) => c.api + c.kind);
  table($('ranges'), [['range', (r) => r.name, (r) => r.name, true],
    ['domain', (r) => r.domain, (r) => r.domain], ['count', (r) => r.count, (r) => r.count.toLocaleString('en')],
    ['host', (r) => r.host_ns, (r) => timeText(r.host_ns)], ['self', (r) => r.self_ns, (r) => timeText(r.self_ns)],
    ['GPU rows', (r) => r.gpu_rows, (r) => r.gpu_rows.toLocaleString('en')],
    ['GPU sum', (r) => r.gpu_sum_ns, (r) => timeText(r.gpu_sum_ns)],
    ['GPU union', (r) => r.gpu_union_ns, (r) => timeText(r.gpu_union_ns)]], scope.ranges, (r) => r.name + r.domain);
  const c = $('coverage');
  c.append(element('h2', scope.coverage.complete ? 'Complete: every device' : 'Not complete: figures of this scope are barred from verdicts'));
  for (const d of scope.coverage.devices) {
    c.append(element('h2', 'device ' + d.device + ': ' + d.verdict + (d.factor < 0.9 ? ', factor ' + d.factor.toFixed(3) : ''), d.verdict));
    table(c, [['check', (x) => x.id, (x) => x.id, true],
      ['state', (x) => x.state, (x) => element('td', x.state, x.state)],
      ['what was seen', (x) => x.text, (x) => x.text, true]], d.checks);
  }
}

function select(tab) {
  for (const button of document.querySelectorAll('nav button')) button.classList.toggle('on', button.dataset.tab === tab);
  for (const section of document.querySelectorAll('section')) section.classList.toggle('on', section.id === tab);
  if (tab === 'timeline' && canvas) resize();
}

function fillHeader() {
  $('sources').textContent = info.sources.map((s) => s.file + ' (' + s.format + (s.schema ? ', schema ' + s.schema : '') + ')').join('; ');
  $('counts').textContent = info.gpu_rows.toLocaleString('en') + ' GPU rows, ' + info.api_rows.toLocaleString('en') + ' API calls, ' +
      info.range_rows.toLocaleString('en') + ' ranges';
  for (const source of info.sources) {
    for (const warning of source.warnings) $('counts').after(element('p', 'note: ' + warning));
  }
  for (const c of CATEGORIES) {
    const item = element('span'), box = element('i');
    box.style.background = 'var(--' + c + ')';
    item.append(box, c);
    $('key').append(item);
  }
  $('key').append(element('span', 'wheel zooms, drag pans, double click resets, keys w a s d'));
  info.scopes.forEach((scope, k) => {
    const option = element('option', scope.name);
    option.value = k;
    $('scope').append(option);
  });
  $('scope').addEventListener('change', () => fillScope(info.scopes[$('scope').value]));
  for (const button of document.querySelectorAll('nav button')) button.addEventListener('click', () => select(button.dataset.tab));
}

// Draws a pan and zoom tour and reports the slowest frame: tests read it from the page.
function tour() {
  let slowest = 0, frames = 0;
  const saved = {...view};
  for (let k = 0; k < 40; ++k) {
    const span = full.length * Math.pow(0.6, k);
    view = {from: full.length * 0.37 - span * 0.37, to: full.length * 0.37 + span * 0.63};
    clampView();
    const t = performance.now();
    draw();
    slowest = Math.max(slowest, performance.now() - t);
    ++frames;
  }
  view = saved;
  draw();
  return {slowest, frames};
}

async function main() {
  try {
    readColours();
    canvas = $('canvas');
    paint = canvas.getContext('2d');
    info = JSON.parse(new TextDecoder().decode(await unpack('info')));
    const header = JSON.parse($('lanes').textContent);
    full = {zero: header.zero, length: Math.max(1, header.length)};
    names = header.names;
    readLanes(await unpack('rows'), header.lanes);
    lanes.forEach(buildLevels);
    view = {from: 0, to: full.length};
    fillHeader();
    fillScope(info.scopes[0]);
    wireCanvas();
    window.addEventListener('resize', resize);
    select('timeline');
    const root = document.documentElement.dataset;
    root.ready = Math.round(performance.now() - started);
    root.rows = lanes.reduce((sum, lane) => sum + lane.n, 0);
    if (location.hash === '#tour') {
      const {slowest, frames} = tour();
      root.slowest = slowest.toFixed(1);
      root.frames = frames;
    } else if (location.hash) {
      select(location.hash.slice(1));
    }
  } catch (error) {
    document.documentElement.dataset.error = String(error);
    document.body.prepend(element('p', 'This page could not be shown: ' + error));
  }
}
main();
