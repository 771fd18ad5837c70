// A heat map of workers by steps: how much slower than its ideal a step is through one worker alone.
draws.heat = (chart, spec, element) => {
  tall(chart, element, Math.max(180, spec.workers.length * 18 + 70));
  const most = Math.max(spec.most, 1.01);
  const hue = (value) => between(token("ground"), token("bad"), Math.min(Math.max((value - 1) / (most - 1), 0), 1));
  const cells = spec.slowdown.flatMap((row, worker) => row.map((value, step) => [step, worker, value]));
  chart.setOption(
    base({
      grid: { left: 4, right: 16, top: 8, bottom: 28, containLabel: true },
      tooltip: {
        trigger: "item",
        formatter: ({ value: [step, worker, value] }) =>
          tip(spec.workers[worker], `step ${spec.steps[step]}`, `${value.toFixed(3)} times as long`),
      },
      xAxis: axis({ type: "category", data: spec.steps, name: "step", nameLocation: "middle", nameGap: 24 }),
      yAxis: axis({ type: "category", inverse: true, data: spec.workers }),
      series: [
        {
          type: "custom",
          data: cells,
          renderItem: (_, api) => {
            const [x, y] = api.coord([api.value(0), api.value(1)]);
            const [width, height] = api.size([1, 1]);
            const shape = { x: x - width / 2, y: y - height / 2, width: Math.max(width - 1, 1), height: height - 1 };
            return { type: "rect", shape, style: { fill: hue(api.value(2)) } };
          },
        },
      ],
    }),
    true,
  );
};
