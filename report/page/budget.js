// How much of its tolerance each case used: the largest share over its outputs, 1 is the limit.
function budgetSection(section) {
  const groups = new Map();
  for (const c of cases) {
    if (isNaN(c.budget)) continue;
    const key = JSON.stringify([c.definition, c.backend, c.grade || 'none met']);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(c.budget);
  }
  if (!groups.size) return;
  // Zero (bit equality) has no place on a logarithmic axis: it stands at the left edge.
  const shown = [...groups.values()].flat().filter((b) => b > 0 && isFinite(b));
  const [low, high] = extent([1, ...shown], 1.2), range = [Math.max(low, 1e-6), high];
  const dots = (budgets) => budgets.map((b) => Math.min(Math.max(b, range[0]), range[1]));
  const rows = [...groups].map(([key, budgets]) => {
    const [definition, backend, grade] = JSON.parse(key);
    const most = budgets.reduce((a, b) => Math.max(a, b));
    const median = [...budgets].sort((a, b) => a - b)[Math.floor((budgets.length - 1) / 2)];
    return h(
        'tr', {}, h('td', {}, nameOf(definition)),
        h('td', {}, h('span', {class: 'name'}, backend)),
        h('td', {class: grade === 'none met' ? 'bad' : ''}, grade),
        h('td', {class: 'n'}, formatCount(budgets.length)),
        h('td', {class: 'n'}, formatFactor(median)),
        h('td', {class: `n ${most > 1 ? 'bad' : most > 0.8 ? 'warn' : ''}`}, formatFactor(most)),
        h('td', {}, floorStrip(dots(budgets), dots([median])[0], range, 190, 'of the budget')));
  });
  put(section, h('h2', {id: 'budget-title'}, 'Error budget'),
      h('div', {class: 'scroll'},
        h('table', {class: 'plain'},
          h('thead', {},
            h('tr', {}, h('th', {scope: 'col'}, 'Definition'), h('th', {scope: 'col'}, 'Backend'),
              h('th', {scope: 'col'}, 'Grade'), h('th', {scope: 'col', class: 'n'}, 'Cases'),
              h('th', {scope: 'col', class: 'n'}, 'Median'),
              h('th', {scope: 'col', class: 'n'}, 'Most'),
              h('th', {scope: 'col'}, 'Cases, line at 1'))),
          h('tbody', {}, rows))),
      h('p', {class: 'hint'},
        'The error of the worst element over what its grade allows there. ' +
            'Each dot is a case on a logarithmic axis; the bar is the median.'));
  section.hidden = false;
}
