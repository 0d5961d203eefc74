// Time against floor, and the roofline: Chart.js where it was inlined, the same points as plain SVG
// where not.
const SHAPES = ['circle', 'rect', 'triangle', 'rectRot', 'cross', 'star'];
const MOST_POINTS = 3000;  // beyond this a scatter plot gains nothing
const cssColour = (variable) =>
    getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
const seriesColour = (index) => cssColour(`--s${index % 6}`);

const shortTick = (text) => text.replace(/\.?0+(?= )/, (zeros) => (zeros[0] === '.' ? '' : zeros));

const BELOW_HINT = 'the timing is wrong, or the ceilings were measured on a busy machine.';

const VIEWS = {
  floor: {
    label: 'Time against floor',
    hint: 'The floor is the least time that the measured ceilings allow; ' +
        'points on the solid line could not be faster.',
    x: 'floor',
    y: 'measured median',
    format: (v) => shortTick(formatTime(v)),
    point: (c) => (c.timing && c.floor.ns > 0 ? [c.floor.ns, c.median] : null),
    guides: ([low, high]) => [1, 2, 10].map((k) => ({
                                              label: k === 1 ? 'floor' : `${k}×`,
                                              main: k === 1,
                                              points: [[low, k * low], [high, k * high]]
                                            })),
  },
  roofline: {
    label: 'Roofline',
    hint: 'The solid line is what the measured copy bandwidth and bf16 matrix rate allow.',
    x: 'FLOP per byte',
    y: 'achieved FLOP/s',
    format: (v) => String(Number(v.toPrecision(3))),
    formatY: (v) => shortTick(formatRate(v, 'FLOP/s')),
    point: (c) =>
        (c.timing && c.floor.flops > 0 && c.floor.bytes > 0 ?
             [c.floor.flops / c.floor.bytes, c.floor.flops / (c.median * 1e-9)] :
             null),
    guides: ([low, high]) => {
      const {copy_bytes: bandwidth, bf16_flops: peak} = raw.gpu_ceilings || raw.ceilings;
      if (!(bandwidth > 0 && peak > 0)) return [];
      const ridge = Math.min(Math.max(peak / bandwidth, low), high);
      return [{
        label: `${formatRate(bandwidth, 'B/s')}, ${formatRate(peak, 'FLOP/s')}`,
        main: true,
        points: [
          [low, Math.min(low * bandwidth, peak)], [ridge, Math.min(ridge * bandwidth, peak)],
          [high, Math.min(high * bandwidth, peak)]
        ]
      }];
    },
  },
};

// Passed cases only: {backend: [{x, y, c}]}, thinned evenly.
function chartPoints(view, definition) {
  const shown =
      cases.filter((c) => c.status === 'passed' && (!definition || c.definition === definition))
          .map((c) => ({c, at: view.point(c)}))
          .filter((p) => p.at);
  const stride = Math.ceil(shown.length / MOST_POINTS) || 1;
  const groups = new Map();
  shown.forEach(({c, at}, i) => {
    if (i % stride) return;
    if (!groups.has(c.backend)) groups.set(c.backend, []);
    groups.get(c.backend).push({x: at[0], y: at[1], c});
  });
  return {groups, total: shown.length, stride};
}

function tooltipLines(c) {
  return [
    c.definition, c.axesText || c.uuid,
    `${c.backend}: ${formatTime(c.median)} ± ${formatPercent(c.halfWidth)}`,
    isNaN(c.xFloor) ? '' : `${formatFactor(c.xFloor)} × the floor (${c.floor.bound})`
  ].filter(Boolean);
}

function chartJsScatter(canvas, view, groups, guides, xs, ys, onPick) {
  const ink = cssColour('--ink'), muted = cssColour('--muted'), line = cssColour('--line');
  const axis = (title, format, [min, max]) => ({
    type: 'logarithmic',
    min,
    max,
    title: {display: true, text: title, color: muted},
    grid: {color: line, borderColor: line, tickLength: 4},
    ticks: {
      color: muted,
      maxRotation: 0,
      autoSkipPadding: 16,
      callback: (v) =>
          (/^[125]/.test(v.toExponential()) && Number(v.toPrecision(1)) === v ? format(v) : null)
    },
  });
  const datasets = [...groups].map(([backend, points]) => {
    const index = backends.indexOf(backend);
    return {
      label: backend,
      data: points,
      backgroundColor: seriesColour(index) + 'b0',
      borderColor: seriesColour(index),
      pointStyle: SHAPES[index % SHAPES.length],
      radius: 4,
      hoverRadius: 6,
      borderWidth: 1
    };
  });
  guides.forEach((guide) => datasets.push({
    label: guide.label,
    data: guide.points.map(([x, y]) => ({x, y})),
    type: 'line',
    guide: true,
    pointRadius: 0,
    pointHitRadius: 0,
    borderColor: guide.main ? ink : muted,
    borderWidth: guide.main ? 1.5 : 1,
    borderDash: guide.main ? [] : [4, 4],
    pointStyle: 'line',
    fill: false
  }));
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  return new Chart(canvas, {
    type: 'scatter',
    data: {datasets},
    options: {
      animation: false,
      maintainAspectRatio: false,
      responsive: true,
      scales: {x: axis(view.x, view.format, xs), y: axis(view.y, view.formatY || view.format, ys)},
      onClick: (_, hits) =>
          hits.length && hits[0].element.$context.raw.c && onPick(hits[0].element.$context.raw.c),
      plugins: {
        legend: {
          position: 'top',
          align: 'end',
          labels: {color: ink, usePointStyle: true, boxWidth: 14, boxHeight: 7}
        },
        tooltip: {
          filter: (item) => Boolean(item.raw.c),
          displayColors: false,
          callbacks: {label: (item) => (item.raw.c ? tooltipLines(item.raw.c) : '')}
        },
      },
    },
  });
}

