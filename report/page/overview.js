// The top of the page: what the run came to, and what failed.

// append() would print null.
const put = (section, ...children) => section.append(...children.flat().filter(Boolean));

const median = (values) => {
  const sorted = values.filter((v) => !isNaN(v)).sort((a, b) => a - b);
  if (!sorted.length) return NaN;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

function headlineOf(passed, failed) {
  const all = plural(cases.length, 'case');
  if (!cases.length) return 'No cases were run';
  if (failed) return `${formatCount(failed)} of ${all} need attention`;
  if (passed === cases.length) return `All ${all} passed`;
  return `${formatCount(passed)} of ${all} passed, no failures`;
}

function overviewSection(section, table) {
  const counts =
      statuses.map((status) => [status, cases.filter((c) => c.status === status).length]);
  const passed = cases.filter((c) => c.status === 'passed'), failed = cases.filter(isFailure);
  const headline = headlineOf(passed.length, failed.length);
  const samples = passed.reduce((sum, c) => sum + (c.timing ? c.timing.samples : 0), 0);
  const noisy = passed.filter((c) => c.timing && c.timing.noisy).length;
  const factors = passed.map((c) => c.xFloor).filter((v) => !isNaN(v));
  const closest = factors.length ?
      passed.filter((c) => !isNaN(c.xFloor)).reduce((a, b) => (b.xFloor < a.xFloor ? b : a)) :
      null;
  const budgets = passed.map((c) => c.budget).filter(isFinite);
  const tile = (label, value, hint) =>
      h('div', {class: 'tile'}, h('div', {class: 'label'}, label),
        h('div', {class: 'value'}, value), h('div', {class: 'hint'}, hint));
  const run = Object.fromEntries(raw.run);
  put(section,
      h('div', {class: 'verdict'},
        h('p', {class: failed.length ? 'headline bad' : 'headline'}, headline),
        h('p', {class: 'hint'},
          [run.GPU || run.Device || run.Host, run.Started, run.Command && h('code', {}, run.Command)]
              .filter(Boolean)
              .flatMap((part, i) => (i ? [' · ', part] : [part])))),
      cases.length ?
          h('div', {
            class: 'bar',
            role: 'img',
            'aria-label': counts.map(([status, n]) => `${n} ${status}`).join(', ')
          },
            counts.map(
                ([status, n]) =>
                    h('span',
                      {class: toneOf(status), style: `flex-grow:${n}`, title: `${n} ${status}`}))) :
          null,
      h('div', {class: 'chips'},
        counts.map(
            ([status, n]) =>
                h('button', {
                  type: 'button',
                  class: `chip toggle ${toneOf(status)}`,
                  title: 'Show these cases',
                  onclick: () => {
                    table.change(
                        {statuses: new Set([status]), query: '', backend: '', definition: ''});
                    table.query.value = '';
                    byId('cases').scrollIntoView();
                  }
                },
                  `${formatCount(n)} ${status}`))),
      passed.length ?
          h('div', {class: 'tiles'},
            tile(
                'Rows checked', formatShare(median(passed.map((c) => c.share))),
                'median of passed cases, against fp64'),
            tile(
                'Error budget used',
                budgets.length ? formatFactor(budgets.reduce((a, b) => Math.max(a, b))) : NONE,
                `largest of passed; median ${formatFactor(median(budgets))}`),
            tile(
                'Nearest to the floor', closest ? `${formatFactor(closest.xFloor)} ×` : NONE,
                closest ? `${closest.definition}, ${closest.backend}` : 'no floor known'),
            tile(
                'Timing interval', `± ${formatPercent(median(passed.map((c) => c.halfWidth)))}`,
                `median half-width; ${formatCount(samples)} samples, ${
                    noisy ? `${formatCount(noisy)} noisy` : 'none noisy'}`)) :
                            null,
      raw.note ? h('p', {class: 'hint'}, raw.note) : null);
}

// Failures of one definition and backend that look alike: the worst of them stands for all.
function failureGroups() {
  const groups = new Map();
  for (const c of cases.filter(isFailure)) {
    const key = [c.definition, c.backend, c.status, c.sub].join('\n');
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(c);
  }
  const severity = (c) => (isNaN(c.budget) ? -1 : c.budget);
  return [...groups.values()].map(
      (members) => ({
        members,
        worst: members.reduce((a, b) => (severity(b) > severity(a) ? b : a)),
      }));
}

function failureItem({worst: c, members}, table) {
  const check = worstCheck(c), elements = check && check.mismatches > 0;
  const others = members.length - 1;
  const showAll = () => {
    table.query.value = c.sub;
    table.change({
      query: c.sub,
      statuses: new Set([c.status]),
      backend: c.backend,
      definition: c.definition
    });
    byId('cases').scrollIntoView();
  };
  return h(
      'li', {class: `failure ${toneOf(c.status)}`},
      h('div', {class: 'what'}, chip(c.status), c.sub ? h('b', {}, c.sub) : null,
        nameOf(c.definition), h('span', {class: 'name dim'}, c.axesText || c.uuid.slice(0, 8)),
        h('span', {}, h('span', {class: 'on'}, 'on '), h('span', {class: 'name'}, c.backend)),
        h('span', {class: 'actions'},
          others ? h('button', {type: 'button', class: 'quiet', onclick: showAll},
                     `and ${formatCount(others)} more like it`) :
                   null,
          h('button', {type: 'button', class: 'quiet', onclick: () => table.reveal(c)},
            'Details'))),
      elements ? worstLine(check) : null,
      failureReasons(c).map((line) => h('p', {class: 'reason'}, line)),
      elements ? h('p', {class: 'hint'},
                   `${plural(check.mismatches, 'element')} outside the loosest grade; ${
                       formatShare(c.share)} of rows checked`) :
                 null);
}

function failuresSection(section, table) {
  const groups = failureGroups(), most = 25;
  if (!groups.length) return;
  const list =
      h('ol', {class: 'failures'}, groups.slice(0, most).map((group) => failureItem(group, table)));
  const more = groups.length > most ? h('button', {
    type: 'button',
    class: 'quiet',
    onclick: () => {
      list.append(...groups.slice(most).map((group) => failureItem(group, table)));
      more.remove();
    }
  },
                                        `Show ${formatCount(groups.length - most)} more kinds`) :
                                      null;
  put(section,
      h('h2', {id: 'failures-title'}, 'Failures ',
        h('small', {}, formatCount(cases.filter(isFailure).length))),
      list, more);
  section.hidden = false;
}
