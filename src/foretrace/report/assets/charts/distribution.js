// How the step may turn out: how many of the draws fall where.
draws.distribution = (chart, spec) => {
  const named = spec.series.map((one) => one.name),
    hue = (place) => colour(place ? "second" : "first");
  const line = (mark) => ({
    color: mark.name === "measured" ? token("accent") : token("quiet"),
    type: mark.dashed ? "dashed" : "solid",
    width: 1,
  });
  const alignment = (place) =>
    named.length < 2
      ? "center"
      : spec.series[place].marks[0].ms < spec.series[1 - place].marks[0].ms
        ? "right"
        : "left";
  chart.setOption(
    base({
      grid: { left: 8, right: 12, top: named.length > 1 ? 56 : 44, bottom: 26 },
      legend: named.length > 1 ? legend({ data: named, top: 0, left: 0, type: "scroll" }) : undefined,
      tooltip: {
        trigger: "axis",
        formatter: (points) => {
          const at = points[0].value[0];
          return tip(
            `${ms(at)} – ${ms(at + spec.width)} ms`,
            ...points.map((one) => `${one.seriesName}: ${percent(one.value[1])} of the draws`),
          );
        },
      },
      xAxis: axis({
        type: "value",
        min: spec.from,
        max: spec.to,
        axisLabel: { formatter: inMs, hideOverlap: true, showMinLabel: false, showMaxLabel: false },
      }),
      yAxis: { type: "value", show: false },
      series: spec.series.map((one, place) => ({
        name: one.name,
        type: "line",
        step: "end",
        symbol: "none",
        lineStyle: { width: 1.2, color: hue(place) },
        areaStyle: { color: hue(place), opacity: 0.22 },
        itemStyle: { color: hue(place) },
        data: one.shares.map((share, bin) => [spec.from + bin * spec.width, share]),
        markLine: {
          symbol: "none",
          silent: true,
          animation: false,
          data: one.marks.map((mark) => ({
            xAxis: mark.ms,
            lineStyle: named.length > 1 ? { color: hue(place), width: 1.5 } : line(mark),
            label: {
              formatter: mark.name,
              color: named.length > 1 ? hue(place) : line(mark).color,
              fontSize: 11,
              align: alignment(place),
              padding: [0, 4, { step: 13, measured: 26 }[mark.name] ?? 0, 4],
            },
          })),
        },
      })),
    }),
    true,
  );
};
