/**
 * Modules of packages that are loaded by themselves because the whole package would cost each process megabytes. Their
 * packages describe them only as parts of the whole.
 */
declare module "undici/lib/dispatcher/agent.js" {
  export { Agent as default } from "undici";
}
declare module "undici/lib/dispatcher/proxy-agent.js" {
  export { ProxyAgent as default } from "undici";
}
declare module "undici/lib/api/api-request.js" {
  import type { Dispatcher } from "undici";
  /** `Dispatcher.request`, which a dispatcher has only where the whole package is loaded. */
  export default function request(
    this: Dispatcher,
    options: Dispatcher.RequestOptions,
  ): Promise<Dispatcher.ResponseData>;
}
declare module "prom-client/lib/counter.js" {
  export { Counter as default } from "prom-client";
}
declare module "prom-client/lib/gauge.js" {
  export { Gauge as default } from "prom-client";
}
declare module "prom-client/lib/histogram.js" {
  export { Histogram as default } from "prom-client";
}
declare module "prom-client/lib/registry.js" {
  export { Registry as default } from "prom-client";
}
declare module "prom-client/lib/metrics/*.js" {
  import type { DefaultMetricsCollectorConfiguration, Registry } from "prom-client";
  const collect: (
    registry: Registry,
    config: Omit<DefaultMetricsCollectorConfiguration<"text/plain; version=0.0.4; charset=utf-8">, "register">,
  ) => void;
  export default collect;
}
