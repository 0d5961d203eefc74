// Everything about one case, shown below its row or its failure.
const fact = (label, value) =>
    (value === '' || value === null || value === undefined ?
         [] :
         [h('dt', {}, label), h('dd', {}, value)]);

function elementText(check) {
  const index = check.worst && check.worst.index.length ? `[${check.worst.index.join(', ')}]` : '';
  return `${check.output}${index}`;
}

// The worst element with both values; the words of verification when there is none.
function worstLine(check) {
  const worst = check.worst;
  if (!worst || !worst.index.length) return null;
  const [got, expected] = formatPair(worst.got, worst.expected);
  const off = Math.abs(worst.got - worst.expected);
  const pair = (label, value) => h('div', {}, fact(label, value));
  return h(
      'dl', {class: 'element'}, pair('element', elementText(check)), pair('got', got),
      pair('expected', expected), pair('off by', formatError(off)),
      pair('allowed', `± ${formatError(worst.allowed)}`),
      worst.allowed > 0 && off > worst.allowed ?
          pair('that is', `${formatFactor(off / worst.allowed)} × the tolerance`) :
          null);
}

function failureReasons(c) {
  const check = worstCheck(c);
  const element = check && check.mismatches > 0 && check.worst ? elementText(check) : null;
  const said = [
    check ? check.problem : '', c.reason,
    ...c.findings.filter((f) => !f.passed)
        .map(
            (f) => `${f.name}: ${formatError(f.measured)} against a limit of ${
                formatError(f.limit)}${f.detail ? `, ${f.detail}` : ''}`)
  ];
  // Verification's own sentence about the worst element would repeat the line above it.
  return [...new Set(said)].filter((line) => line && !(element && line.startsWith(element)));
}

const simpleTable = (heads, rows) => h(
    'table', {class: 'small'},
    h('thead', {},
      h('tr', {},
        heads.map(
            ([label, numeric]) => h('th', {class: numeric ? 'n' : '', scope: 'col'}, label)))),
    h('tbody', {},
      rows.map(
          (cells) => h(
              'tr', {}, cells.map((cell, i) => h('td', {class: heads[i][1] ? 'n' : ''}, cell))))));

function checksBlock(c) {
  if (!c.checks.length) return null;
  const rows = c.checks.map(
      (k) =>
          [h('span', {class: 'name'}, k.output),
           k.grade || h('span', {class: 'bad'}, 'none met'),
           `${formatCount(k.rowsChecked)} of ${formatCount(k.rowsTotal)}`,
           formatCount(k.mismatches),
           formatError(k.maxAbs),
           formatError(k.relL2),
           h('span', {class: 'meter'}, budgetBar(k.budget, !k.grade), h('b', {}, formatFactor(k.budget))),
           k.worst && k.worst.index.length ?
               `${elementText(k)}: ${formatPair(k.worst.got, k.worst.expected).join(' for ')}` :
               NONE,
  ]);
  const findings = c.findings.map(
      (f) =>
          [h('span', {class: f.passed ? '' : 'bad'}, f.name), formatError(f.measured),
           formatError(f.limit), f.detail]);
  return h(
      'div', {class: 'block'}, h('h4', {}, 'Checks against the fp64 reference'),
      simpleTable(
          [
            ['output'], ['grade'], ['rows checked', 1], ['outside', 1], ['max abs', 1],
            ['rel L2', 1], ['budget used', 1], ['worst element (got for expected)']
          ],
          rows),
      findings.length ?
          simpleTable(
              [['whole-output check'], ['measured', 1], ['limit', 1], ['where']], findings) :
          null,
      c.contentSets ? h('p', {class: 'hint'}, `${plural(c.contentSets, 'content set')} checked.`) :
                      null);
}

function engineBlock(c) {
  if (!c.engine.length) return null;
  return h(
      'div', {class: 'block'}, h('h4', {}, 'Against the engine, beside the verdict'),
      simpleTable(
          [
            ['output'], ['max abs', 1], ['max relative', 1], ['rel L2', 1], ['differing elements', 1]
          ],
          c.engine.map(
              (e) =>
                  [h('span', {class: 'name'}, e.output), formatError(e.maxAbs),
                   formatError(e.maxRel), formatError(e.relL2),
                   `${formatCount(e.differing)} of ${formatCount(e.elements)}`])));
}

