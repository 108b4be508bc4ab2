/** Volumes that outlive machines: /v1/volumes, and the room for them. */
import { assertCapable, type Requirement, type VolumeProvider } from "../../../../src/provider/kit/index.ts";
import { Query, readJson, sendJson, sendNothing } from "../http.ts";
import { decodeCursor, pageOf } from "../pages.ts";
import { checkedId, lacks, type Exchange, type RouteContext } from "../router.ts";
import { volumeJson } from "../telling.ts";

const volumeId = ({ params }: Exchange): string => checkedId(params["id"], "MachineId", "id");
const reservationName = ({ params }: Exchange): string => checkedId(params["reservation"], "Name", "reservation");

/** @throws ProviderError unsupported */
async function volumesOf({ provider }: RouteContext, { signal }: Exchange): Promise<VolumeProvider> {
  if (provider.volumes === undefined) throw lacks("volumes.persistent", "volumes");
  const { capabilities } = await provider.getInfo({ signal });
  if (!capabilities.includes("volumes.persistent")) throw lacks("volumes.persistent");
  return provider.volumes;
}

/** @throws ProviderError unsupported */
async function requireCapable({ provider }: RouteContext, exchange: Exchange, ...needs: Requirement[]): Promise<void> {
  const { capabilities } = await provider.getInfo({ signal: exchange.workSignal });
  assertCapable(needs, capabilities);
}

export async function putVolume(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = volumeId(exchange);
  const volumes = await volumesOf(context, exchange);
  const spec = await readJson(exchange.request, "PersistentVolumeSpec", context.limits.bodyBytes);
  if (exchange.audited !== undefined) exchange.audited.labels = spec.labels;
  const needs: Requirement[] = [
    ...(spec.mode === "block" ? [{ capability: "volumes.block", field: "mode" } as const] : []),
    ...(spec.source === undefined ? [] : [{ capability: "volumes.clone", field: "source" } as const]),
  ];
  if (needs.length > 0) await requireCapable(context, exchange, ...needs);
  sendJson(exchange.response, 200, volumeJson(await volumes.create(id, spec, { signal: exchange.workSignal })));
}

export async function getVolume(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = volumeId(exchange);
  const volumes = await volumesOf(context, exchange);
  sendJson(exchange.response, 200, volumeJson(await volumes.get(id, { signal: exchange.signal })));
}

export async function patchVolume(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = volumeId(exchange);
  const volumes = await volumesOf(context, exchange);
  const patch = await readJson(exchange.request, "PersistentVolumePatch", context.limits.bodyBytes);
  const grown = await volumes.resize(id, patch.size_bytes, { signal: exchange.workSignal });
  sendJson(exchange.response, 200, volumeJson(grown));
}

export async function deleteVolume(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = volumeId(exchange);
  const volumes = await volumesOf(context, exchange);
  await volumes.delete(id, { signal: exchange.workSignal });
  sendNothing(exchange.response);
}

export async function listVolumes(context: RouteContext, exchange: Exchange): Promise<void> {
  const asked = new Query(exchange.query, ["label", "limit", "cursor", "include_deleted"]);
  const limit = asked.count("limit", { min: 1, max: 10_000 });
  const cursor = decodeCursor(asked.text("cursor"));
  const labels = asked.labels();
  const includeDeleted = asked.flag("include_deleted");
  const volumes = await volumesOf(context, exchange);
  const { items, unknown = [] } = await volumes.list({ signal: exchange.signal, labels, includeDeleted });
  const bodies = [
    ...items.map((volume) => ({ id: volume.id, text: () => volumeJson(volume) })),
    ...unknown.map(({ id }) => ({ id, text: () => JSON.stringify({ id }) })),
  ];
  const page = pageOf(bodies, { limit, cursor, revision: 0, limits: context.limits });
  sendJson(exchange.response, 200, `{"items":[${page.items.join(",")}]${page.nextCursor}}`);
}

export async function reserveVolume(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = volumeId(exchange);
  const name = reservationName(exchange);
  const volumes = await volumesOf(context, exchange);
  const body = await readJson(exchange.request, "VolumeReservationRequest", context.limits.bodyBytes);
  const { read_only: readOnly, exclusive } = body;
  if (exclusive === true)
    await requireCapable(context, exchange, { capability: "volumes.exclusive", field: "exclusive" });
  const reserved = await volumes.reserve(id, name, { signal: exchange.workSignal, readOnly, exclusive });
  sendJson(exchange.response, 200, volumeJson(reserved));
}

export async function releaseVolume(context: RouteContext, exchange: Exchange): Promise<void> {
  const force = new Query(exchange.query, ["force"]).flag("force");
  const id = volumeId(exchange);
  const name = reservationName(exchange);
  const volumes = await volumesOf(context, exchange);
  if (force) await requireCapable(context, exchange, { capability: "volumes.force_release", field: "force" });
  await volumes.release(id, name, { signal: exchange.workSignal, force });
  sendNothing(exchange.response);
}

export async function getVolumeCapacity(context: RouteContext, exchange: Exchange): Promise<void> {
  const asked = new Query(exchange.query, ["class", "zone"]);
  const volumes = await volumesOf(context, exchange);
  const options = { signal: exchange.signal, class: asked.text("class"), zone: asked.text("zone") };
  sendJson(exchange.response, 200, JSON.stringify(await volumes.getCapacity(options)));
}
