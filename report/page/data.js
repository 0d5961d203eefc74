// Decodes the data block into plain objects. Field order: report/html_data.cpp.
const errors = [];  // uncaught errors, for the self-test
addEventListener('error', (event) => errors.push(String(event.message)));

const raw = JSON.parse(document.getElementById('data').textContent);

const text = (index) => raw.strings[index];
// What limits a case: the run's GPU, except for the CPU backends beside it.
const ceilingsOf = (c) =>
    (raw.gpu_ceilings && !(c.timing && c.timing.mode.endsWith('_host')) ? raw.gpu_ceilings :
                                                                         raw.ceilings);
// Numbers that JSON cannot hold arrive as strings.
const num = (value) => (value === null || value === undefined ? NaN : Number(value));

function decodeCheck(row) {
  const check = {
    output: text(row[0]),
    grade: text(row[1]),
    rowsChecked: row[2],
    rowsTotal: row[3],
    mismatches: row[4],
    maxAbs: num(row[5]),
    relL2: num(row[6]),
    budget: num(row[7]),
    problem: '',
    worst: null,
  };
  if (row.length > 8) {
    check.problem = text(row[8]);
    check.worst = {index: row[9], got: num(row[10]), expected: num(row[11]), allowed: num(row[12])};
  }
  return check;
}

function decodeTiming(row) {
  return {
    mode: text(row[0]),
    median: num(row[1]),
    low: num(row[2]),
    high: num(row[3]),
    repeats: row[4],
    samples: row[5],
    spread: num(row[6]),
    noisy: row[7] === 1,
    min: num(row[8]),
    max: num(row[9]),
    mean: num(row[10]),
    p90: num(row[11]),
    p95: num(row[12]),
    p99: num(row[13]),
  };
}

function decodeCase(row, index) {
  const names = raw.axis_sets[row[4][0]];
  const c = {
    index,
    uuid: row[0],
    definition: text(row[1]),
    family: text(row[2]),
    backend: text(row[3]),
    axes: names.map((name, i) => [name, row[4][i + 1]]),
    status: text(row[5]),
    sub: text(row[6]),
    grade: text(row[7]),
    reason: text(row[8]),
    flags: row[9].map(text),
    share: row[10] < 0 ? NaN : num(row[10]),
    contentSets: row[11],
    checks: row[12].map(decodeCheck),
    findings: row[13].map((f) => ({
                            name: text(f[0]),
                            passed: f[1] === 1,
                            measured: num(f[2]),
                            limit: num(f[3]),
                            detail: text(f[4])
                          })),
    timings: row[15].map(decodeTiming),
    floor: {
      ns: num(row[16][0]),
      flops: num(row[16][1]),
      bytes: num(row[16][2]),
      bound: text(row[16][3])
    },
    model: text(row[17][0]),
    phase: text(row[17][1]),
    request: text(row[17][2]),
    source: text(row[17][3]),
    started: row[18][0],
    seconds: num(row[18][1]),
    setupMs: num(row[18][2]),
    overheadMs: num(row[18][3]),
    peakBytes: row[18][4],
    series: row[19].map(
        (s) => ({mode: text(s[0]), repeat: s[1], stop: text(s[2]), count: s[3], samples: s[4]})),
    hashes: row[20].map(([name, hash]) => [text(name), text(hash)]),
    engine: (row[21] || []).map(([output, maxAbs, maxRel, relL2, differing, elements]) => ({
                                  output: text(output),
                                  maxAbs: num(maxAbs),
                                  maxRel: num(maxRel),
                                  relL2: num(relL2),
                                  differing,
                                  elements
                                })),
  };
  c.axesText = c.axes.map(([name, value]) => `${name}=${value}`).join(' ');
  c.timing = row[14] >= 0 ? c.timings[row[14]] : null;
  c.median = c.timing ? c.timing.median : NaN;
  // Below 6 samples there is no two-sided interval.
  c.halfWidth = c.timing && c.median > 0 && c.timing.samples >= 6 ?
      (c.timing.high - c.timing.low) / 2 / c.median :
      NaN;
  c.xFloor = c.timing && c.floor.ns > 0 ? c.median / c.floor.ns : NaN;
  c.budget = c.checks.length ?
      Math.max(...c.checks.map((k) => (isNaN(k.budget) ? Infinity : k.budget))) :
      NaN;
  c.verdict =
      [c.status, c.status === 'passed' || !c.sub ? c.grade : c.sub].filter(Boolean).join(' ');
  c.searchText = [
    c.definition, c.axesText, c.backend, c.verdict, c.grade, c.reason, c.model, c.phase, c.request,
    c.uuid, c.source, ...c.flags
  ].join(' ').toLowerCase();
  return c;
}

const cases = raw.cases.map(decodeCase);
const definitions = raw.definitions.map((row) => ({
                                          definition: text(row[0]),
                                          backend: text(row[1]),
                                          source: text(row[2]),
                                          cases: row[3],
                                          passed: row[4],
                                          failures: row[5],
                                          timed: row[6],
                                          noisy: row[7],
                                          median: num(row[8]),
                                          geomean: num(row[9]),
                                        }));
const comparisons =
    raw.comparisons.map((row) => ({
                          definition: text(row[0]),
                          backend: text(row[1]),
                          median: num(row[2]),
                          interval: row[3],
                          worst: num(row[4]),
                          best: num(row[5]),
                          workloads: row[6].map(([base, other, mode, speedup, interval]) => ({
                                                  base: cases[base],
                                                  other: cases[other],
                                                  mode: text(mode),
                                                  speedup: num(speedup),
                                                  interval,
                                                })),
                        }));

// Good, bad and in between: the same classes as in the terminal.
const TONES = {
  passed: 'good',
  unsupported: 'dim',
  'pending-audit': 'dim',
  incorrect: 'bad',
  failed: 'bad',
  oom: 'warn',
  timeout: 'warn',
  suspicious: 'warn',
  invalid_reference: 'warn',
  invalid_record: 'warn',
};
const STATUS_ORDER = [
  'passed', 'incorrect', 'failed', 'oom', 'timeout', 'suspicious', 'invalid_reference',
  'invalid_record', 'pending-audit', 'unsupported'
];
const toneOf = (status) => TONES[status] || 'bad';
const isFailure = (c) => toneOf(c.status) === 'bad' || toneOf(c.status) === 'warn';
const backends = [...new Set(cases.map((c) => c.backend))].sort();
const definitionNames = [...new Set(cases.map((c) => c.definition))];
const statuses = STATUS_ORDER.filter((status) => cases.some((c) => c.status === status));

// The output that explains a failure: one with a problem before others, then by budget.
function worstCheck(c) {
  const severity =
      (k) => [k.problem || k.mismatches > 0 ? 1 : 0, isNaN(k.budget) ? Infinity : k.budget];
  return c.checks.reduce((worst, k) => {
    if (!worst) return k;
    const [a, b] = [severity(k), severity(worst)];
    return a[0] > b[0] || (a[0] === b[0] && a[1] > b[1]) ? k : worst;
  }, null);
}
