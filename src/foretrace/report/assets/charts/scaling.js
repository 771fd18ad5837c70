// The step over the number of ranks, with its range.
draws.scaling = (chart, spec) => {
  const rows = spec.rows,
    lines = {
      step: "step_ms",
      "device active": "device_active_ms",
      "exposed communication": "exposed_communication_ms",
    };
  const hues = ["first", "third", "communication"].map(colour);
  const band = (held, area) => ({
    type: "line",
    stack: "range",
    symbol: "none",
    silent: true,
    lineStyle: { opacity: 0 },
    areaStyle: area,
    data: held.map((value, place) => [rows[place].world, value]),
  });
  chart.setOption(
    base({
      grid: { left: 74, right: 24, top: 34, bottom: 44 },
      legend: legend({ top: 0, left: 0, type: "scroll", data: [...Object.keys(lines), "as if ranks cost nothing"] }),
      tooltip: {
        trigger: "axis",
        formatter: (points) => {
          const row = rows[points[0].dataIndex];
          return tip(
            plural(row.world, "rank"),
            `step ${time(row.step_ms)} (${ms(row.low_ms)} – ${ms(row.high_ms)})`,
            `device active ${time(row.device_active_ms)}`,
            `exposed communication ${time(row.exposed_communication_ms)}`,
            `efficiency ${percent(row.efficiency)}`,
            row.fabric,
          );
        },
      },
      xAxis: axis({
        // Twice the ranks are as far from each other everywhere.
        type: "log",
        logBase: 2,
        min: rows[0].world,
        max: rows.at(-1).world > rows[0].world ? rows.at(-1).world : 2 * rows[0].world,
        name: "ranks",
        nameLocation: "middle",
        nameGap: 26,
        axisLabel: {
          formatter: (ranks) => ranks.toLocaleString("en", { maximumFractionDigits: 0 }),
          hideOverlap: true,
        },
      }),
      yAxis: axis({ type: "value", splitLine: { show: true }, axisLabel: { formatter: inMs, hideOverlap: true } }),
      series: [
        band(rows.map((row) => row.low_ms)),
        band(
          rows.map((row) => row.high_ms - row.low_ms),
          { color: hues[0], opacity: 0.16 },
        ),
        ...Object.entries(lines).map(([name, word], place) => ({
          name,
          type: "line",
          symbol: "circle",
          symbolSize: 6,
          lineStyle: { width: place ? 1.2 : 2, color: hues[place] },
          itemStyle: { color: hues[place] },
          data: rows.map((row) => [row.world, row[word]]),
        })),
        {
          name: "as if ranks cost nothing",
          type: "line",
          symbol: "none",
          silent: true,
          lineStyle: { width: 1, type: "dashed", color: token("quiet") },
          itemStyle: { color: token("quiet") },
          data: rows.map((row) => [row.world, row.step_ms * row.efficiency]),
        },
      ],
    }),
    true,
  );
};
