// Points of a sweep: the time of a sample against what the tabs above say, the front joined, the best ringed.

const PLATFORMS = ["first", "second", "third", "attention", "copy", "sort/index", "norm", "reduction"]; // their colours

draws.sweep = (chart, spec, element) => {
  element.view ??= 0;
  tabs(element, () => draws.sweep(chart, spec, element));
  const view = spec.views[element.view],
    formatted = { bytes, dollars: (cost) => `$${+cost.toPrecision(3)}`, joules: (energy) => `${+energy.toPrecision(3)} J` }[view.unit];
  const platforms = [...new Set(spec.points.map((point) => point.platform))],
    hue = (platform) => colour(PLATFORMS[platforms.indexOf(platform) % PLATFORMS.length]);
  const known = spec.points.filter((point) => point[view.word] !== null),
    at = (point) => [point[spec.across], point[view.word]];
  const front = frontOf(known.map(at)),
    most = Math.max(...known.map((point) => at(point)[1])),
    mark = inBytes(most);
  const wide = spec.to / spec.from > 30;
  const limit = view.unit === "bytes" &&
    spec.limit &&
    spec.limit < most && {
      symbol: "none",
      silent: true,
      data: [{ yAxis: spec.limit }],
      lineStyle: { color: token("bad"), type: "dashed" },
      label: { formatter: `limit ${bytes(spec.limit)}`, position: "insideEndTop", color: token("quiet"), fontSize: 11 },
    };
  chart.setOption(
    base({
      grid: { left: 104, right: 24, top: 40, bottom: 44 },
      legend: legend({ top: 0, left: 0, type: "scroll", data: platforms }),
      tooltip: {
        trigger: "item",
        formatter: ({ data: { point } }) =>
          tip(
            point.name,
            `${spec.across_name}: ${ms(at(point)[0])} ${spec.across_unit}`,
            `${view.title}: ${formatted(at(point)[1])}`,
            `step ${time(point.step_ms)}`,
            point.fits === false && "does not fit",
            point.best && "the best that fits",
          ),
      },
      xAxis: axis({
        type: wide ? "log" : "value",
        name: `${spec.across_name}, ${spec.across_unit}`,
        nameLocation: "middle",
        nameGap: 28,
        splitLine: { show: true },
        min: wide ? spec.from : 0,
        max: spec.to,
        axisLabel: {
          formatter: (value) => (+value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 }),
          hideOverlap: true,
          showMinLabel: !wide,
          showMaxLabel: false,
        },
      }),
      yAxis: axis({
        type: "value",
        name: view.title,
        nameLocation: "middle",
        nameGap: 78,
        splitLine: { show: true },
        axisLabel: { formatter: formatted },
        ...(view.unit === "bytes" ? { interval: mark, max: Math.ceil(most / mark) * mark } : {}),
      }),
      series: [
        {
          type: "line",
          silent: true,
          symbol: "none",
          lineStyle: { color: token("quiet"), width: 1, type: "dashed" },
          data: front,
          markLine: limit || undefined,
        },
        ...platforms.map((platform) => ({
          name: platform,
          type: "scatter",
          itemStyle: { color: hue(platform) },
          z: 3,
          data: known
            .filter((point) => point.platform === platform)
            .map((point) => ({
              value: at(point),
              point,
              symbolSize: point.best ? 15 : 9,
              itemStyle: {
                color: point.fits === false ? token("ground") : hue(platform),
                borderColor: point.best ? token("ink") : hue(platform),
                borderWidth: point.best ? 2.5 : 1.2,
              },
            })),
        })),
      ],
    }),
    true,
  );
};

// The points that no other is better than in both.
function frontOf(points) {
  const found = [];
  for (const point of [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1])) {
    if (!found.length || point[1] < found.at(-1)[1]) found.push(point);
  }
  return found;
}
