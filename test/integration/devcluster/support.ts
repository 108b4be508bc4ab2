/** A devcluster over plain HTTP, and a client of it. */
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { startDevCluster, type DevCluster, type DevClusterOptions } from "../../../src/devcluster/index.ts";
import { connect, type Api, type Json } from "../../e2e/fidelity/api.ts";

export interface Running extends AsyncDisposable {
  cluster: DevCluster;
  api: Api;
}

export async function runDevCluster(options: Partial<DevClusterOptions> = {}): Promise<Running> {
  const cluster = await startDevCluster({ clock: systemClock, logger: silentLogger, tls: false, ...options });
  const api = connect({ url: cluster.url, token: cluster.token, ...(cluster.caBundle && { ca: cluster.caBundle }) });
  return {
    cluster,
    api,
    async [Symbol.asyncDispose]() {
      api.close();
      await cluster.close();
    },
  };
}

export const PODS = "/api/v1/namespaces/default/pods";

export async function create(api: Api, path: string, object: Json): Promise<Json> {
  const { status, body } = await api.request("POST", path, object);
  if (status !== 201) throw new Error(`POST ${path}: ${status} ${body.message}`);
  return body;
}

export const pod = (name: string, spec: Json = {}): Json => ({
  metadata: { name },
  spec: { containers: [{ name: "a", image: "busybox:1.36" }], ...spec },
});

export const node = (name: string, spec: Json = {}, labels: Json = {}): Json => ({
  metadata: { name, labels },
  spec,
  status: { capacity: { cpu: "2", memory: "4Gi", pods: "2", "vendor.example/license": "1" } },
});

/** The pod once `isSo` holds for it, seen by a watch. */
export async function podWhen(api: Api, name: string, isSo: (pod: Json) => boolean): Promise<Json> {
  const watch = await api.watch(`${PODS}?watch=true&fieldSelector=metadata.name%3D${name}`);
  try {
    for (;;) {
      const { object } = await watch.nextChange();
      if (isSo(object)) return object;
    }
  } finally {
    watch.close();
  }
}
