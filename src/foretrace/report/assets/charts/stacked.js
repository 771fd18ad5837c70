// Stacked bars: each row's parts side by side; of one part alone its figure.
draws.stacked = (chart, spec, element) => {
  const alone = spec.parts.length === 1;
  tall(chart, element, spec.rows.length * ROW_OF_BARS + (alone ? 36 : 58));
  chart.setOption(
    base({
      grid: { left: 4, right: 48, top: alone ? 6 : 30, bottom: 24, containLabel: true },
      legend: alone ? undefined : bars(spec.parts),
      tooltip: {
        trigger: "axis",
        axisPointer: shadow(),
        formatter: (points) =>
          tip(
            points[0].name,
            ...points.map((one) => `${one.seriesName}: ${time(one.value)}`),
            spec.about?.[points[0].dataIndex],
          ),
      },
      xAxis: across(element),
      yAxis: names(element, spec.rows),
      series: spec.parts.map((name, place) => ({
        name,
        type: "bar",
        stack: "all",
        barMaxWidth: 14,
        itemStyle: { color: colour(name) },
        data: spec.ms[place],
        label: {
          show: alone,
          position: "right",
          formatter: ({ value }) => ms(value),
          color: token("quiet"),
          fontSize: 11,
        },
      })),
    }),
    true,
  );
};
