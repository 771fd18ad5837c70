// What got slower to the right, what got faster to the left.

const FIGURE = 52; // pixels of a figure at the end of a bar

// What an axis needs beyond its longest bars, in its own unit, for the figures there.
function beyond(element, least, most) {
  const ends = (least < 0) + (most > 0),
    wide = element.clientWidth - namesWidth(element) - 16 - ends * FIGURE;
  return ((most - least) * FIGURE) / Math.max(wide, FIGURE);
}

draws.changes = (chart, spec, element) => {
  tall(chart, element, spec.rows.length * ROW_OF_BARS + 40);
  const moved = spec.rows.map((row) => row.change_ms),
    least = Math.min(0, ...moved),
    most = Math.max(0, ...moved);
  const room = beyond(element, least, most);
  const hue = (change) => (spec.verdict ? token(change > 0 ? "bad" : "good") : colour(change > 0 ? "second" : "first"));
  chart.setOption(
    base({
      grid: { left: 4, right: 12, top: 6, bottom: 24, containLabel: true },
      tooltip: {
        trigger: "axis",
        axisPointer: shadow(),
        formatter: ([{ dataIndex }]) => {
          const row = spec.rows[dataIndex],
            pair = (word) => `${time(row[word][0])} → ${time(row[word][1])}`;
          return tip(
            row.name,
            `${row.change_ms > 0 ? "+" : "−"}${time(Math.abs(row.change_ms))}`,
            ...(row.ms
              ? [pair("ms")]
              : [
                  row.device_ms[0] === null ? "device time is unknown" : `device ${pair("device_ms")}`,
                  `host ${pair("host_ms")}`,
                  `calls ${row.count[0]} → ${row.count[1]}`,
                ]),
          );
        },
      },
      xAxis: across(element, {
        min: least && least - room,
        max: most && most + room,
        axisLabel: { formatter: inMs, hideOverlap: true, showMinLabel: !least, showMaxLabel: !most },
      }),
      yAxis: {
        ...names(
          element,
          spec.rows.map((row) => row.name),
        ),
        axisLine: { lineStyle: { color: token("quiet") } },
      },
      series: [
        {
          type: "bar",
          barMaxWidth: 12,
          data: moved.map((change) => ({
            value: change,
            itemStyle: { color: hue(change), borderRadius: 2 },
            label: { position: change > 0 ? "right" : "left" },
          })),
          label: {
            show: true,
            formatter: ({ value }) => `${value > 0 ? "+" : "−"}${ms(Math.abs(value))}`,
            color: token("quiet"),
            fontSize: 11,
          },
        },
      ],
    }),
    true,
  );
};
