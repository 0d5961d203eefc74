// Small plots in plain SVG: distance from the floor, intervals around 1, samples and histograms.
const log10 = Math.log10;

// 1, 2, 5, 10, ... between low and high.
function logTicks(low, high, steps = [1, 2, 5]) {
  const ticks = [];
  for (let e = Math.floor(log10(low)); e <= Math.ceil(log10(high)); ++e) {
    for (const step of steps) {
      const tick = step * 10 ** e;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}

function extent(values, pad = 1.15) {
  const finite = values.filter((v) => v > 0 && isFinite(v));
  if (!finite.length) return [0.5, 2];
  return [
    finite.reduce((a, b) => Math.min(a, b)) / pad, finite.reduce((a, b) => Math.max(a, b)) * pad
  ];
}

// One dot per case on a logarithmic axis with a line at 1 (the floor, the limit); the bar is at
// `mean`, which the caller chose.
function floorStrip(factors, mean, [low, high], width = 190, label = 'times the floor') {
  const height = 18,
        x = (v) => 4 + ((log10(v) - log10(low)) / (log10(high) - log10(low))) * (width - 8);
  const shown = factors.length > 200 ?
      factors.filter((_, i) => i % Math.ceil(factors.length / 200) === 0) :
      factors;
  return s(
      'svg', {
        class: 'strip',
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: 'img',
        'aria-label':
            `${factors.length} cases around ${formatFactor(mean)} ${label}`
      },
      logTicks(low, high, [1])
          .map((t) => s('line', {class: 'grid', x1: x(t), x2: x(t), y1: 1, y2: height - 1})),
      low <= 1 && high >= 1 ? s('line', {class: 'one', x1: x(1), x2: x(1), y1: 0, y2: height}) :
                              null,
      shown.map((v) => s('circle', {class: 'dot', cx: x(v).toFixed(1), cy: height / 2, r: 2.4})),
      s('line', {class: 'mean', x1: x(mean), x2: x(mean), y1: 3, y2: height - 3}));
}

// Speed-ups around 1: faint dots for workloads, a bar for the interval, a mark for the value.
function forest(value, interval, dots, [low, high], width = 220) {
  const height = 18, clamp = (v) => Math.min(Math.max(v, low), high);
  const x = (v) => 4 + ((log10(clamp(v)) - log10(low)) / (log10(high) - log10(low))) * (width - 8);
  const range = interval ? interval.map(num) : null;
  const side = range && range[0] > 1 ? 'good' : range && range[1] < 1 ? 'bad' : '';
  return s(
      'svg', {
        class: `forest ${side}`,
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: 'img',
        'aria-label':
            `${formatFactor(value)}${range ? `, interval ${formatInterval(interval)}` : ''}`
      },
      s('line', {class: 'one', x1: x(1), x2: x(1), y1: 0, y2: height}),
      dots.map((v) => s('circle', {class: 'dot', cx: x(v).toFixed(1), cy: height / 2, r: 2})),
      range ?
          s('line',
            {class: 'range', x1: x(range[0]), x2: x(range[1]), y1: height / 2, y2: height / 2}) :
          null,
      s('rect', {class: 'value', x: x(value) - 3, y: height / 2 - 3, width: 6, height: 6}));
}

// Samples in the order they were taken, one panel per repeat, with the median and its interval.
function samplePlot(series, timing, width = 520, height = 96) {
  const all = series.flatMap((r) => r.samples);
  if (!all.length) return null;
  const sorted = [...all].sort((a, b) => a - b);
  // A few outliers must not flatten the rest; they are drawn at the edge.
  const q = (p) => sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))];
  const spread = Math.max(q(0.95) - q(0.05), timing.median * 0.004);
  const low = Math.max(sorted[0], q(0.05) - 1.5 * spread),
        high = Math.min(sorted[sorted.length - 1], q(0.95) + 1.5 * spread);
  const left = 58, top = 6, bottom = 16, gap = 10;
  const y = (v) => top +
      (1 - (Math.min(Math.max(v, low), high) - low) / (high - low || 1)) * (height - top - bottom);
  const panel = (width - left - gap * (series.length - 1)) / series.length;
  const plot = s('svg', {
    class: 'samples',
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: 'img',
    'aria-label': `${all.length} samples of ${timing.mode} in time order`
  });
  plot.append(
      s('rect', {
        class: 'band',
        x: left,
        width: width - left,
        y: y(timing.high),
        height: Math.max(1, y(timing.low) - y(timing.high))
      }),
      s('line',
        {class: 'median', x1: left, x2: width, y1: y(timing.median), y2: y(timing.median)}));
  const labels = [high, low];
  if (Math.abs(y(timing.median) - y(high)) > 14 && Math.abs(y(timing.median) - y(low)) > 14)
    labels.push(timing.median);
  for (const v of labels)
    plot.append(s('text', {x: left - 6, y: y(v) + 4, 'text-anchor': 'end'}, formatTime(v)));
  series.forEach((r, i) => {
    const x0 = left + i * (panel + gap);
    const x = (k) => x0 + (r.samples.length > 1 ? (k / (r.samples.length - 1)) * panel : panel / 2);
    if (i > 0)
      plot.append(
          s('line',
            {class: 'grid', x1: x0 - gap / 2, x2: x0 - gap / 2, y1: top, y2: height - bottom}));
    const path =
        r.samples.map((v, k) => `${k ? 'L' : 'M'}${x(k).toFixed(1)} ${y(v).toFixed(1)}`).join('');
    plot.append(
        s('path', {class: 'line', d: path}),
        s('text', {x: x0 + panel / 2, y: height - 3, 'text-anchor': 'middle'},
          `repeat ${r.repeat + 1}: ${formatCount(r.count)}, ${r.stop}`));
  });
  return plot;
}

