/** What the backend says of itself: /v1/info, /v1/capacity and /v1/stats. */
import { Query, sendJson } from "../http.ts";
import { lacks, type Exchange, type RouteContext } from "../router.ts";
import { statsJson } from "../telling.ts";

export async function getInfo(
  { provider, limits }: RouteContext,
  { response, query, signal }: Exchange,
): Promise<void> {
  new Query(query, []);
  const { name, version, capabilities, os, architecture, runtimeHandlers, ...rest } = await provider.getInfo({
    signal,
  });
  sendJson(
    response,
    200,
    JSON.stringify({
      name,
      version,
      capabilities,
      os,
      architecture,
      runtime_handlers: runtimeHandlers,
      running_in_user_namespace: rest.runningInUserNamespace,
      volume_classes: rest.volumeClasses,
      zone: rest.zone,
      reserved: rest.reserved,
      api: "v1",
      limits: {
        body_bytes: limits.bodyBytes,
        page_items: limits.pageItems,
        attached_volumes: rest.maxAttachedVolumes,
      },
    }),
  );
}

export async function getCapacity({ provider }: RouteContext, { response, query, signal }: Exchange): Promise<void> {
  new Query(query, []);
  if (provider.getCapacity === undefined) throw lacks("capacity", "getCapacity");
  sendJson(response, 200, JSON.stringify(await provider.getCapacity({ signal })));
}

export async function getStats({ provider }: RouteContext, { response, query, signal }: Exchange): Promise<void> {
  const asked = new Query(query, ["label"]);
  if (provider.getStats === undefined) throw lacks("stats", "getStats");
  const items = await provider.getStats({ signal, labels: asked.labels() });
  sendJson(response, 200, statsJson(items));
}
