/** What an object is to this server: JSON with metadata that the server has filled in. */
import type { V1ObjectMeta } from "@kubernetes/client-node";
import type { Wire } from "../../kube/wire.ts";

/** JSON whose shape only its kind knows: this server is generic over kinds, as kube-apiserver's storage layer is. */
// eslint-disable-next-line typescript/no-explicit-any
export type Json = any;

/** Metadata of an object in storage: the server has filled in what the client may leave out. */
export type StoredMeta = Wire<V1ObjectMeta> & {
  name: string;
  uid: string;
  resourceVersion: string;
  creationTimestamp: string;
};

/** An object in storage. Never changed in place: a write stores a new object, so watchers may keep the old one. */
export interface StoredObject {
  apiVersion: string;
  kind: string;
  metadata: StoredMeta;
  spec?: Json;
  status?: Json;
  data?: Json;
  [field: string]: Json;
}

/** Which objects a selector lets through. */
export type Filter = (object: StoredObject) => boolean;

/** A copy with other metadata. */
export const withMeta = (object: StoredObject, meta: Partial<StoredMeta>): StoredObject => ({
  ...object,
  metadata: { ...object.metadata, ...meta },
});

export const isRecord = (value: unknown): value is Record<string, Json> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Deep equality of JSON values; the order of an object's keys does not matter, `undefined` members count as absent. */
export function jsonEqual(a: Json, b: Json): boolean {
  if (a === b) return true;
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((item, i) => jsonEqual(item, b[i]));
  if (!isRecord(a) || !isRecord(b)) return false;
  const keysA = Object.keys(a).filter((key) => a[key] !== undefined);
  const keysB = Object.keys(b).filter((key) => b[key] !== undefined);
  return keysA.length === keysB.length && keysA.every((key) => jsonEqual(a[key], b[key]));
}
