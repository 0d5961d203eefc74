// The sections of tables around the case table: definitions, comparison, environment.
function definitionsSection(section, table) {
  if (!definitions.length) return;
  const factors = (d) =>
      cases
          .filter(
              (c) => c.definition === d.definition && c.backend === d.backend &&
                  c.source === d.source && c.status === 'passed' && !isNaN(c.xFloor))
          .map((c) => c.xFloor);
  const all = definitions.map(factors);
  const range = extent([1, ...all.flat()], 1.1);
  const speedup = (d) =>
      comparisons.find((k) => k.definition === d.definition && k.backend === d.backend);
  let previous = null;
  const rows = definitions.map((d, i) => {
    const same = previous === d.definition, k = speedup(d);
    previous = d.definition;
    return h(
        'tr', {class: same ? 'same' : ''},
        h('td', {},
          same ? h('span', {class: 'visually-hidden'}, d.definition) :
                 h('button', {
                   type: 'button',
                   class: 'link',
                   title: 'Show its cases',
                   onclick: () => {
                     table.change({definition: d.definition});
                     byId('cases').scrollIntoView();
                   }
                 },
                   nameOf(d.definition))),
        h('td', {}, h('span', {class: 'name'}, d.backend)),
        raw.mixed_sources ? h('td', {}, d.source) : null,
        h('td', {class: 'n more'}, formatCount(d.cases)),
        h('td', {class: 'n more'}, formatCount(d.passed)),
        h('td', {class: `n ${d.failures ? 'bad' : 'dim'}`},
          d.failures ? formatCount(d.failures) : NONE),
        h('td', {class: 'n'}, d.median > 0 ? formatTime(d.median) : NONE),
        h('td', {class: `n ${d.geomean > 0 && belowFloor(d.geomean) ? 'warn' : ''}`},
          d.geomean > 0 ? formatFactor(d.geomean) : NONE),
        h('td', {class: 'n'}, formatOfFloor(d.geomean)),
        h('td', {}, all[i].length ? floorStrip(all[i], d.geomean, range) : null),
        comparisons.length ? h('td', {class: 'n'},
                               d.backend === raw.baseline ? (d.timed ? '1' : NONE) :
                                   k                      ? formatFactor(k.median) :
                                                            NONE) :
                             null);
  });
  const ticks = logTicks(...range, range[1] / range[0] > 30 ? [1] : [
                  1, 2, 5
                ]).map((t) => `${formatFactor(t)}×`);
  put(section, h('h2', {id: 'definitions-title'}, 'Definitions'),
      h('div', {class: 'scroll'},
        h('table', {class: 'plain'},
          h('thead', {},
            h('tr', {}, h('th', {scope: 'col'}, 'Definition'), h('th', {scope: 'col'}, 'Backend'),
              raw.mixed_sources ? h('th', {scope: 'col'}, 'Inputs') : null,
              h('th', {scope: 'col', class: 'n more'}, 'Cases'),
              h('th', {scope: 'col', class: 'n more'}, 'Passed'),
              h('th', {scope: 'col', class: 'n'}, 'Failures'),
              h('th', {scope: 'col', class: 'n'}, 'Median'),
              h('th', {scope: 'col', class: 'n'}, '× floor'),
              h('th', {scope: 'col', class: 'n'}, 'of floor'),
              h('th', {scope: 'col'}, 'Cases from the floor outwards'),
              comparisons.length ? h('th', {scope: 'col', class: 'n'}, `vs ${raw.baseline}`) :
                                   null)),
          h('tbody', {}, rows))),
      h('p', {class: 'hint'},
        '× floor is the geometric mean of median time over floor, of passed cases. ' +
            'Each dot is a case on a logarithmic axis ' +
            `(lines at ${
                logTicks(...range, [1]).map((t) => `${formatFactor(t)}×`).join(', ') ||
                ticks.join(', ')}); the bar is the mean.`));
  section.hidden = false;
}

