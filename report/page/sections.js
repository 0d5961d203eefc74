// The sections around the case table: overview, failures, definitions, comparison, environment.
// append() would print null.
const put = (section, ...children) => section.append(...children.flat().filter(Boolean));

const median = (values) => {
  const sorted = values.filter((v) => !isNaN(v)).sort((a, b) => a - b);
  if (!sorted.length) return NaN;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

function overviewSection(section, table) {
  const counts = statuses.map((status) => [status, cases.filter((c) => c.status === status).length]);
  const passed = cases.filter((c) => c.status === "passed"), failed = cases.filter(isFailure);
  const headline = !cases.length ? "No cases were run"
    : failed.length ? `${formatCount(failed.length)} of ${plural(cases.length, "case")} need attention`
    : passed.length === cases.length ? `All ${plural(cases.length, "case")} passed` : `${formatCount(passed.length)} of ${plural(cases.length, "case")} passed, no failures`;
  const samples = passed.reduce((sum, c) => sum + (c.timing ? c.timing.samples : 0), 0);
  const noisy = passed.filter((c) => c.timing && c.timing.noisy).length;
  const factors = passed.map((c) => c.xFloor).filter((v) => !isNaN(v));
  const closest = factors.length ? passed.filter((c) => !isNaN(c.xFloor)).reduce((a, b) => (b.xFloor < a.xFloor ? b : a)) : null;
  const budgets = passed.map((c) => c.budget).filter(isFinite);
  const tile = (label, value, hint) => h("div", {class: "tile"}, h("div", {class: "label"}, label), h("div", {class: "value"}, value), h("div", {class: "hint"}, hint));
  const run = Object.fromEntries(raw.run);
  put(section, 
    h("div", {class: "verdict"},
      h("p", {class: `headline ${failed.length ? "bad" : passed.length ? "good" : ""}`}, headline),
      h("p", {class: "hint"}, [run.Device || run.Host, run.Started, run.Command && h("code", {}, run.Command)].filter(Boolean).flatMap((part, i) => (i ? [" · ", part] : [part])))),
    cases.length ? h("div", {class: "bar", role: "img", "aria-label": counts.map(([status, n]) => `${n} ${status}`).join(", ")},
      counts.map(([status, n]) => h("span", {class: toneOf(status), style: `flex-grow:${n}`, title: `${n} ${status}`}))) : null,
    h("div", {class: "chips"}, counts.map(([status, n]) => h("button", {type: "button", class: `chip toggle ${toneOf(status)}`, title: "Show these cases",
      onclick: () => { table.change({statuses: new Set([status]), query: "", backend: "", definition: ""}); table.query.value = ""; byId("cases").scrollIntoView(); }},
      `${formatCount(n)} ${status}`))),
    passed.length ? h("div", {class: "tiles"},
      tile("Rows checked", formatShare(median(passed.map((c) => c.share))), "median of passed cases, against fp64"),
      tile("Error budget used", budgets.length ? formatFactor(budgets.reduce((a, b) => Math.max(a, b))) : NONE, `largest of passed; median ${formatFactor(median(budgets))}`),
      tile("Nearest to the floor", closest ? `${formatFactor(closest.xFloor)} ×` : NONE, closest ? `${closest.definition}, ${closest.backend}` : "no floor known"),
      tile("Timing interval", `± ${formatPercent(median(passed.map((c) => c.halfWidth)))}`, `median half-width; ${formatCount(samples)} samples, ${noisy ? `${formatCount(noisy)} noisy` : "none noisy"}`)) : null,
    raw.note ? h("p", {class: "hint"}, raw.note) : null);
}

// Failures of one definition and backend that look alike: the worst of them stands for all.
function failureGroups() {
  const groups = new Map();
  for (const c of cases.filter(isFailure)) {
    const key = [c.definition, c.backend, c.status, c.sub].join("\n");
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(c);
  }
  const severity = (c) => (isNaN(c.budget) ? -1 : c.budget);
  return [...groups.values()].map((members) => ({
    members, worst: members.reduce((a, b) => (severity(b) > severity(a) ? b : a)),
  }));
}

function failureItem({worst: c, members}, table) {
  const check = worstCheck(c), elements = check && check.mismatches > 0;
  const others = members.length - 1;
  const showAll = () => {
    table.query.value = c.sub;
    table.change({query: c.sub, statuses: new Set([c.status]), backend: c.backend, definition: c.definition});
    byId("cases").scrollIntoView();
  };
  return h("li", {class: `failure ${toneOf(c.status)}`},
    h("div", {class: "what"}, chip(c.status), c.sub ? h("b", {}, c.sub) : null, nameOf(c.definition), h("span", {class: "name dim"}, c.axesText || c.uuid.slice(0, 8)),
      h("span", {}, h("span", {class: "on"}, "on "), h("span", {class: "name"}, c.backend)),
      h("span", {class: "actions"},
        others ? h("button", {type: "button", class: "quiet", onclick: showAll}, `and ${formatCount(others)} more like it`) : null,
        h("button", {type: "button", class: "quiet", onclick: () => table.reveal(c)}, "Details"))),
    elements ? worstLine(check) : null,
    failureReasons(c).map((line) => h("p", {class: "reason"}, line)),
    elements ? h("p", {class: "hint"}, `${plural(check.mismatches, "element")} outside the loosest grade; ${formatShare(c.share)} of rows checked`) : null);
}

function failuresSection(section, table) {
  const groups = failureGroups(), most = 25;
  if (!groups.length) return;
  const list = h("ol", {class: "failures"}, groups.slice(0, most).map((group) => failureItem(group, table)));
  const more = groups.length > most ? h("button", {type: "button", class: "quiet", onclick: () => {
    list.append(...groups.slice(most).map((group) => failureItem(group, table)));
    more.remove();
  }}, `Show ${formatCount(groups.length - most)} more kinds`) : null;
  put(section, h("h2", {id: "failures-title"}, "Failures ", h("small", {}, formatCount(cases.filter(isFailure).length))), list, more);
  section.hidden = false;
}

function definitionsSection(section, table) {
  if (!definitions.length) return;
  const factors = (d) => cases.filter((c) => c.definition === d.definition && c.backend === d.backend && c.source === d.source && c.status === "passed" && !isNaN(c.xFloor)).map((c) => c.xFloor);
  const all = definitions.map(factors);
  const range = extent([1, ...all.flat()], 1.1);
  const speedup = (d) => comparisons.find((k) => k.definition === d.definition && k.backend === d.backend);
  let previous = null;
  const rows = definitions.map((d, i) => {
    const same = previous === d.definition, k = speedup(d);
    previous = d.definition;
    return h("tr", {class: same ? "same" : ""},
      h("td", {}, same ? h("span", {class: "visually-hidden"}, d.definition) : h("button", {type: "button", class: "link", title: "Show its cases",
        onclick: () => { table.change({definition: d.definition}); byId("cases").scrollIntoView(); }}, nameOf(d.definition))),
      h("td", {}, h("span", {class: "name"}, d.backend)),
      raw.mixed_sources ? h("td", {}, d.source) : null,
      h("td", {class: "n"}, formatCount(d.cases)),
      h("td", {class: "n"}, formatCount(d.passed)),
      h("td", {class: `n ${d.failures ? "bad" : "dim"}`}, d.failures ? formatCount(d.failures) : NONE),
      h("td", {class: "n"}, d.median > 0 ? formatTime(d.median) : NONE),
      h("td", {class: `n ${d.geomean > 0 && belowFloor(d.geomean) ? "warn" : ""}`}, d.geomean > 0 ? formatFactor(d.geomean) : NONE),
      h("td", {class: "n"}, formatOfFloor(d.geomean)),
      h("td", {}, all[i].length ? floorStrip(all[i], d.geomean, range) : null),
      comparisons.length ? h("td", {class: "n"}, d.backend === raw.baseline ? (d.timed ? "1" : NONE) : k ? formatFactor(k.median) : NONE) : null);
  });
  const ticks = logTicks(...range, range[1] / range[0] > 30 ? [1] : [1, 2, 5]).map((t) => `${formatFactor(t)}×`);
  put(section, h("h2", {id: "definitions-title"}, "Definitions"),
    h("div", {class: "scroll"}, h("table", {class: "plain"},
      h("thead", {}, h("tr", {}, h("th", {scope: "col"}, "Definition"), h("th", {scope: "col"}, "Backend"), raw.mixed_sources ? h("th", {scope: "col"}, "Inputs") : null,
        h("th", {scope: "col", class: "n"}, "Cases"), h("th", {scope: "col", class: "n"}, "Passed"), h("th", {scope: "col", class: "n"}, "Failures"),
        h("th", {scope: "col", class: "n"}, "Median"), h("th", {scope: "col", class: "n"}, "× floor"), h("th", {scope: "col", class: "n"}, "of floor"),
        h("th", {scope: "col"}, "Cases from the floor outwards"), comparisons.length ? h("th", {scope: "col", class: "n"}, `vs ${raw.baseline}`) : null)),
      h("tbody", {}, rows))),
    h("p", {class: "hint"}, "× floor is the geometric mean of median time over floor, of passed cases. Each dot is a case on a logarithmic axis " +
      `(lines at ${logTicks(...range, [1]).map((t) => `${formatFactor(t)}×`).join(", ") || ticks.join(", ")}); the bar is the mean.`));
  section.hidden = false;
}

function comparisonSection(section, table) {
  if (!comparisons.length) return;
  const speedups = comparisons.flatMap((k) => k.workloads.flatMap((w) => [w.speedup, ...(w.interval || []).map(num)]));
  const [low, high] = extent([1, ...speedups], 1.1);
  const reach = Math.max(high, 1 / low, 1.2), range = [1 / reach, reach];
  const rows = comparisons.flatMap((k) => {
    const workloads = k.workloads.slice(0, 300).map((w) => h("tr", {class: "workload", hidden: true},
      h("td", {}, h("button", {type: "button", class: "link indent", onclick: () => table.reveal(w.other)}, h("span", {class: "name"}, w.other.axesText || w.other.uuid.slice(0, 8)))),
      h("td", {}, w.mode), h("td", {class: "n"}, `${formatTime(w.base.median)} → ${formatTime(w.base.median / w.speedup)}`),
      h("td", {class: "n"}, formatFactor(w.speedup)), h("td", {class: "n"}, formatInterval(w.interval)), h("td", {}, forest(w.speedup, w.interval, [], range))));
    const toggle = h("button", {type: "button", class: "link", "aria-expanded": "false", onclick: () => {
      const open = toggle.getAttribute("aria-expanded") !== "true";
      toggle.setAttribute("aria-expanded", String(open));
      workloads.forEach((row) => { row.hidden = !open; });
    }}, nameOf(k.definition));
    const single = k.workloads.length === 1;
    return [h("tr", {}, h("td", {}, toggle), h("td", {}, h("span", {class: "name"}, k.backend)),
      h("td", {class: "n"}, plural(k.workloads.length, "workload")), h("td", {class: "n"}, formatFactor(k.median)),
      h("td", {class: "n"}, single ? formatInterval(k.workloads[0].interval) : k.interval ? formatInterval(k.interval) : h("span", {class: "dim", title: "smallest and largest; too few workloads for an interval"}, `${formatFactor(k.worst)} … ${formatFactor(k.best)}`)),
      h("td", {}, forest(k.median, single ? k.workloads[0].interval : k.interval, single ? [] : k.workloads.map((w) => w.speedup), range))), workloads].flat();
  });
  put(section, h("h2", {id: "comparison-title"}, "Speed-up over ", h("span", {class: "name"}, raw.baseline)),
    h("div", {class: "scroll"}, h("table", {class: "plain"},
      h("thead", {}, h("tr", {}, h("th", {scope: "col"}, "Definition"), h("th", {scope: "col"}, "Backend"), h("th", {scope: "col", class: "n"}, "Over"),
        h("th", {scope: "col", class: "n"}, "Speed-up"), h("th", {scope: "col", class: "n"}, "95 % interval"), h("th", {scope: "col"}, `${formatFactor(range[0])}× to ${formatFactor(range[1])}×, line at 1`))),
      h("tbody", {}, rows))),
    h("p", {class: "hint"}, "Time of the baseline over time of the backend, same workload, same timing mode, both passed; above 1 is faster. Median over workloads; open a definition for each."));
  section.hidden = false;
}

function environmentSection(section) {
  const k = raw.ceilings;
  const ceiling = (label, value, format) => (value > 0 ? fact(label, format(value)) : []);
  const measured = k.copy_bytes > 0 || k.bf16_flops > 0;
  const models = new Map();
  for (const c of cases) if (c.model) models.set(c.model, (models.get(c.model) || 0) + 1);
  put(section, h("h2", {id: "environment-title"}, "Environment and provenance"),
    h("div", {class: "columns"},
      h("div", {}, h("h3", {}, "Run"), h("dl", {class: "facts"}, raw.run.map(([label, value]) =>
        fact(label.toLowerCase(), ["Command", "Commit", "Run", "Device identity"].includes(label) ? h("code", {}, value) : value)))),
      h("div", {}, h("h3", {}, "Measured ceilings"), measured ? h("dl", {class: "facts"},
        fact("device", k.device), fact("measured", k.measured),
        ceiling("copy", k.copy_bytes, (v) => formatRate(v, "B/s")), ceiling("read", k.read_bytes, (v) => formatRate(v, "B/s")),
        ceiling("write", k.write_bytes, (v) => formatRate(v, "B/s")), ceiling("bf16 matrix", k.bf16_flops, (v) => formatRate(v, "FLOP/s")),
        ceiling("f32 matrix", k.f32_flops, (v) => formatRate(v, "FLOP/s")), ceiling("launch", k.launch_ns, formatTime))
        : h("p", {class: "hint"}, "The machine was not measured: no floors. assay device measures it."),
        models.size ? [h("h3", {}, "Workloads from"), h("dl", {class: "facts"}, [...models].map(([model, n]) => fact(plural(n, "case"), model)))] : null)));
}
