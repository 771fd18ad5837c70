// One function for each kind of chart but the timeline.

const inBars = (rows) => ({ height: Math.max(rows * 22 + 54, 100) });

function tall(chart, element, height) {
  element.style.height = `${height}px`;
  chart.resize();
}

// A legend of these names, with the shape that bars have.
const bars = (names) => legend({ data: names, top: 0, left: 0 });

// Where the step goes, as one bar.
draws.parts = (chart, spec, element) => {
  const lines = Math.ceil((spec.parts.length * 170) / element.clientWidth); // of the names under the bar
  tall(chart, element, 52 + 22 * lines);
  const total = spec.parts.reduce((sum, part) => sum + part.ms, 0);
  chart.setOption(base({
    grid: { left: 0, right: 0, top: 4, height: 34 },
    legend: legend({ bottom: 0, left: 0, data: spec.parts.map((part) => part.name) }),
    tooltip: { trigger: "item", formatter: ({ seriesIndex }) => {
      const part = spec.parts[seriesIndex];
      return tip(part.name, `${time(part.ms)}, ${percent(part.ms / total)} of the step`, part.about);
    } },
    xAxis: { type: "value", show: false, max: total },
    yAxis: { type: "category", show: false, data: [""] },
    series: spec.parts.map((part) => ({
      name: part.name, type: "bar", stack: "step", barWidth: 34, data: [part.ms],
      itemStyle: { color: palette(part.place), borderColor: token("ground"), borderWidth: 1 },
      label: { show: part.ms / total > 0.07, formatter: ms(part.ms), color: dark() ? "#14161a" : "#fff", fontSize: 12 },
    })),
  }), true);
};

// Rows of device and host time; which ones, the tabs above say.
draws.views = (chart, spec, element) => {
  element.view ??= 0;
  tabs(element, spec, () => draws.views(chart, spec, element));
  const view = spec.views[element.view];
  if (view.tree) return modules(chart, view, element);
  tall(chart, element, inBars(view.rows.length).height);
  return chart.setOption(base({
    grid: { left: 4, right: 60, top: 30, bottom: 24, containLabel: true },
    legend: bars(["device", "host"]),
    tooltip: { trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: `${token("quiet")}18` } }, formatter: ([{ dataIndex }]) => {
      const row = view.rows[dataIndex];
      return tip(row.name, `device ${time(row.device_ms)}`, `host ${time(row.host_ms)}`, `${row.count.toLocaleString("en")} ${view.counted}`);
    } },
    xAxis: axis({ type: "value", splitLine: { show: true }, axisLabel: { formatter: "{value} ms", hideOverlap: true } }),
    yAxis: axis({ type: "category", inverse: true, data: view.rows.map((row) => row.name), axisLabel: { width: 210, overflow: "truncate", color: token("ink") } }),
    series: ["device_ms", "host_ms"].map((word, place) => ({
      name: place ? "host" : "device", type: "bar", barGap: "15%", barMaxWidth: 9,
      itemStyle: { color: palette(place ? 8 : 0), borderRadius: 2 }, data: view.rows.map((row) => row[word]),
    })),
  }), true);
};

function tabs(element, spec, draw) {
  const buttons = element.parentElement.querySelectorAll(".tabs button");
  buttons.forEach((button, place) => {
    button.setAttribute("aria-pressed", place === element.view);
    button.onclick = () => { element.view = place; draw(); };
  });
}

// Modules as areas: a click goes into one.
function modules(chart, view, element) {
  tall(chart, element, 420);
  chart.setOption(base({
    tooltip: { trigger: "item", formatter: ({ treePathInfo, value }) => tip(treePathInfo.slice(1).map((one) => one.name).join(".") || "all modules", time(value)) },
    series: [{
      type: "treemap", data: view.tree, leafDepth: 1, roam: false, left: 0, right: 0, top: 4, bottom: 34, name: "all modules",
      breadcrumb: { left: 0, bottom: 4, itemStyle: { color: token("raised"), borderColor: token("line"), textStyle: { color: token("ink") } } },
      label: { fontSize: 11.5, color: dark() ? "#14161a" : "#fff" },
      itemStyle: { borderColor: token("ground"), borderWidth: 1, gapWidth: 1 },
      
    }],
  }), true);
}

