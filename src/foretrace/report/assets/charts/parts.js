// Where the step goes, as one bar; its parts are explained below it.
draws.parts = (chart, spec, element) => {
  tall(chart, element, 44);
  const total = spec.parts.reduce((sum, part) => sum + part.ms, 0);
  const room = (part) => (part.ms / total) * element.clientWidth;
  chart.setOption(
    base({
      grid: { left: 0, right: 0, top: 4, height: 36 },
      tooltip: {
        trigger: "item",
        formatter: ({ seriesIndex }) => {
          const part = spec.parts[seriesIndex];
          return tip(part.name, `${time(part.ms)}, ${percent(part.ms / total)} of the step`, part.about);
        },
      },
      xAxis: { type: "value", show: false, max: total },
      yAxis: { type: "category", show: false, data: [""] },
      series: spec.parts.map((part) => ({
        name: part.name,
        type: "bar",
        stack: "step",
        barWidth: 36,
        data: [part.ms],
        itemStyle: { color: colour(part.name), borderColor: token("ground"), borderWidth: 1 },
        label: {
          show: room(part) > 56,
          color: inkOn(colour(part.name)),
          fontSize: 12,
          formatter: room(part) > part.name.length * 7 + 80 ? `${part.name} ${time(part.ms)}` : time(part.ms),
        },
      })),
    }),
    true,
  );
};
