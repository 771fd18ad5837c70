// Ops against what the device could do: bytes limit on the left, arithmetic on the right.
draws.roofline = (chart, spec, element) => {
  const from = spec.from,
    to = spec.to,
    slope = spec.gbps / 1e3,
    grid = { left: 84, right: 20, top: 40, bottom: 40 };
  const families = [...new Set(spec.ops.map((op) => op.family))];
  const roof = (rate) => [
    [from, from * slope],
    [rate.tflops / slope, rate.tflops],
    [to, rate.tflops],
  ];
  const decade = [
    (element.clientWidth - grid.left - grid.right) / Math.log10(to / from),
    (element.clientHeight - grid.top - grid.bottom) / Math.log10(spec.most / spec.least),
  ];
  const arithmetic = (at) => (at <= spec.none * 1.01 ? "none" : (+at.toPrecision(2)).toLocaleString("en"));
  chart.setOption(
    base({
      grid,
      legend: legend({ top: 0, left: 0, type: "scroll", data: families }),
      tooltip: {
        trigger: "item",
        formatter: ({ data: { op } }) =>
          tip(
            op.name,
            op.shapes,
            `${time(op.ms)} in ${op.count} ${op.count === 1 ? "call" : "calls"}`,
            `${flops(op.tflops)}, ${Math.round(op.gbps).toLocaleString("en")} GB/s`,
            `${percent(op.reached)} of the roofline`,
          ),
      },
      xAxis: axis({
        type: "log",
        min: from,
        max: to,
        name: "arithmetic for each byte (FLOP)",
        nameLocation: "middle",
        nameGap: 26,
        splitLine: { show: true },
        axisLabel: { formatter: arithmetic },
      }),
      yAxis: axis({
        type: "log",
        min: spec.least,
        max: spec.most,
        splitLine: { show: true },
        axisLabel: { formatter: flops },
      }),
      series: [
        ...spec.rates.map((rate) => ({
          name: rate.name,
          type: "line",
          symbol: "none",
          silent: true,
          lineStyle: { color: token("quiet"), width: 1.2 },
          data: roof(rate),
          endLabel: {
            show: true,
            formatter: `${rate.name}: ${flops(rate.tflops)}`,
            align: "right",
            offset: [-4, -8],
            color: token("quiet"),
            fontSize: 11,
          },
        })),
        {
          type: "scatter",
          symbolSize: 0,
          silent: true,
          data: [[spec.rates.at(-1).tflops / slope / 20, spec.rates.at(-1).tflops / 20]],
          label: {
            show: true,
            formatter: `memory: ${spec.gbps.toLocaleString("en")} GB/s`,
            position: "top",
            rotate: (Math.atan2(decade[1], decade[0]) * 180) / Math.PI,
            color: token("quiet"),
            fontSize: 11,
          },
        },
        ...families.map((family) => ({
          name: family,
          type: "scatter",
          itemStyle: { color: colour(family), opacity: 0.75, borderColor: token("ground"), borderWidth: 0.5 },
          data: spec.ops
            .filter((op) => op.family === family)
            .map((op) => ({ value: [op.intensity, op.tflops], op, symbolSize: 5 + 34 * Math.sqrt(op.share) })),
        })),
      ],
    }),
    true,
  );
};

function flops(tera) {
  const units = ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"];
  const place = Math.min(Math.max(Math.floor(Math.log10(tera * 1e12) / 3 + 1e-9), 0), units.length - 1);
  return `${+((tera * 1e12) / 1e3 ** place).toPrecision(3)} ${units[place]}`;
}