// How the step may turn out: how many of the draws fall where.
draws.distribution = (chart, spec) => {
  const names = spec.series.map((one) => one.name);
  chart.setOption(base({
    grid: { left: 8, right: 12, top: 44, bottom: 26 },
    legend: names.length > 1 ? legend({ data: names, top: 0, left: 0 }) : undefined,
    tooltip: { trigger: "axis", formatter: (points) => {
      const at = points[0].value[0];
      return tip(`${ms(at)} – ${ms(at + spec.width)} ms`, ...points.map((one) => `${one.seriesName}: ${percent(one.value[1])} of the draws`));
    } },
    xAxis: axis({ type: "value", min: spec.from, max: spec.to, axisLabel: { formatter: (at) => `${ms(at)} ms`, hideOverlap: true, showMinLabel: false, showMaxLabel: false } }),
    yAxis: { type: "value", show: false },
    series: spec.series.map((one, place) => ({
      name: one.name, type: "line", step: "end", symbol: "none", lineStyle: { width: 1.2, color: palette(place ? 2 : 0) },
      areaStyle: { color: palette(place ? 2 : 0), opacity: 0.22 }, itemStyle: { color: palette(place ? 2 : 0) },
      data: one.shares.map((share, bin) => [spec.from + bin * spec.width, share]),
      markLine: {
        symbol: "none", silent: true, animation: false,
        data: one.marks.map((mark) => ({ xAxis: mark.ms, lineStyle: { color: mark.name === "measured" ? token("accent") : token("quiet"), type: mark.dashed ? "dashed" : "solid", width: 1 },
          label: { formatter: mark.name, color: token(mark.name === "measured" ? "accent" : "quiet"), fontSize: 11, align: names.length > 1 ? ["right", "left"][place] : "center", padding: [0, 0, { step: 13, measured: 26 }[mark.name] ?? 0, 0] } })),
      },
    })),
  }), true);
};

// Ops against what the device could do: bytes limit on the left, arithmetic on the right.
draws.roofline = (chart, spec) => {
  const from = spec.from, to = spec.to, slope = spec.gbps / 1e3;
  const families = [...new Set(spec.ops.map((op) => op.family))];
  const roof = (rate) => [[from, from * slope], [rate.tflops / slope, rate.tflops], [to, rate.tflops]];
  chart.setOption(base({
    grid: { left: 54, right: 20, top: 40, bottom: 40 },
    legend: legend({ top: 0, left: 0, type: "scroll", data: families }),
    tooltip: { trigger: "item", formatter: ({ data: point, seriesName }) => {
      if (!point.op) return tip(`peak of ${seriesName}`);
      const op = point.op;
      return tip(op.name, op.shapes, `${time(op.ms)} in ${op.count} calls`, `${(+op.tflops.toPrecision(3))} TFLOP/s, ${Math.round(op.gbps)} GB/s`, `${percent(op.reached)} of the roofline`);
    } },
    xAxis: axis({ type: "log", min: from, max: to, name: "FLOP per byte", nameLocation: "middle", nameGap: 26, splitLine: { show: true }, axisLabel: { formatter: (at) => String(+at.toPrecision(2)) } }),
    yAxis: axis({ type: "log", min: spec.least, max: spec.most, name: "TFLOP/s", nameGap: 12, splitLine: { show: true }, axisLabel: { formatter: (at) => String(+at.toPrecision(2)) } }),
    series: [
      ...spec.rates.map((rate) => ({
        name: rate.name, type: "line", symbol: "none", silent: true, lineStyle: { color: token("quiet"), width: 1.2 }, data: roof(rate),
        endLabel: { show: true, formatter: rate.name, align: "right", offset: [-4, -8], color: token("quiet"), fontSize: 11 },
      })),
      ...families.map((family) => ({
        name: family, type: "scatter", itemStyle: { color: colour(family), opacity: 0.75, borderColor: token("ground"), borderWidth: 0.5 },
        data: spec.ops.filter((op) => op.family === family).map((op) => ({ value: [op.intensity, op.tflops], op, symbolSize: 5 + 34 * Math.sqrt(op.share) })),
      })),
    ],
  }), true);
};

