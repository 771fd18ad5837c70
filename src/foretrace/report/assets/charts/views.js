// Rows of device and host time; which ones, the tabs above say.
draws.views = (chart, spec, element) => {
  element.view ??= 0;
  tabs(element, () => draws.views(chart, spec, element));
  const view = spec.views[element.view];
  element.nextElementSibling.textContent = view.tree
    ? "Areas are device and host time together: the bluer the more of it is the device's. Click into one."
    : `${view.of > view.rows.length ? `The ${view.rows.length} largest of ${view.of}. ` : ""}Host time: ${view.host}.`;
  if (view.tree) return modules(chart, view, element);
  const few = view.rows.length < 5;
  const parts = {
    device: (row) => row.device_ms - (row.wait_ms ?? 0),
    "waits for other ranks": (row) => row.wait_ms ?? 0,
    host: (row) => row.host_ms,
  };
  const shown = Object.entries(parts).filter(([, of]) => view.rows.some(of));
  tall(chart, element, view.rows.length * (few ? 34 : ROW_OF_BARS) + 54);
  return chart.setOption(
    base({
      grid: { left: 4, right: 40, top: 30, bottom: 24, containLabel: true },
      legend: bars(shown.map(([name]) => name)),
      tooltip: {
        trigger: "axis",
        axisPointer: shadow(),
        formatter: ([{ dataIndex }]) => {
          const row = view.rows[dataIndex];
          return tip(
            row.name,
            `device ${time(row.device_ms)}`,
            row.wait_ms && `of it ${time(row.wait_ms)} waiting for other ranks`,
            `host ${time(row.host_ms)}`,
            `${row.count.toLocaleString("en")} ${view.counted}`,
          );
        },
      },
      xAxis: across(element),
      yAxis: names(
        element,
        view.rows.map((row) => row.name),
        210,
      ),
      series: shown.map(([name, of]) => ({
        name,
        type: "bar",
        stack: name === "host" ? "host" : "device",
        barGap: "15%",
        barMaxWidth: few ? 12 : 9,
        itemStyle: { color: colour(name) },
        data: view.rows.map(of),
      })),
    }),
    true,
  );
};

// Modules as areas, from the device's colour to the host's by whose time it is: a click goes into one.
function modules(chart, view, element) {
  tall(chart, element, 420);
  chart.setOption(
    base({
      tooltip: {
        trigger: "item",
        formatter: ({ treePathInfo, data: branch }) =>
          tip(
            treePathInfo
              .slice(1)
              .map((one) => one.name)
              .join(".") || "all modules",
            branch.host !== undefined && `device ${time(branch.value - branch.host)}`,
            branch.host !== undefined && `host ${time(branch.host)}`,
          ),
      },
      series: [
        {
          type: "treemap",
          data: view.tree.map(painted),
          leafDepth: 1,
          roam: false,
          left: 0,
          right: 0,
          top: 4,
          bottom: 34,
          name: "all modules",
          breadcrumb: {
            left: 0,
            bottom: 4,
            itemStyle: { color: token("raised"), borderColor: token("line"), textStyle: { color: token("ink") } },
          },
          // The end of a long name tells it from others.
          label: {
            fontSize: 11.5,
            lineHeight: 15,
            formatter: ({ name, value }) => `${name.split(".").slice(-2).join(".")}\n${time(value)}`,
          },
          itemStyle: { borderColor: token("ground"), borderWidth: 1, gapWidth: 1 },
        },
      ],
    }),
    true,
  );
}

function painted(branch) {
  const hue = between(colour("device"), colour("host"), branch.host / branch.value);
  return {
    ...branch,
    itemStyle: { color: hue },
    label: { color: inkOn(hue) },
    children: branch.children?.map(painted),
  };
}