function svgScatter(view, groups, guides, xs, ys, onPick) {
  const width = Math.max(byId('floor').clientWidth - 22, 300), height = 380, left = 78, right = 16,
        top = 14, bottom = 42;
  const X = (v) =>
      left + ((log10(v) - log10(xs[0])) / (log10(xs[1]) - log10(xs[0]))) * (width - left - right);
  const Y = (v) => height - bottom -
      ((log10(v) - log10(ys[0])) / (log10(ys[1]) - log10(ys[0]))) * (height - top - bottom);
  const thin = (ticks, most) => ticks.filter((_, i) => i % Math.ceil(ticks.length / most) === 0);
  const plot = s(
      'svg',
      {class: 'scatter', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': view.label},
      s('clipPath', {id: 'plot-area'},
        s('rect', {x: left, y: top, width: width - left - right, height: height - top - bottom})));
  for (const t of thin(logTicks(...xs, [1]), 9)) {
    plot.append(
        s('line', {class: 'grid', x1: X(t), x2: X(t), y1: top, y2: height - bottom}),
        s('text', {x: X(t), y: height - bottom + 16, 'text-anchor': 'middle'}, view.format(t)));
  }
  for (const t of thin(logTicks(...ys, [1]), 8)) {
    plot.append(
        s('line', {class: 'grid', x1: left, x2: width - right, y1: Y(t), y2: Y(t)}),
        s('text', {x: left - 8, y: Y(t) + 4, 'text-anchor': 'end'},
          (view.formatY || view.format)(t)));
  }
  for (const guide of guides) {
    plot.append(s('polyline', {
      class: guide.main ? 'guide main' : 'guide',
      'clip-path': 'url(#plot-area)',
      points: guide.points.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(' ')
    }));
  }
  plot.append(
      s('text', {x: (left + width) / 2, y: height - 6, 'text-anchor': 'middle'}, view.x),
      s('text',
        {x: 14, y: height / 2, 'text-anchor': 'middle', transform: `rotate(-90 14 ${height / 2})`},
        view.y));
  for (const [backend, points] of groups) {
    const colour = `var(--s${backends.indexOf(backend) % 6})`;
    for (const p of points) {
      plot.append(
          s('circle', {
            class: 'point',
            cx: X(p.x).toFixed(1),
            cy: Y(p.y).toFixed(1),
            r: 4,
            style: `fill:${colour}`,
            onclick: () => onPick(p.c)
          },
            s('title', {}, tooltipLines(p.c).join('\n'))));
    }
  }
  const legend =
      h('div', {class: 'legend'},
        [...groups.keys()].map(
            (backend) => h(
                'span', {}, h('i', {style: `background:var(--s${backends.indexOf(backend) % 6})`}),
                backend)));
  return h('div', {}, legend, plot);
}

function floorSection(section, onPick) {
  const usable = (view) => cases.some((c) => c.status === 'passed' && view.point(c));
  const views = Object.keys(VIEWS).filter((key) => usable(VIEWS[key]));
  if (!views.length) return () => {};
  let current = views[0], chart = null;
  const withPoints = definitionNames.filter(
      (d) => cases.some(
          (c) => c.definition === d && c.status === 'passed' && VIEWS[current].point(c)));
  const select =
      h('select', {'aria-label': 'Definition', onchange: () => draw()},
        h('option', {value: ''}, `all definitions (${withPoints.length})`),
        withPoints.map((d) => h('option', {value: d}, d)));
  const buttons = views.map(
      (key) =>
          h('button', {
            type: 'button',
            class: 'tab',
            'aria-pressed': String(key === current),
            onclick: () => {
              current = key;
              buttons.forEach((b, i) => b.setAttribute('aria-pressed', String(views[i] === key)));
              draw();
            }
          },
            VIEWS[key].label));
  const area = h('div', {class: 'chart'}), note = h('p', {class: 'hint'});
  section.append(
      h('h2', {id: 'floor-title'}, 'Distance from the floor'),
      h('div', {class: 'controls'}, h('div', {class: 'tabs'}, buttons), select), area, note);
  section.hidden = false;

  function draw() {
    if (chart) chart.destroy();
    chart = null;
    const view = VIEWS[current], {groups, total, stride} = chartPoints(view, select.value);
    const points = [...groups.values()].flat();
    const xs = extent(points.map((p) => p.x), 1.3);
    const guides = view.guides(xs);
    const ys = extent(
        [
          ...points.map((p) => p.y),
          ...guides.filter((g) => g.main).flatMap((g) => g.points.map((p) => p[1]))
        ],
        1.3);
    if (typeof Chart === 'function') {
      const canvas =
          h('canvas', {role: 'img', 'aria-label': `${view.label}: ${plural(total, 'case')}`});
      area.replaceChildren(canvas);
      chart = chartJsScatter(canvas, view, groups, guides, xs, ys, onPick);
    } else {
      area.replaceChildren(svgScatter(view, groups, guides, xs, ys, onPick));
    }
    const under = points.filter((p) => belowFloor(p.c.xFloor)).length;
    note.textContent = [
      `${plural(total, 'passed case')}${stride > 1 ? `, every ${stride}th drawn` : ''}.`, view.hint,
      under ? `${plural(under, 'case')} below the floor: ${BELOW_HINT}` : '',
      'Select a point for its case.'
    ].join(' ');
  }
  draw();
  return draw;
}
