// Numbers as people read them (the rules of report/text.cpp) and a small element builder. Text
// from data enters the page only as text nodes and attribute values.
const NONE = '–';

function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

function formatTime(ns) {
  if (!isFinite(ns)) return NONE;
  const size = Math.abs(ns);
  if (size < 999.5) return `${size < 99.95 ? threeDigits(ns) : ns.toFixed(0)} ns`;
  if (size < 999.5e3) return `${threeDigits(ns / 1e3)} µs`;
  if (size < 999.5e6) return `${threeDigits(ns / 1e6)} ms`;
  return `${threeDigits(ns / 1e9)} s`;
}

function formatFactor(x) {
  if (!isFinite(x)) return isNaN(x) ? NONE : '∞';
  return x !== 0 && Math.abs(x) < 0.0995 ? String(Number(x.toPrecision(2))) : threeDigits(x);
}

function formatShare(share) {
  if (isNaN(share)) return NONE;
  if (share <= 0) return '0 %';
  if (share >= 1) return '100 %';
  if (share < 0.001) return '<0.1 %';
  if (share > 0.999) return '>99.9 %';
  return `${(100 * share).toFixed(1)} %`;
}

// The share of the floor; above 100 % where a time is below its floor.
const formatOfFloor = (x) => (x > 0 && isFinite(x) ? `${formatFactor(100 / x)} %` : NONE);
const belowFloor = (x) => x < 1;

function formatPercent(fraction) {
  if (!isFinite(fraction)) return NONE;
  return `${(100 * fraction).toFixed(Math.abs(fraction) >= 0.0995 ? 0 : 1)} %`;
}

const formatCount = (count) => Number(count).toLocaleString('en-US');

function scaled(value, base, units) {
  if (!isFinite(value)) return NONE;
  let unit = 0;
  for (; Math.abs(value) >= base - 0.5 && unit + 1 < units.length; ++unit) value /= base;
  return `${threeDigits(value)} ${units[unit]}`;
}
const formatBytes = (bytes) => bytes < 1023.5 ?
    `${Math.round(bytes)} B` :
    scaled(bytes, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);
const formatRate = (rate, unit) =>
    scaled(rate, 1000, ['', 'k', 'M', 'G', 'T', 'P'].map((prefix) => prefix + unit));
const formatError = (x) => (isFinite(x) ? String(Number(x.toPrecision(3))) : String(x));

// Two values with the fewest digits that tell them apart.
function formatPair(first, second) {
  for (const digits of [6, 9, 12]) {
    const pair = [first, second].map(
        (x) => (isFinite(x) ? String(Number(x.toPrecision(digits))) : String(x)));
    if (pair[0] !== pair[1] || Object.is(first, second)) return pair;
  }
  return [String(first), String(second)];
}

const formatInterval = (interval, format = formatFactor) =>
    interval ? `${format(num(interval[0]))} – ${format(num(interval[1]))}` : NONE;

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on'))
      element.addEventListener(name.slice(2), value);
    else if (value === true)
      element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter(
      (child) => child !== null && child !== undefined && child !== false));
  return element;
}
const h = (tag, attributes, ...children) =>
    build(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
    build(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
const byId = (id) => document.getElementById(id);

// A definition may only wrap behind its underscores.
const nameOf = (value) =>
    h('span', {class: 'name'},
      ...value.split(/(?<=_)/).flatMap((part) => [part, h('wbr')]).slice(0, -1));
const chip = (status, label) => h('span', {class: `chip ${toneOf(status)}`}, label || status);
const plural = (count, word) => `${formatCount(count)} ${word}${count === 1 ? '' : 's'}`;
