/** One ConfigMap in each namespace: made, changed and removed by users, read and watched by agents. */
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { ConfigMap } from "../../../src/kube/wire.ts";

export const CONFIG_NAME = "files";

export interface ConfigEntry {
  type: "ADDED" | "MODIFIED" | "DELETED";
  version: number;
  object: ConfigMap;
}

export class ConfigMaps {
  readonly log: ConfigEntry[] = [];
  readonly #objects = new Map<string, ConfigMap>();
  #version = 1000;

  get version(): number {
    return this.#version;
  }

  find(namespace: string): ConfigMap | undefined {
    return this.#objects.get(namespace);
  }

  /** Makes it, or gives it another content. */
  write(namespace: string): void {
    const version = ++this.#version;
    const before = this.#objects.get(namespace);
    const metadata = {
      namespace,
      name: CONFIG_NAME,
      uid: before?.metadata!.uid ?? `config-${version}`,
      resourceVersion: String(version),
    };
    const object: ConfigMap = { apiVersion: "v1", kind: "ConfigMap", metadata, data: { file: `content ${version}` } };
    this.#objects.set(namespace, object);
    this.log.push({ type: before === undefined ? "ADDED" : "MODIFIED", version, object });
  }

  remove(namespace: string): void {
    const object = this.#objects.get(namespace);
    if (object === undefined) return;
    this.#objects.delete(namespace);
    const version = ++this.#version;
    this.log.push({
      type: "DELETED",
      version,
      object: { ...object, metadata: { ...object.metadata!, resourceVersion: String(version) } },
    });
  }

  /** @throws KubeApiError when there is none */
  get(namespace: string): ConfigMap {
    const object = this.#objects.get(namespace);
    if (object !== undefined) return object;
    const details = { name: CONFIG_NAME, kind: "configmaps" };
    throw new KubeApiError(`configmaps "${CONFIG_NAME}" not found`, { status: 404, reason: "NotFound", details });
  }

  list(namespace: string): {
    kind: string;
    apiVersion: string;
    metadata: { resourceVersion: string };
    items: ConfigMap[];
  } {
    const object = this.#objects.get(namespace);
    return {
      kind: "ConfigMapList",
      apiVersion: "v1",
      metadata: { resourceVersion: String(this.#version) },
      items: object === undefined ? [] : [object],
    };
  }
}
