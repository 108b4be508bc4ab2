/** Where the addresses of the cluster's Services lead: /v1/services. */
import { Query, readJson, sendJson } from "../http.ts";
import { lacks, type Exchange, type RouteContext } from "../router.ts";

/** @throws ProviderError unsupported, conflict, invalid */
export async function putServices({ provider, limits }: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const { services } = provider;
  const { capabilities } = await provider.getInfo({ signal: exchange.signal });
  if (services === undefined || !capabilities.includes("services")) throw lacks("services");
  const spec = await readJson(exchange.request, "ServicesSpec", limits.bodyBytes);
  if (exchange.audited !== undefined) exchange.audited.labels = spec.labels;
  const told = await services.put(spec, { signal: exchange.workSignal });
  sendJson(exchange.response, 200, JSON.stringify({ revision: told.revision, services: told.services }));
}
