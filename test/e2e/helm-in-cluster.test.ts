/** The chart with a backend of plain processes; with one that makes containers it is in `helm-made-image.test.ts`. */
import { describeInCluster } from "./helm-in-cluster-suite.ts";

describeInCluster({ engine: "process" });
