/**
 * What the API server's refusal of a call about a pod means: the table from status code to reaction, as a pure
 * function. Whatever the reconciler asks or writes, a failure goes through here.
 *
 * | Status                | read    | status of the pod                     | removal          |
 * | --------------------- | ------- | ------------------------------------- | ---------------- |
 * | 404 of that very pod  | go on   | go on                                 | go on            |
 * | any other 404         | retry   | retry                                 | retry            |
 * | 409                   | retry   | read                                  | read             |
 * | 400, 413, 422         | retry   | without what it refuses, tell         | retry, tell      |
 * | 403                   | list *  | without the annotations, retry, tell  | retry, tell      |
 * | 401, 408, 425, 429    | retry   | retry                                 | retry            |
 * | any other 4xx         | retry   | retry, tell                           | retry, tell      |
 * | 5xx, no reply, others | retry   | retry                                 | retry            |
 *
 * `*` the Node authorizer forbids the read of a pod that it does not know to be on this node; a list is always allowed.
 */
import { isKubeApiError, saysNotFound } from "../kube/errors.ts";

export type PodCall = "read" | "status" | "remove";

export interface Reaction {
  /**
   * - `retry`    nothing follows from it: the same again, later and later
   * - `go_on`    the pod is gone: there is nothing more to be done to it
   * - `read`     it was decided on an old copy: read the pod again and decide again
   * - `list`     look for the pod in a list
   * - `without`  as it is, this is never taken: send it without what is refused (see `refusedFields`)
   */
  next: "retry" | "go_on" | "read" | "list" | "without";
  /** A person has to do something about it, so the pod gets an event. */
  tell: boolean;
}

/** Refused for good, because of what was sent. */
const CONTENT = [400, 413, 422];
/** Of the 4xx, those that heal by themselves. */
const PASSING = [401, 408, 425, 429];

/** @param name the pod's */
export function reactionTo(call: PodCall, thrown: unknown, name: string): Reaction {
  const quietly = (next: Reaction["next"]): Reaction => ({ next, tell: false });
  if (!isKubeApiError(thrown)) return quietly("retry");
  const { status } = thrown;
  if (status === 404) return quietly(saysNotFound(thrown, { resource: "pods", name }) ? "go_on" : "retry");
  if (status < 400 || status >= 500 || PASSING.includes(status)) return quietly("retry");
  if (call === "read") return quietly(status === 403 ? "list" : "retry");
  if (status === 409) return quietly("read");
  const isAboutContent = call === "status" && (CONTENT.includes(status) || status === 403);
  return { next: isAboutContent ? "without" : "retry", tell: true };
}

/** Stands for the metadata that is written along with a status. */
export const ANNOTATIONS = "annotations";
/** Without these, users and controllers would wait for the pod for ever. */
const ESSENTIAL = ["phase", "conditions"];

/**
 * Which of the fields of a status that was refused are to be left out from now on: those that the API server names; if
 * it names none, all but phase and conditions; at last those as well. Empty when leaving something out will not help.
 *
 * @param sent names of the status' fields that were sent, and `ANNOTATIONS`
 */
export function refusedFields(thrown: unknown, sent: readonly string[]): string[] {
  if (!isKubeApiError(thrown)) return [];
  // An agent that may not write the status at all may not write it with fewer fields either; annotations are a right of
  // their own.
  if (!CONTENT.includes(thrown.status)) return sent.filter((field) => field === ANNOTATIONS);
  const causes = (thrown.details?.causes ?? []).map(({ field }) => fieldOf(field ?? ""));
  const named = sent.filter((field) => causes.includes(field));
  if (named.length > 0) return named;
  const inessential = sent.filter((field) => !ESSENTIAL.includes(field));
  return inessential.length > 0 ? inessential : [...sent];
}

/** `status.podIPs[1].ip` is about `podIPs`. */
function fieldOf(path: string): string {
  const [root = "", child = ""] = path.split(/[.[]/);
  if (root === "status") return child;
  return root === "metadata" && child === ANNOTATIONS ? ANNOTATIONS : "";
}
