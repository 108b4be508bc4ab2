/** One question of the API server (admission.k8s.io/v1 AdmissionReview), and its answer. */
import type { Pod } from "../kube/wire.ts";
import { type BurstPolicy, place, type VirtualNodes } from "./placement.ts";

interface ReviewRequest {
  uid: string;
  namespace?: string | undefined;
  operation?: string | undefined;
  resource?: { group?: string | undefined; resource?: string | undefined } | undefined;
  subResource?: string | undefined;
  object?: Pod | null | undefined;
}

/** What became of the pod: `placed`, or why it stays as it is. */
interface Answer {
  outcome: string;
  body: object;
}

/** The pod is created in any case: this webhook places pods, and refuses none. */
export function answer(review: unknown, policy: BurstPolicy, nodes: VirtualNodes): Answer | undefined {
  const request = requestOf(review);
  if (request === undefined) return undefined;
  const { uid, namespace = "", operation, resource, subResource, object } = request;
  const isNewPod = operation === "CREATE" && resource?.group === "" && resource.resource === "pods" && !subResource;
  if (!isNewPod || !isPod(object)) return { outcome: "not a new pod", body: allowed(uid) };
  const placement = place(object, namespace, policy, nodes);
  if (placement.kind === "left") {
    const { why, warning } = placement;
    return { outcome: why, body: allowed(uid, warning === undefined ? {} : { warnings: [warning] }) };
  }
  if (placement.patch.length === 0) return { outcome: "placed", body: allowed(uid) };
  const patch = Buffer.from(JSON.stringify(placement.patch)).toString("base64");
  return { outcome: "placed", body: allowed(uid, { patchType: "JSONPatch", patch }) };
}

function allowed(uid: string, more: object = {}): object {
  return { apiVersion: "admission.k8s.io/v1", kind: "AdmissionReview", response: { uid, allowed: true, ...more } };
}

/** Undefined for what is no question. */
function requestOf(review: unknown): ReviewRequest | undefined {
  const { request } = (review ?? {}) as { request?: Partial<ReviewRequest> | null };
  return typeof request?.uid === "string" && request.uid !== "" ? (request as ReviewRequest) : undefined;
}

/** The API server has checked it: what is looked at is there in its own form. */
function isPod(object: Pod | null | undefined): object is Pod {
  return typeof object === "object" && object !== null && typeof object.spec === "object";
}
