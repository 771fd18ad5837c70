// Hours over the weeks, by kernel family; what devices idle comes last.
draws.trend = (chart, spec, element) => {
  const amount = (value) => `${(+value.toPrecision(3)).toLocaleString("en")} h`;
  chart.setOption(
    base({
      grid: { left: 4, right: 16, top: 44, bottom: 24, containLabel: true },
      legend: bars(spec.parts),
      tooltip: {
        trigger: "axis",
        axisPointer: shadow(),
        formatter: (points) =>
          tip(points[0].name, ...points.filter((one) => one.value).map((one) => `${one.seriesName}: ${amount(one.value)}`)),
      },
      xAxis: axis({ type: "category", data: spec.weeks }),
      yAxis: axis({ type: "value", splitLine: { show: true }, axisLabel: { formatter: amount } }),
      series: spec.parts.map((name, place) => ({
        name,
        type: "bar",
        stack: "all",
        itemStyle: { color: colour(name) },
        data: spec.hours[place],
      })),
    }),
    true,
  );
};
