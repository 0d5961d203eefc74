// Puts the page together.
function setUpTheme(forced, redraw) {
  const button = byId('theme'), order = ['auto', 'light', 'dark'];
  let theme = forced || 'auto';
  if (!forced) try {
      theme = localStorage.getItem('assay-theme') || 'auto';
    } catch { /* storage is off for some file: pages */
    }
  const apply = () => {
    if (!order.includes(theme)) theme = 'auto';
    if (theme === 'auto')
      delete document.documentElement.dataset.theme;
    else
      document.documentElement.dataset.theme = theme;
    button.textContent = theme[0].toUpperCase() + theme.slice(1);
  };
  button.addEventListener('click', () => {
    theme = order[(order.indexOf(theme) + 1) % order.length];
    try {
      localStorage.setItem('assay-theme', theme);
    } catch { /* as above */
    }
    apply();
    redraw();
  });
  // A canvas keeps the colours it was drawn with: paper is light.
  addEventListener('beforeprint', () => {
    document.documentElement.dataset.theme = 'light';
    redraw();
  });
  addEventListener('afterprint', () => {
    apply();
    redraw();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  apply();
}

function setUpNavigation() {
  const sections = [
    ['overview', 'Overview'], ['failures', 'Failures'], ['definitions', 'Definitions'],
    ['floor', 'Floor'], ['budget', 'Budget'], ['comparison', 'Comparison'], ['runs', 'Two runs'],
    ['cases', 'Cases'],
    ['environment', 'Environment']
  ];
  byId('nav').append(...sections.filter(([id]) => !byId(id).hidden)
                         .map(([id, label]) => h('a', {href: `#${id}`}, label)));
}

function setUpKeys(table) {
  addEventListener('keydown', (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      table.query.focus();
    } else if (event.key === 'Escape' && document.activeElement === table.query) {
      table.reset();
    }
  });
}

const table = new CaseTable(byId('cases'));
overviewSection(byId('overview'), table);
failuresSection(byId('failures'), table);
definitionsSection(byId('definitions'), table);
budgetSection(byId('budget'));
comparisonSection(byId('comparison'), table);
runsSection(byId('runs'));
environmentSection(byId('environment'));
setUpKeys(table);
const query = new URLSearchParams(location.search);
let redrawFloor = () => {};
setUpTheme(query.get('theme'), () => redrawFloor());
redrawFloor = floorSection(byId('floor'), (c) => table.reveal(c));
setUpNavigation();
if (query.has('open')) table.reveal(cases[Number(query.get('open'))] || cases[0]);
if (query.has('selftest')) selfTest(table);
