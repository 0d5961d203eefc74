// The case table: text filter, status and backend filters, sorting by any column, pages of rows,
// details below a row; everything by keyboard too. The filter lives in the address, so that a
// filtered report can be linked to.
const PAGE = 100;

class CaseTable {
  constructor(section) {
    this.state = {
      query: '',
      statuses: new Set(),
      backend: '',
      definition: '',
      sort: null,
      descending: false,
      page: 0
    };
    this.open = new Set();
    this.query = h('input', {
      type: 'search',
      id: 'query',
      placeholder: 'Filter: name, axis, backend, uuid …   (press /)',
      'aria-label': 'Filter cases',
      autocomplete: 'off',
      spellcheck: 'false',
      oninput: () => this.change({query: this.query.value})
    });
    this.statusButtons = statuses.map(
        (status) =>
            h('button', {
              type: 'button',
              class: `chip toggle ${toneOf(status)}`,
              'aria-pressed': 'false',
              'data-status': status,
              onclick: () => this.toggleStatus(status)
            },
              `${status} ${formatCount(cases.filter((c) => c.status === status).length)}`));
    this.backendSelect = this.select('Backend', 'all backends', backends, 'backend');
    this.definitionSelect =
        this.select('Definition', 'all definitions', definitionNames, 'definition');
    this.count = h('span', {class: 'count', role: 'status', 'aria-live': 'polite'});
    this.clear =
        h('button', {type: 'button', class: 'quiet', onclick: () => this.reset()}, 'Clear');
    this.heads = COLUMNS.map(
        (column) =>
            h('th', {scope: 'col', class: column.numeric ? 'n' : '', 'aria-sort': 'none'},
              h('button',
                {type: 'button', 'data-key': column.key, onclick: () => this.sortBy(column)},
                column.label, h('span', {class: 'arrow', 'aria-hidden': 'true'}))));
    this.body = h('tbody', {onkeydown: (event) => this.onKey(event)});
    this.pager = h('div', {class: 'pager'});
    section.append(
        h('h2', {id: 'cases-title'}, 'Cases'),
        h('div', {class: 'controls'}, this.query, this.definitionSelect,
          backends.length > 1 ? this.backendSelect : null, this.clear, this.count),
        h('div', {class: 'controls chips'}, this.statusButtons),
        h('div', {class: 'scroll'},
          h('table', {class: 'cases', 'aria-labelledby': 'cases-title'},
            h('thead', {}, h('tr', {}, this.heads)), this.body)),
        this.pager);
    section.hidden = false;
    this.section = section;
    this.readAddress();
    this.update();
    addEventListener('hashchange', () => {
      this.readAddress();
      this.update();
    });
    // Paper has no pages to turn: print what the filter shows, to a limit.
    addEventListener('beforeprint', () => {
      this.printing = true;
      this.render();
    });
    addEventListener('afterprint', () => {
      this.printing = false;
      this.render();
    });
  }

  select(label, all, values, key) {
    return h(
        'select',
        {'aria-label': label, onchange: (event) => this.change({[key]: event.target.value})},
        h('option', {value: ''}, all), values.map((value) => h('option', {value}, value)));
  }

  change(changes) {
    Object.assign(this.state, {page: 0}, changes);
    this.writeAddress();
    this.update();
  }

  toggleStatus(status) {
    const set = new Set(this.state.statuses);
    if (!set.delete(status)) set.add(status);
    this.change({statuses: set});
  }

  reset() {
    this.query.value = '';
    this.change({query: '', statuses: new Set(), backend: '', definition: ''});
  }

  sortBy(column) {
    const again = this.state.sort === column;
    // Third click: back to the order of the run's tables.
    if (again && this.state.descending)
      this.change({sort: null, descending: false});
    else
      this.change({sort: column, descending: again});
  }

  writeAddress() {
    const {query, statuses: chosen, backend, definition, sort, descending} = this.state;
    const parts = new URLSearchParams();
    if (query) parts.set('q', query);
    if (chosen.size) parts.set('status', [...chosen].join(','));
    if (backend) parts.set('backend', backend);
    if (definition) parts.set('definition', definition);
    if (sort) parts.set('sort', (descending ? '-' : '') + sort.key);
    const hash = parts.toString();
    try {
      history.replaceState(null, '', hash ? `#${hash}` : location.pathname + location.search);
    } catch { /* some browsers refuse this for file: addresses; the filter works all the same */
    }
  }

