// Lookups of each rank above, what it holds below.
draws.loads = (chart, spec) => {
  const ranks = spec.ranks.map(String),
    grid = { left: 74, right: 16 };
  const below = (place) =>
    axis({
      type: "category",
      gridIndex: place,
      data: ranks,
      name: place ? "rank" : "",
      nameLocation: "middle",
      nameGap: 24,
      axisLabel: { show: place === 1 },
    });
  const line = (at, formatter) => ({
    symbol: "none",
    silent: true,
    data: [{ yAxis: at }],
    lineStyle: { color: token("bad"), type: "dashed" },
    label: { formatter, position: "insideEndTop", color: token("quiet"), fontSize: 11 },
  });
  // Hot rows hold up one rank; which one is not known.
  const slowest = spec.slowest ? line(spec.slowest, `${time(spec.slowest)} with the hot rows of one rank`) : undefined;
  const fullest = Math.max(...spec.bytes),
    mark = inBytes(spec.near ? spec.budget : fullest);
  const bar = (name, hue, held, more) => ({
    name,
    type: "bar",
    barMaxWidth: 36,
    barCategoryGap: "30%",
    itemStyle: { color: hue },
    data: held,
    ...more,
  });
  chart.setOption(
    base({
      grid: [
        { ...grid, top: 34, height: 190 },
        { ...grid, top: 254, height: 118 },
      ],
      legend: legend({ top: 0, left: 0, type: "scroll", data: ["forward lookups", "backward and update", "memory"] }),
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      tooltip: {
        trigger: "axis",
        axisPointer: shadow(),
        formatter: ([{ dataIndex: at }]) =>
          tip(
            `rank ${ranks[at]}`,
            `forward ${time(spec.forward[at])}, backward and update ${time(spec.backward[at])}`,
            `holds ${bytes(spec.bytes[at])} in ${plural(spec.tables[at], "table")}`,
            `${percent(spec.bytes[at] / spec.budget)} of its memory budget`,
            `sends ${bytes(spec.sent[at])}`,
          ),
      },
      xAxis: [below(0), below(1)],
      yAxis: [
        axis({
          type: "value",
          splitLine: { show: true },
          max: slowest ? spec.slowest * 1.15 : undefined,
          axisLabel: { formatter: inMs, hideOverlap: true, showMaxLabel: !slowest },
        }),
        axis({
          type: "value",
          gridIndex: 1,
          splitLine: { show: true },
          interval: mark,
          max: spec.near ? Math.max(fullest, spec.budget) * 1.15 : Math.ceil(fullest / mark) * mark,
          axisLabel: { formatter: bytes, showMaxLabel: !spec.near },
        }),
      ],
      series: [
        bar("forward lookups", colour("first"), spec.forward, { stack: "lookups" }),
        bar("backward and update", colour("norm"), spec.backward, { stack: "lookups", markLine: slowest }),
        bar("memory", colour("third"), spec.bytes, {
          xAxisIndex: 1,
          yAxisIndex: 1,
          markLine: spec.near ? line(spec.budget, `${bytes(spec.budget)} for tables`) : undefined,
        }),
      ],
    }),
    true,
  );
};
