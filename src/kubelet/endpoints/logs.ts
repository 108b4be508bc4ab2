/** `/logs/`: logs of a host and, by NodeLogQuery, of its services; answered as kubelets do that have them disabled. */
import { HttpError } from "../../http/http-error.ts";
import type { Handler } from "../router.ts";

const DISABLED =
  "logs endpoint is disabled. (NodeLogQuery asks a node for logs of its host; this one is an agent, whose own log is where it runs)";

export const hostLogs: Handler = {
  kind: "plain",
  handle: () => Promise.reject(new HttpError(405, DISABLED)),
};