  readAddress() {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (![...parts.keys()].some(
            (key) => ['q', 'status', 'backend', 'definition', 'sort'].includes(key)))
      return;
    const sort = parts.get('sort') || '';
    Object.assign(this.state, {
      query: parts.get('q') || '',
      backend: parts.get('backend') || '',
      definition: parts.get('definition') || '',
      page: 0,
      statuses: new Set(
          (parts.get('status') || '').split(',').filter((status) => statuses.includes(status))),
      sort: COLUMNS.find((column) => column.key === sort.replace(/^-/, '')) || null,
      descending: sort.startsWith('-'),
    });
    this.query.value = this.state.query;
  }

  update() {
    const {query, statuses: chosen, backend, definition, sort, descending} = this.state;
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = cases.filter(
        (c) => (!chosen.size || chosen.has(c.status)) && (!backend || c.backend === backend) &&
            (!definition || c.definition === definition) &&
            words.every((word) => c.searchText.includes(word)));
    if (sort) this.shown = sortCases(this.shown, sort, descending);
    this.backendSelect.value = backend;
    this.definitionSelect.value = definition;
    this.statusButtons.forEach(
        (b) => b.setAttribute('aria-pressed', String(chosen.has(b.dataset.status))));
    this.heads.forEach(
        (head, i) => head.setAttribute(
            'aria-sort', COLUMNS[i] === sort ? (descending ? 'descending' : 'ascending') : 'none'));
    this.clear.hidden = !(query || chosen.size || backend || definition);
    this.count.textContent = this.shown.length === cases.length ?
        plural(cases.length, 'case') :
        `${formatCount(this.shown.length)} of ${plural(cases.length, 'case')}`;
    this.render();
  }

  render() {
    const pages = Math.max(1, Math.ceil(this.shown.length / PAGE));
    this.state.page = Math.min(this.state.page, pages - 1);
    const first = this.printing ? 0 : this.state.page * PAGE;
    const rows = this.shown.slice(first, first + (this.printing ? 1000 : PAGE));
    this.body.replaceChildren(...rows.flatMap((c) => this.rowsOf(c)));
    if (!rows.length) {
      this.body.append(
          h('tr', {},
            h('td', {class: 'empty', colspan: COLUMNS.length},
              cases.length ? 'No case matches this filter.' : 'The run has no cases.')));
    }
    const go = (page) => () => {
      this.state.page = page;
      this.render();
      this.section.scrollIntoView();
    };
    this.pager.replaceChildren(...(pages === 1 ? [] : [
      h('button', {
        type: 'button',
        class: 'quiet',
        disabled: this.state.page === 0,
        onclick: go(this.state.page - 1)
      },
        'Previous'),
      h('span', {},
        `${formatCount(first + 1)} – ${formatCount(first + rows.length)} of ${
            formatCount(this.shown.length)}`),
      h('button', {
        type: 'button',
        class: 'quiet',
        disabled: this.state.page === pages - 1,
        onclick: go(this.state.page + 1)
      },
        'Next')
    ]));
  }

  rowsOf(c) {
    const open = this.open.has(c.index);
    const row =
        h('tr', {
          class: 'case',
          tabindex: '0',
          'data-index': c.index,
          'aria-expanded': String(open),
          onclick: (event) => {
            if (!String(getSelection())) this.toggle(c, event.currentTarget);
          }
        },
          COLUMNS.map((column) => h('td', {class: column.numeric ? 'n' : ''}, column.cell(c))));
    return open ? [row, this.detailRow(c)] : [row];
  }

  detailRow(c) {
    return h('tr', {class: 'detail'}, h('td', {colspan: COLUMNS.length}, detailsOf(c)));
  }

  toggle(c, row) {
    if (this.open.delete(c.index)) {
      row.nextElementSibling.remove();
    } else {
      this.open.add(c.index);
      row.after(this.detailRow(c));
    }
    row.setAttribute('aria-expanded', String(this.open.has(c.index)));
  }

  // Shows one case: clears what hides it, turns to its page, opens it.
  reveal(c) {
    if (!this.shown.includes(c)) this.reset();
    this.state.page = Math.floor(this.shown.indexOf(c) / PAGE);
    this.open.add(c.index);
    this.render();
    const row = this.body.querySelector(`tr[data-index="${c.index}"]`);
    row.focus({preventScroll: true});
    row.scrollIntoView({block: 'center'});
  }

  onKey(event) {
    const row = event.target.closest('tr.case');
    if (!row || event.target !== row) return;
    const step = (direction) => {
      let next = row;
      do next = direction > 0 ? next.nextElementSibling : next.previousElementSibling;
      while (next && !next.classList.contains('case'));
      if (next) next.focus();
    };
    const actions = {
      ArrowDown: () => step(1),
      ArrowUp: () => step(-1),
      j: () => step(1),
      k: () => step(-1),
      Enter: () => this.toggle(cases[row.dataset.index], row),
      ' ': () => this.toggle(cases[row.dataset.index], row)
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }
}