function comparisonSection(section, table) {
  if (!comparisons.length) return;
  const speedups = comparisons.flatMap(
      (k) => k.workloads.flatMap((w) => [w.speedup, ...(w.interval || []).map(num)]));
  const [low, high] = extent([1, ...speedups], 1.1);
  const reach = Math.max(high, 1 / low, 1.2), range = [1 / reach, reach];
  const rows = comparisons.flatMap((k) => {
    const workloads = k.workloads.slice(0, 300).map(
        (w) =>
            h('tr', {class: 'workload', hidden: true},
              h('td', {},
                h('button',
                  {type: 'button', class: 'link indent', onclick: () => table.reveal(w.other)},
                  h('span', {class: 'name'}, w.other.axesText || w.other.uuid.slice(0, 8)))),
              h('td', {}, w.mode),
              h('td', {class: 'n'},
                `${formatTime(w.base.median)} → ${formatTime(w.base.median / w.speedup)}`),
              h('td', {class: 'n'}, formatFactor(w.speedup)),
              h('td', {class: 'n'}, formatInterval(w.interval)),
              h('td', {}, forest(w.speedup, w.interval, [], range))));
    const toggle =
        h('button', {
          type: 'button',
          class: 'link',
          'aria-expanded': 'false',
          onclick: () => {
            const open = toggle.getAttribute('aria-expanded') !== 'true';
            toggle.setAttribute('aria-expanded', String(open));
            workloads.forEach((row) => {
              row.hidden = !open;
            });
          }
        },
          nameOf(k.definition));
    const single = k.workloads.length === 1;
    return [
      h('tr', {}, h('td', {}, toggle), h('td', {}, h('span', {class: 'name'}, k.backend)),
        h('td', {class: 'n'}, plural(k.workloads.length, 'workload')),
        h('td', {class: 'n'}, formatFactor(k.median)),
        h('td', {class: 'n'},
          single ?
              formatInterval(k.workloads[0].interval) :
              k.interval ?
              formatInterval(k.interval) :
              h('span',
                {class: 'dim', title: 'smallest and largest; too few workloads for an interval'},
                `${formatFactor(k.worst)} … ${formatFactor(k.best)}`)),
        h('td', {},
          forest(
              k.median, single ? k.workloads[0].interval : k.interval,
              single ? [] : k.workloads.map((w) => w.speedup), range))),
      workloads
    ].flat();
  });
  put(section,
      h('h2', {id: 'comparison-title'}, 'Speed-up over ', h('span', {class: 'name'}, raw.baseline)),
      h('div', {class: 'scroll'},
        h('table', {class: 'plain'},
          h('thead', {},
            h('tr', {}, h('th', {scope: 'col'}, 'Definition'), h('th', {scope: 'col'}, 'Backend'),
              h('th', {scope: 'col', class: 'n'}, 'Over'),
              h('th', {scope: 'col', class: 'n'}, 'Speed-up'),
              h('th', {scope: 'col', class: 'n'}, '95 % interval'),
              h('th', {scope: 'col'},
                `${formatFactor(range[0])}× to ${formatFactor(range[1])}×, line at 1`))),
          h('tbody', {}, rows))),
      h('p', {class: 'hint'},
        'Time of the baseline over time of the backend, same workload, same timing mode, ' +
            'both passed; above 1 is faster. Median over workloads; open a definition for each.'));
  section.hidden = false;
}

function environmentSection(section) {
  const ceiling = (label, value, format) => (value > 0 ? fact(label, format(value)) : []);
  const measured =
      [raw.gpu_ceilings, raw.ceilings].filter((k) => k && (k.copy_bytes > 0 || k.bf16_flops > 0));
  const models = new Map();
  for (const c of cases)
    if (c.model) models.set(c.model, (models.get(c.model) || 0) + 1);
  put(section, h('h2', {id: 'environment-title'}, 'Environment and provenance'),
      h('div', {class: 'columns'},
        h('div', {}, h('h3', {}, 'Run'),
          h('dl', {class: 'facts'},
            raw.run.map(
                ([label, value]) => fact(
                    label.toLowerCase(),
                    ['Command', 'Commit', 'Run', 'Device identity'].includes(label) ?
                        h('code', {}, value) :
                        value)))),
        h('div', {}, h('h3', {}, 'Measured ceilings'),
          measured.length ?
              measured.map(
                  (k) =>
                      h('dl', {class: 'facts'}, fact('device', k.device),
                        fact('measured', k.measured),
                        ceiling('copy', k.copy_bytes, (v) => formatRate(v, 'B/s')),
                        ceiling('read', k.read_bytes, (v) => formatRate(v, 'B/s')),
                        ceiling('write', k.write_bytes, (v) => formatRate(v, 'B/s')),
                        ceiling('bf16 matrix', k.bf16_flops, (v) => formatRate(v, 'FLOP/s')),
                        ceiling('f32 matrix', k.f32_flops, (v) => formatRate(v, 'FLOP/s')),
                        ceiling('launch', k.launch_ns, formatTime))) :
              h('p', {class: 'hint'},
                'The machine was not measured: no floors. assay device measures it.'),
          models.size ?
              [
                h('h3', {}, 'Workloads from'),
                h('dl', {class: 'facts'},
                  [...models].map(([model, n]) => fact(plural(n, 'case'), model)))
              ] :
              null)));
}
