// Run by the tests as report.html?selftest: drives the page like a user and leaves what it saw in
// the document, as JSON in <pre id="selftest">.
function selfTest(table) {
  const checks = [];
  const check = (what, ok, detail = '') =>
      checks.push({what, ok: Boolean(ok), detail: String(detail)});
  const rowsShown = () => [...table.body.querySelectorAll('tr.case')].map(
      (row) => cases[Number(row.dataset.index)]);
  const type = (value) => {
    table.query.value = value;
    table.query.dispatchEvent(new Event('input'));
  };
  const started = performance.now();  // also the time from opening the page to here

  check(
      'all cases are listed',
      table.shown.length === cases.length && rowsShown().length === Math.min(PAGE, cases.length),
      rowsShown().length);
  const wanted = cases.length ? cases[cases.length - 1] : null;
  if (wanted) {
    type(`${wanted.uuid.toUpperCase()} ${wanted.backend}`);
    check(
        'text filter finds one case',
        rowsShown().length >= 1 && rowsShown().every((c) => c.uuid === wanted.uuid),
        rowsShown().length);
    type('no such case anywhere');
    check(
        'text filter can match nothing',
        table.shown.length === 0 && table.body.textContent.includes('No case matches'));
    table.clear.click();
    check('clear shows all again', table.shown.length === cases.length);
  }
  table.statusButtons.forEach((button) => {
    button.click();
    const expected = cases.filter((c) => c.status === button.dataset.status).length;
    check(
        `status filter ${button.dataset.status}`,
        table.shown.length === expected &&
            rowsShown().every((c) => c.status === button.dataset.status),
        table.shown.length);
    button.click();
  });
  COLUMNS.forEach((column, i) => {
    const press = () => table.heads[i].querySelector('button').click();
    for (const descending of [false, true]) {
      press();
      const values = table.shown.map((c) => column.value(c));
      const present = values.filter((v) => !(typeof v === 'number' && isNaN(v)));
      const ordered = present.every(
          (v, k) => k === 0 ||
              (descending ? compareValues(present[k - 1], v) >= 0 :
                            compareValues(present[k - 1], v) <= 0));
      const last = values.findIndex((v) => typeof v === 'number' && isNaN(v));
      const missingLast = last < 0 || values.slice(last).every((v) => isNaN(v));
      check(
          `sort by ${column.key} ${descending ? 'descending' : 'ascending'}`,
          ordered && missingLast && table.shown.length === cases.length);
    }
    press();
  });
  check('third press restores the order', table.shown.every((c, i) => c === cases[i]));
  const first = table.body.querySelector('tr.case');
  if (first) {
    const key = (name) => document.activeElement.dispatchEvent(
        new KeyboardEvent('keydown', {key: name, bubbles: true, cancelable: true}));
    first.focus();
    key('Enter');
    check(
        'Enter opens details',
        first.getAttribute('aria-expanded') === 'true' &&
            first.nextElementSibling.classList.contains('detail'));
    key('Enter');
    check(
        'Enter closes details',
        first.getAttribute('aria-expanded') === 'false' && !table.body.querySelector('tr.detail'));
    if (rowsShown().length > 1) {
      key('ArrowDown');
      check(
          'arrow moves to the next row', document.activeElement.dataset.index === '1',
          document.activeElement.dataset.index);
    }
    for (const c of [cases.find(isFailure), cases.find((k) => k.timing), cases[cases.length - 1]]
             .filter(Boolean)) {
      table.reveal(c);
      check(
          `reveal ${c.index}`,
          table.open.has(c.index) && rowsShown().includes(c) &&
              table.body.querySelector('tr.detail'));
    }
    table.open.clear();
    dispatchEvent(new Event('beforeprint'));
    check('printing shows more than a page', rowsShown().length === Math.min(cases.length, 1000));
    dispatchEvent(new Event('afterprint'));
  }
  const judged = new Set(cases.filter((c) => !isNaN(c.budget))
                             .map((c) => [c.definition, c.backend, c.grade].join('|')));
  check(
      'every definition, backend and grade has its error budget',
      document.querySelectorAll('#budget tbody tr').length === judged.size, judged.size);
  check('the other run is shown exactly when there is one', byId('runs').hidden === !raw.against);
  check(
      'every shown section is in the navigation',
      [...document.querySelectorAll('main > section')].every(
          (one) => one.hidden || document.querySelector(`#nav a[href="#${one.id}"]`)));
  table.state.page = 0;
  table.render();
  check('no uncaught errors', errors.length === 0, errors.join('; '));
  const result = {
    ok: checks.every((c) => c.ok),
    ready: Math.round(started),
    milliseconds: Math.round(performance.now() - started),
    chart: typeof Chart === 'function' ? 'chart.js' : 'svg',
    canvases: document.querySelectorAll('#floor canvas').length,
    changes: document.querySelectorAll('#runs .scroll tbody tr').length,
    differences: document.querySelectorAll('#runs .differences li').length,
    plots: document.querySelectorAll('#floor svg.scatter').length,
    medians: cases.slice(0, 20).map((c) => (isNaN(c.median) ? null : c.median)),
    failed: checks.filter((c) => !c.ok),
    checks: checks.length,
  };
  document.body.append(h('pre', {id: 'selftest'}, JSON.stringify(result)));
}
