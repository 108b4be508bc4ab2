/** The ranges of machines' addresses: /v1/pod-ranges. */
import type { PodRanges, PodRangesProvider } from "../../../../src/provider/kit/index.ts";
import { Query, readJson, sendJson, sendNothing } from "../http.ts";
import { lacks, type Exchange, type RouteContext } from "../router.ts";
import { podRangesJson } from "../telling.ts";

/** @throws ProviderError unsupported */
async function rangesOf({ provider }: RouteContext, { signal }: Exchange): Promise<PodRangesProvider> {
  if (provider.podRanges === undefined) throw lacks("pod_ranges");
  const { capabilities } = await provider.getInfo({ signal });
  if (!capabilities.includes("pod_ranges")) throw lacks("pod_ranges");
  return provider.podRanges;
}

const send = ({ response }: Exchange, told: PodRanges): void => sendJson(response, 200, podRangesJson(told));

export async function getPodRanges(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const ranges = await rangesOf(context, exchange);
  send(exchange, await ranges.get({ signal: exchange.signal }));
}

export async function putPodRanges(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const ranges = await rangesOf(context, exchange);
  const spec = await readJson(exchange.request, "PodRangesSpec", context.limits.bodyBytes);
  if (exchange.audited !== undefined) exchange.audited.labels = spec.labels;
  send(exchange, await ranges.put(spec, { signal: exchange.workSignal }));
}

export async function deletePodRanges(context: RouteContext, exchange: Exchange): Promise<void> {
  const labels = new Query(exchange.query, ["label"]).labels();
  const ranges = await rangesOf(context, exchange);
  if (exchange.audited !== undefined) exchange.audited.labels = labels;
  await ranges.delete({ labels, signal: exchange.workSignal });
  sendNothing(exchange.response);
}