// Bytes over the step, and what the device has.
draws.memory = (chart, spec) => {
  const capacity = spec.capacity && { symbol: "none", silent: true, data: [{ yAxis: spec.capacity, lineStyle: { color: token("bad"), type: "dashed" },
    label: { formatter: `the device's ${bytes(spec.capacity)}`, position: "insideStartTop", color: token("quiet"), fontSize: 11 } }] };
  chart.setOption(base({
    grid: { left: 70, right: 12, top: 28, bottom: 26 },
    legend: spec.series.length > 1 ? legend({ top: 0, left: 0, type: "scroll", data: spec.series.map((one) => one.name) }) : undefined,
    tooltip: { trigger: "axis", formatter: (points) => tip(`${ms(points[0].value[0])} ms`, ...points.map((one) => `${one.seriesName}: ${bytes(one.value[1])}`)) },
    xAxis: axis({ type: "value", min: 0, max: spec.end_ms, axisLabel: { formatter: (at) => `${+at.toPrecision(4)} ms`, hideOverlap: true, showMaxLabel: false } }),
    yAxis: axis({ type: "value", interval: 2 ** Math.floor(Math.log2(spec.peak / 3)), max: spec.capacity && spec.peak > 0.4 * spec.capacity ? Math.max(spec.capacity, spec.peak) * 1.05 : undefined,
      splitLine: { show: true }, axisLabel: { formatter: bytes, showMaxLabel: false } }),
    series: spec.series.map((one, place) => ({
      name: one.name, type: "line", step: "end", symbol: "none", lineStyle: { width: 1.3, color: palette(place) }, itemStyle: { color: palette(place) },
      areaStyle: spec.series.length === 1 ? { color: palette(0), opacity: 0.15 } : undefined,
      data: one.ms.map((at, i) => [at, one.bytes[i]]), markLine: place ? undefined : capacity || undefined,
    })),
  }), true);
};

// Stacked bars: each row's parts side by side.
draws.stacked = (chart, spec, element) => {
  tall(chart, element, inBars(spec.rows.length).height);
  chart.setOption(base({
    grid: { left: 4, right: 24, top: 30, bottom: 24, containLabel: true },
    legend: bars(spec.parts),
    tooltip: { trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: `${token("quiet")}18` } },
      formatter: (points) => tip(points[0].name, ...points.map((one) => `${one.seriesName}: ${time(one.value)}`), spec.about?.[points[0].dataIndex]) },
    xAxis: axis({ type: "value", splitLine: { show: true }, axisLabel: { formatter: "{value} ms", hideOverlap: true } }),
    yAxis: axis({ type: "category", inverse: true, data: spec.rows, axisLabel: { width: 210, overflow: "truncate", color: token("ink") } }),
    series: spec.parts.map((part, place) => ({
      name: part, type: "bar", stack: "all", barMaxWidth: 14, data: spec.ms[place], itemStyle: { color: colour(spec.kinds[place]) },
    })),
  }), true);
};

// What got slower to the right, what got faster to the left.
draws.changes = (chart, spec, element) => {
  tall(chart, element, spec.rows.length * 22 + 40);
  chart.setOption(base({
    grid: { left: 4, right: 60, top: 6, bottom: 24, containLabel: true },
    tooltip: { trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: `${token("quiet")}18` } }, formatter: ([{ dataIndex }]) => {
      const row = spec.rows[dataIndex], pair = (word) => `${time(row[word][0])} → ${time(row[word][1])}`;
      return tip(row.name, `${row.change_ms > 0 ? "+" : "−"}${time(Math.abs(row.change_ms))}`, `device ${pair("device_ms")}`, `host ${pair("host_ms")}`, `calls ${row.count[0]} → ${row.count[1]}`);
    } },
    xAxis: axis({ type: "value", splitLine: { show: true }, axisLabel: { formatter: "{value} ms", hideOverlap: true } }),
    yAxis: axis({ type: "category", inverse: true, data: spec.rows.map((row) => row.name), axisLabel: { width: 230, overflow: "truncate", color: token("ink") } }),
    series: [{
      type: "bar", barMaxWidth: 12,
      data: spec.rows.map((row) => ({ value: row.change_ms, itemStyle: { color: token(row.change_ms > 0 ? "bad" : "good"), borderRadius: 2 } })),
      label: { show: true, position: "outside", formatter: ({ value }) => `${value > 0 ? "+" : "−"}${ms(Math.abs(value))}`, color: token("quiet"), fontSize: 11 },
    }],
  }), true);
};

