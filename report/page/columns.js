// The columns of the case table and sorting by any of them.
const COLUMNS = [
  {
    key: 'definition',
    label: 'Definition',
    value: (c) => c.definition,
    cell: (c) => nameOf(c.definition)
  },
  {
    key: 'axes',
    label: 'Axes',
    value: (c) => c.axes,
    cell: (c) =>
        h('span', {class: 'name axes'},
          c.axes.length ?
              c.axes.map(([axis, v]) => [h('span', {}, h('i', {}, `${axis}=`), String(v)), ' ']) :
              c.uuid.slice(0, 8))
  },
  {
    key: 'backend',
    label: 'Backend',
    value: (c) => c.backend,
    cell: (c) => h('span', {class: 'name'}, c.backend)
  },
  {
    key: 'verdict',
    label: 'Verdict',
    value: (c) => [STATUS_ORDER.indexOf(c.status), c.verdict],
    cell: (c) =>
        [chip(c.status), ' ', h('span', {class: 'sub'}, c.status === 'passed' ? c.grade : c.sub)]
  },
  {
    key: 'median',
    label: 'Median',
    numeric: true,
    value: (c) => c.median,
    cell: (c) => formatTime(c.median)
  },
  {
    key: 'ci',
    label: '± 95 %',
    numeric: true,
    value: (c) => c.halfWidth,
    cell: (c) =>
        (c.timing ?
             h('span', c.timing.noisy ? {class: 'warn', title: 'did not converge'} : {},
               `${isNaN(c.halfWidth) ? `n = ${c.timing.samples}` : formatPercent(c.halfWidth)}${
                   c.timing.noisy ? ' noisy' : ''}`) :
             NONE)
  },
  {
    key: 'floor',
    label: '× floor',
    numeric: true,
    value: (c) => c.xFloor,
    cell: (c) =>
        (belowFloor(c.xFloor) ?
             h('span', {class: 'warn', title: 'below the floor'}, formatFactor(c.xFloor)) :
             formatFactor(c.xFloor))
  },
  {
    key: 'rows',
    label: 'Rows checked',
    numeric: true,
    value: (c) => c.share,
    cell: (c) => formatShare(c.share)
  },
  {
    key: 'budget',
    label: 'Budget used',
    numeric: true,
    value: (c) => c.budget,
    cell: (c) =>
        (isNaN(c.budget) ? NONE :
                           h('span', {class: 'meter'}, budgetBar(c.budget, isFailure(c)),
                             h('b', {}, formatFactor(c.budget))))
  },
];

function compareValues(a, b) {
  if (Array.isArray(a)) {
    for (let i = 0; i < Math.min(a.length, b.length); ++i) {
      const order = Array.isArray(a[i]) ? compareValues(a[i], b[i]) : compareValues(a[i], b[i]);
      if (order) return order;
    }
    return a.length - b.length;
  }
  if (typeof a === 'string') return a < b ? -1 : a > b ? 1 : 0;
  return a - b;
}

// Missing numbers come last in both directions.
function sortCases(list, column, descending) {
  const keyed = list.map((c) => [column.value(c), c]);
  const missing = (v) => typeof v === 'number' && isNaN(v);
  keyed.sort(([a, x], [b, y]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b) || x.index - y.index;
    return (descending ? -compareValues(a, b) : compareValues(a, b)) || x.index - y.index;
  });
  return keyed.map(([, c]) => c);
}
