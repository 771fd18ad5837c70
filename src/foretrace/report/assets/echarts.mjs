// The parts of Apache ECharts that pages use; echarts.js is this file bundled (see CONTRIBUTING.md).
import { BarChart, CustomChart, LineChart, ScatterChart, TreemapChart } from "echarts/charts";
import {
  DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, TooltipComponent,
} from "echarts/components";
import { init, use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

use([BarChart, CustomChart, LineChart, ScatterChart, TreemapChart]);
use([DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, TooltipComponent, CanvasRenderer]);

export { init };