function histogram(series, timing, width = 250, height = 96) {
  const values = series.flatMap((r) => r.samples).sort((a, b) => a - b);
  if (values.length < 8) return null;
  const cut = values[Math.min(values.length - 1, Math.floor(0.98 * values.length))];
  const low = values[0], high = cut > low ? cut : low + 1;
  const bins = Math.max(8, Math.min(40, Math.round(Math.sqrt(values.length) * 1.5)));
  const counts = new Array(bins).fill(0);
  for (const v of values)
    counts[Math.min(bins - 1, Math.floor(((v - low) / (high - low)) * bins))] += 1;
  const top = 6, bottom = 16, most = counts.reduce((a, b) => Math.max(a, b));
  const x = (v) => ((Math.min(Math.max(v, low), high) - low) / (high - low)) * width;
  const bar = width / bins;
  return s(
      'svg', {
        class: 'histogram',
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: 'img',
        'aria-label': `Histogram of ${values.length} samples`
      },
      counts.map((n, i) => s('rect', {
                   class: 'bin',
                   x: (i * bar + 0.5).toFixed(1),
                   width: Math.max(1, bar - 1).toFixed(1),
                   y: top + (1 - n / most) * (height - top - bottom),
                   height: (n / most) * (height - top - bottom)
                 })),
      s('line', {
        class: 'median',
        x1: x(timing.median),
        x2: x(timing.median),
        y1: top,
        y2: height - bottom
      }),
      s('text', {x: 0, y: height - 3}, formatTime(low)),
      s('text', {x: width, y: height - 3, 'text-anchor': 'end'}, `≥ ${formatTime(high)}`));
}

// Share of the tolerance that the worst element used; the tick is the limit.
function budgetBar(budget, failed) {
  const width = 56, height = 8, scale = width / 1.25;
  const used = isFinite(budget) ? Math.min(budget, 1.25) : 1.25;
  return s(
      'svg', {
        class: `budget ${failed ? 'bad' : ''}`,
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        'aria-hidden': 'true'
      },
      s('rect', {class: 'track', x: 0, y: 2, width, height: 4, rx: 1}),
      s('rect', {class: 'fill', x: 0, y: 2, width: Math.max(used * scale, 0.5), height: 4, rx: 1}),
      s('line', {class: 'limit', x1: scale, x2: scale, y1: 0, y2: height}));
}
