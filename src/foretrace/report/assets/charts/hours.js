// GPU hours as areas inside each other: jobs, kernel families, ops, shapes. A click goes into one.

const hours = (value) => `${(+value.toPrecision(3)).toLocaleString("en")} h`;

draws.hours = (chart, spec, element) => {
  tall(chart, element, 460);
  const paint = (branch, hue) => {
    const own = FAMILIES.includes(branch.name) || branch.name === "idle" ? colour(branch.name) : hue;
    return {
      ...branch,
      itemStyle: { color: own },
      label: { color: inkOn(own) },
      children: branch.children?.map((child) => paint(child, own)),
    };
  };
  const whole = spec.tree.reduce((sum, branch) => sum + branch.value, 0);
  chart.setOption(
    base({
      tooltip: {
        trigger: "item",
        formatter: ({ treePathInfo, value }) =>
          tip(
            treePathInfo
              .slice(1)
              .map((one) => one.name)
              .join(" › ") || "all jobs",
            hours(value),
            `${percent(value / whole)} of all`,
          ),
      },
      series: [
        {
          type: "treemap",
          data: spec.tree.map((branch, place) => paint(branch, place % 2 ? colour("first") : colour("third"))),
          leafDepth: 1,
          roam: false,
          left: 0,
          right: 0,
          top: 4,
          bottom: 34,
          name: "all jobs",
          breadcrumb: {
            left: 0,
            bottom: 4,
            itemStyle: { color: token("raised"), borderColor: token("line"), textStyle: { color: token("ink") } },
          },
          label: { fontSize: 11.5, lineHeight: 15, formatter: ({ name, value }) => `${name}\n${hours(value)}` },
          itemStyle: { borderColor: token("ground"), borderWidth: 1, gapWidth: 1 },
        },
      ],
    }),
    true,
  );
};