function timingBlock(c) {
  if (!c.timings.length) return null;
  const rows = c.timings.map(
      (t) =>
          [t.mode, formatTime(t.median),
           t.samples >= 6 ? `${formatTime(t.low)} – ${formatTime(t.high)}` : NONE,
           formatTime(t.min), formatTime(t.p90), formatTime(t.p95), formatTime(t.p99),
           formatTime(t.max), formatCount(t.samples), t.repeats,
           h('span', {class: t.noisy ? 'warn' : ''},
             `${formatFactor(t.spread)}${t.noisy ? ' noisy' : ''}`)]);
  const plots = c.timings.map((t) => {
    const series = c.series.filter((r) => r.mode === t.mode && r.samples.length);
    if (series.reduce((sum, r) => sum + r.samples.length, 0) < 2) return null;
    return h(
        'figure', {},
        h('figcaption', {},
          `${t.mode}: samples in time order, line at the median, band = its 95 % interval`),
        h('div', {class: 'plots'}, samplePlot(series, t), histogram(series, t)));
  });
  return h(
      'div', {class: 'block'}, h('h4', {}, 'Timing'),
      simpleTable(
          [
            ['mode'], ['median', 1], ['95 % interval', 1], ['min', 1], ['p90', 1], ['p95', 1],
            ['p99', 1], ['max', 1], ['samples', 1], ['repeats', 1], ['spread', 1]
          ],
          rows),
      plots);
}

function floorBlock(c) {
  const {ns, flops, bytes, bound} = c.floor;
  if (!(ns > 0)) return null;
  const seconds = c.median * 1e-9,
        share = (rate, ceiling) =>
            (ceiling > 0 ? ` (${formatShare(rate / ceiling)} of the ceiling)` : '');
  return h(
      'div', {class: 'block'}, h('h4', {}, 'Floor'),
      h('dl', {class: 'facts'}, fact('floor', `${formatTime(ns)}, bound by ${bound || '?'}`),
        fact(
            'work',
            `${
                scaled(
                    flops, 1000,
                    ['FLOP', 'kFLOP', 'MFLOP', 'GFLOP', 'TFLOP',
                     'PFLOP'])}, at least ${formatBytes(bytes)}` +
                (bytes > 0 ? `, ${formatFactor(flops / bytes)} FLOP/B` : '')),
        c.timing && flops > 0 ? fact(
                                    'matrix rate',
                                    formatRate(flops / seconds, 'FLOP/s') +
                                        share(flops / seconds, ceilingsOf(c).bf16_flops)) :
                                [],
        c.timing && bytes > 0 ? fact(
                                    'bandwidth',
                                    formatRate(bytes / seconds, 'B/s') +
                                        share(bytes / seconds, ceilingsOf(c).copy_bytes)) :
                                []));
}

// The same workload on other backends.
function peersBlock(c) {
  const peers = cases.filter((o) => o.uuid === c.uuid && o.definition === c.definition && o !== c);
  if (!peers.length) return null;
  const ratio = (o) => {
    const same = c.timing && o.timings.find((t) => t.mode === c.timing.mode);
    return same && c.status === 'passed' && o.status === 'passed' ?
        formatFactor(same.median / c.median) :
        NONE;
  };
  return h(
      'div', {class: 'block'}, h('h4', {}, 'Same workload elsewhere'),
      simpleTable(
          [['backend'], ['verdict'], ['median', 1], ['its time / this time', 1]],
          peers.map(
              (o) =>
                  [h('span', {class: 'name'}, o.backend),
                   [chip(o.status), ' ', o.status === 'passed' ? o.grade : o.sub],
                   formatTime(o.median), ratio(o)])));
}

function provenanceBlock(c) {
  return h(
      'div', {class: 'block'}, h('h4', {}, 'Provenance'),
      h('dl', {class: 'facts'}, fact('uuid', h('span', {class: 'name'}, c.uuid)),
        fact('model', c.model), fact('phase', c.phase), fact('request', c.request),
        fact('inputs', c.source), fact('flags', c.flags.join(', ')), fact('started', c.started),
        fact(
            'case took',
            `${formatFactor(c.seconds)} s, set-up ${formatFactor(c.setupMs)} ms, overhead ${
                formatFactor(c.overheadMs)} ms`),
        c.peakBytes > 0 ? fact('peak memory', formatBytes(c.peakBytes)) : [],
        c.hashes.map(
            ([tensor, hash]) =>
                fact(`SHA-256 of ${tensor}`, h('span', {class: 'name hash'}, hash))),
        fact('run it again', h('code', {}, `assay run --uuid ${c.uuid} --backend ${c.backend}`))));
}

function detailsOf(c) {
  const check = isFailure(c) ? worstCheck(c) : null;
  return h(
      'div', {class: 'details'},
      isFailure(c) ?
          h('div', {class: 'block wide'}, check && check.mismatches > 0 ? worstLine(check) : null,
            failureReasons(c).map((line) => h('p', {class: 'reason'}, line))) :
          c.reason ? h('p', {class: 'reason'}, c.reason) :
                     null,
      checksBlock(c), engineBlock(c), timingBlock(c),
      h('div', {class: 'columns'}, h('div', {class: 'details'}, floorBlock(c), peersBlock(c)),
        provenanceBlock(c)));
}
