// This run against another one: raw.against is null in a report of one run.
const CHANGE_TITLES = {
  broken: 'Passed there, not here',
  mended: 'Passes here, not there',
  slower: 'Slower here',
  faster: 'Faster here',
};

function runsSection(section) {
  const against = raw.against;
  if (!against) return;
  const changes = against.changes.map(
      ([kind, definition, axes, backend, there, here, ratio, interval, reason]) => ({
        kind: text(kind),
        definition: text(definition),
        axes: text(axes),
        backend: text(backend),
        there,
        here,
        ratio: num(ratio),
        interval,
        reason: text(reason)
      }));
  const ratios = changes.map((k) => k.ratio).filter((r) => r > 0);
  const [low, high] = extent([1, ...ratios], 1.1);
  const reach = Math.max(high, 1 / low, 1.2), range = [1 / reach, reach];
  const blocks = Object.keys(CHANGE_TITLES).map((kind) => {
    const rows = changes.filter((k) => k.kind === kind);
    if (!rows.length) return null;
    const timed = kind === 'slower' || kind === 'faster';
    return [
      h('h3', {}, `${CHANGE_TITLES[kind]} (${formatCount(rows.length)})`),
      h('div', {class: 'scroll'},
        simpleTable(
            timed ?
                [
                  ['definition'], ['axes'], ['backend'], ['there', 1], ['here', 1],
                  ['here / there', 1], ['95 % interval', 1], ['line at 1']
                ] :
                [['definition'], ['axes'], ['backend'], ['there'], ['here'], ['reason']],
            rows.slice(0, 200).map((k) => {
              const name = [nameOf(k.definition), k.axes, h('span', {class: 'name'}, k.backend)];
              if (!timed) return [...name, chip(k.there), chip(k.here), k.reason];
              return [
                ...name, formatTime(k.there), formatTime(k.here), formatFactor(k.ratio),
                formatInterval(k.interval), forest(k.ratio, k.interval, [], range)
              ];
            }))),
      rows.length > 200 ? h('p', {class: 'hint'}, `${rows.length - 200} more are in assay diff.`) :
                          null
    ];
  });
  const groups = against.groups.map(
      ([definition, backend, count, median]) =>
          [nameOf(text(definition)), h('span', {class: 'name'}, text(backend)),
           formatCount(count), formatFactor(num(median))]);
  put(section, h('h2', {id: 'runs-title'}, 'Against run ', h('span', {class: 'name'}, against.run)),
      h('p', {class: 'hint'},
        `${plural(against.both, 'case')} in both runs, ${formatCount(against.only_here)} only here, ${
            formatCount(against.only_there)} only there. ` +
            (against.environment.length ? 'Different environments:' : 'The same environment.')),
      against.environment.length ?
          h('ul', {class: 'differences'}, against.environment.map((line) => h('li', {}, line))) :
          null,
      blocks.flat().filter(Boolean),
      changes.length ? null : h('p', {}, 'No case changed beyond the margin and its interval.'),
      groups.length ?
          [
            h('h3', {}, 'Median ratio of all cases, here / there'),
            simpleTable([['definition'], ['backend'], ['cases', 1], ['ratio', 1]], groups)
          ] :
          null);
  section.hidden = false;
}