// The step over the number of ranks, with its range.
draws.scaling = (chart, spec) => {
  const rows = spec.rows, lines = { step: "step_ms", "device active": "device_active_ms", "exposed communication": "exposed_communication_ms" };
  const band = (data, area) => ({ type: "line", stack: "range", symbol: "none", silent: true, lineStyle: { opacity: 0 }, areaStyle: area, data });
  chart.setOption(base({
    grid: { left: 64, right: 24, top: 34, bottom: 40 },
    legend: legend({ top: 0, left: 0, data: Object.keys(lines) }),
    tooltip: { trigger: "axis", formatter: (points) => {
      const row = rows[points[0].dataIndex];
      return tip(`${row.world.toLocaleString("en")} ranks`, `step ${time(row.step_ms)} (${ms(row.low_ms)} – ${ms(row.high_ms)})`,
        `exposed communication ${time(row.exposed_communication_ms)}`, `efficiency ${percent(row.efficiency)}`);
    } },
    xAxis: axis({ type: "category", name: "ranks", nameLocation: "middle", nameGap: 26, data: rows.map((row) => String(row.world)) }),
    yAxis: axis({ type: "value", splitLine: { show: true }, axisLabel: { formatter: "{value} ms", hideOverlap: true } }),
    series: [
      band(rows.map((row) => row.low_ms)),
      band(rows.map((row) => row.high_ms - row.low_ms), { color: palette(0), opacity: 0.16 }),
      ...Object.entries(lines).map(([name, word], place) => ({
        name, type: "line", symbolSize: 6, lineStyle: { width: place ? 1.2 : 2, color: palette([0, 3, 11][place]) },
        itemStyle: { color: palette([0, 3, 11][place]) }, data: rows.map((row) => row[word]),
      })),
    ],
  }), true);
};

// Lookups of each rank above, what it holds below.
draws.loads = (chart, spec) => {
  const ranks = spec.ranks.map(String), grid = { left: 70, right: 16 };
  const across = (place) => axis({ type: "category", gridIndex: place, data: ranks, name: place ? "rank" : "", nameLocation: "middle", nameGap: 24, axisLabel: { show: place === 1 } });
  chart.setOption(base({
    grid: [{ ...grid, top: 34, height: 190 }, { ...grid, top: 262, height: 110 }],
    legend: legend({ top: 0, left: 0, data: ["forward", "backward", "memory"] }),
    axisPointer: { link: [{ xAxisIndex: "all" }] },
    tooltip: { trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: `${token("quiet")}18` } }, formatter: ([{ dataIndex: at }]) =>
      tip(`rank ${ranks[at]}`, `forward ${time(spec.forward[at])}, backward ${time(spec.backward[at])}`, `holds ${bytes(spec.bytes[at])} in ${spec.tables[at]} tables`, `sends ${bytes(spec.sent[at])}`) },
    xAxis: [across(0), across(1)],
    yAxis: [
      axis({ type: "value", splitLine: { show: true }, axisLabel: { formatter: "{value} ms", hideOverlap: true } }),
      axis({ type: "value", gridIndex: 1, splitLine: { show: true }, splitNumber: 3, max: ({ max }) => Math.max(max, spec.room) * 1.05, axisLabel: { formatter: bytes, showMaxLabel: false } }),
    ],
    series: [
      { name: "forward", type: "bar", stack: "lookups", barMaxWidth: 28, itemStyle: { color: palette(0) }, data: spec.forward },
      { name: "backward", type: "bar", stack: "lookups", barMaxWidth: 28, itemStyle: { color: palette(1) }, data: spec.backward },
      { name: "memory", type: "bar", xAxisIndex: 1, yAxisIndex: 1, barMaxWidth: 28, itemStyle: { color: palette(3) }, data: spec.bytes,
        markLine: { symbol: "none", silent: true, data: [{ yAxis: spec.room }], lineStyle: { color: token("bad"), type: "dashed" }, label: { show: false } } },
    ],
  }), true);
};
