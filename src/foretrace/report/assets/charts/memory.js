// Bytes over the step, and what the device has; of several ranks the fullest, the least full, and all between them.
const MEMORY = ["first", "second", "third", "copy", "reduction", "norm", "softmax", "other"]; // colours of kinds

draws.memory = (chart, spec) => {
  const capacity = spec.capacity && {
    symbol: "none",
    silent: true,
    data: [
      {
        yAxis: spec.capacity,
        lineStyle: { color: token("bad"), type: "dashed" },
        label: {
          formatter: `the device's ${bytes(spec.capacity)}`,
          position: "insideStartTop",
          color: token("quiet"),
          fontSize: 11,
        },
      },
    ],
  };
  const line = (name, at, held, more) => ({
    name,
    type: "line",
    step: "end",
    symbol: "none",
    data: at.map((when, i) => [when, held[i]]),
    ...more,
  });
  const { band, kinds } = spec,
    hue = (place) => colour(["first", "third"][place]);
  chart.setOption(
    base({
      grid: { left: 70, right: 12, top: 28, bottom: 26 },
      legend: kinds.length
        ? legend({ top: 0, left: 0, type: "scroll", data: kinds.map(({ name }) => name) })
        : band
          ? legend({ top: 0, left: 0, type: "scroll", data: [...spec.series.map((one) => one.name), band.name] })
          : undefined,
      tooltip: {
        trigger: "axis",
        formatter: (points) =>
          tip(
            `${ms(points[0].value[0])} ms`,
            ...points
              .filter((one) => one.seriesIndex < spec.series.length)
              .map((one) => `${spec.series.length > 1 ? `${one.seriesName}: ` : ""}${bytes(one.value[1])}`),
            ...kinds.map(
              ({ name, bytes: held }) => held[points[0].dataIndex] && `${name}: ${bytes(held[points[0].dataIndex])}`,
            ),
          ),
      },
      xAxis: axis({
        type: "value",
        min: 0,
        max: spec.end_ms,
        axisLabel: { formatter: inMs, hideOverlap: true, showMaxLabel: false },
      }),
      yAxis: axis({
        type: "value",
        interval: inBytes(spec.peak),
        max: spec.capacity && spec.peak > 0.4 * spec.capacity ? Math.max(spec.capacity, spec.peak) * 1.05 : undefined,
        splitLine: { show: true },
        axisLabel: { formatter: bytes, showMaxLabel: false },
      }),
      series: [
        ...spec.series.map((one, place) =>
          line(one.name, one.ms, one.bytes, {
            lineStyle: { width: 1.3, color: hue(place) },
            itemStyle: { color: hue(place) },
            areaStyle: band || kinds.length ? undefined : { color: hue(0), opacity: 0.15 },
            markLine: place ? undefined : capacity || undefined,
            z: 3,
          }),
        ),
        ...kinds.map(({ name, bytes: held }, place) =>
          line(name, spec.series[0].ms, held, {
            stack: "kinds",
            silent: true,
            lineStyle: { opacity: 0 },
            itemStyle: { color: colour(MEMORY[place % MEMORY.length]) },
            areaStyle: { color: colour(MEMORY[place % MEMORY.length]), opacity: 0.55 },
          }),
        ),
        ...(band
          ? [
              line("", band.ms, band.low, { stack: "band", silent: true, lineStyle: { opacity: 0 } }),
              line(
                band.name,
                band.ms,
                band.high.map((high, i) => high - band.low[i]),
                {
                  stack: "band",
                  silent: true,
                  lineStyle: { opacity: 0 },
                  itemStyle: { color: `${colour("first")}40` },
                  areaStyle: { color: colour("first"), opacity: 0.16 },
                },
              ),
            ]
          : []),
      ],
    }),
    true,
  );
};
