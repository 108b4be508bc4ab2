/** Images that are kept ready: /v1/images. */
import type { ImageProvider } from "../../../../src/provider/kit/index.ts";
import { Query, readJson, sendJson, sendNothing } from "../http.ts";
import { checkedId, lacks, type Exchange, type RouteContext } from "../router.ts";
import { imageJson } from "../telling.ts";

const imageId = ({ params }: Exchange): string => checkedId(params["id"], "MachineId", "id");

/** @throws ProviderError unsupported */
async function imagesOf({ provider }: RouteContext, { signal }: Exchange): Promise<ImageProvider> {
  if (provider.images === undefined) throw lacks("images.prewarm", "images");
  const { capabilities } = await provider.getInfo({ signal });
  if (!capabilities.includes("images.prewarm")) throw lacks("images.prewarm");
  return provider.images;
}

export async function putImage(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = imageId(exchange);
  const images = await imagesOf(context, exchange);
  const spec = await readJson(exchange.request, "PrewarmSpec", context.limits.bodyBytes);
  if (exchange.audited !== undefined) exchange.audited.labels = spec.labels;
  sendJson(exchange.response, 200, imageJson(await images.create(id, spec, { signal: exchange.workSignal })));
}

export async function getImage(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = imageId(exchange);
  const images = await imagesOf(context, exchange);
  sendJson(exchange.response, 200, imageJson(await images.get(id, { signal: exchange.signal })));
}

export async function listImages(context: RouteContext, exchange: Exchange): Promise<void> {
  const labels = new Query(exchange.query, ["label"]).labels();
  const images = await imagesOf(context, exchange);
  const items = await images.list({ labels, signal: exchange.signal });
  sendJson(exchange.response, 200, `{"items":[${items.slice(0, 1000).map(imageJson).join(",")}]}`);
}

export async function deleteImage(context: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = imageId(exchange);
  const images = await imagesOf(context, exchange);
  await images.delete(id, { signal: exchange.workSignal });
  sendNothing(exchange.response);
}
