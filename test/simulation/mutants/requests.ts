/** Planted bugs around the decision: identity, preconditions, which answers are believed, what is rendered. */
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Renderer } from "../../../src/pods/reconciler-options.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { FileVersion, Machine } from "../../../src/provider/machine.ts";
import { replan, type Mutant } from "./mutant.ts";

const podPathOf = (path: string) => path.replace(/\/status$/, "");
/** As the API server itself says it. */
const notFound = (path: string) => {
  const name = podPathOf(path).split("/").at(-1)!;
  return new KubeApiError(`pods "${name}" not found`, {
    status: 404,
    reason: "NotFound",
    details: { name, kind: "pods" },
  });
};

export const REQUESTS: readonly Mutant[] = [
  {
    name: "a machine is known by namespace and name",
    rule: 1,
    caughtAs: "S2 one machine for two pods",
    machineId: (_uid, { namespace, name }) => `m-${namespace}.${name}`,
  },
  {
    name: "namespace and name are joined ambiguously",
    rule: 1,
    caughtAs: "S2 one machine for two pods",
    machineId: (_uid, { namespace, name }) => `m-${namespace}-${name}`,
  },
  {
    name: "the backend makes a machine for every create",
    rule: 1,
    caughtAs: "S1 two machines for one pod UID",
    world: { createNotIdempotent: true },
  },
  {
    name: "an unanswered read counts as absent, and creating is not idempotent",
    rule: 2,
    caughtAs: "S1 two machines for one pod UID",
    world: { createNotIdempotent: true },
    provider: (error, operation) =>
      operation === "be.get" && error.code === "unavailable" ? new ProviderError("not_found", "mutant") : error,
    plan: replan((action, desired, observed) =>
      desired.kind === "pod" &&
      observed.kind === "unknown" &&
      action.do === "wait" &&
      desired.pod.metadata?.deletionTimestamp === undefined
        ? { do: "create" }
        : action,
    ),
  },
  {
    name: "a proxy's 404 is believed to be the API server's",
    rule: 2,
    caughtAs: "S3 stopped or deleted the machine of a live pod",
    scenario: "proxies",
    kubeError: (error, { path }) => (error.status === 404 ? notFound(path) : error),
  },
  {
    name: "no read of the API server before the first create",
    rule: 3,
    caughtAs: "S4 machine born after its pod was finalised",
    kube: (request, cached) => {
      if (request.method !== "GET") return request;
      const pod = cached(podPathOf(request.path));
      return pod === undefined ? request : { reply: pod };
    },
    // A tombstone would hide it: the late create of a stale agent is refused by the backend.
    world: { noTombstones: true },
  },
  {
    name: "the list that stands in for a forbidden read is answered by a cache",
    rule: 3,
    caughtAs: "S4 machine born after its pod was finalised",
    kube: (request, cached) => {
      const name = /metadata\.name=([^,]+)/.exec(String(request.query?.["fieldSelector"]))?.[1];
      if (request.method !== "GET" || name === undefined) return request;
      const pod = cached(`${request.path}/${name}`);
      return { reply: { items: pod === undefined ? [] : [pod] } };
    },
    world: { noTombstones: true },
  },
  {
    name: "status is written without UID and resourceVersion",
    rule: 4,
    caughtAs: "S6",
    kube: (request) =>
      request.method === "PATCH" ? { ...request, body: { ...(request.body as object), metadata: {} } } : request,
  },
  {
    name: "status is written to whichever pod has the name",
    rule: 4,
    caughtAs: "S8 wrote the status of another node's pod",
    kube: (request) =>
      request.method === "PATCH" ? { ...request, body: { ...(request.body as object), metadata: {} } } : request,
  },
  {
    name: "the pod object is removed by its name alone",
    rule: 5,
    caughtAs: "S4 removed a pod that nobody deleted",
    kube: (request) => (request.method === "DELETE" ? { ...request, body: {} } : request),
  },
  {
    name: "a backend without tombstones",
    rule: 6,
    caughtAs: "S4 machine born after its pod was finalised",
    world: { noTombstones: true },
  },
  {
    name: "a cache says whether a stranger's machine has a pod",
    rule: 7,
    caughtAs: "S3 stopped or deleted the machine of a live pod",
    kube: (request, cached) => {
      if (request.method !== "GET") return request;
      const pod = cached(podPathOf(request.path));
      if (pod === undefined) throw notFound(request.path);
      return { reply: pod };
    },
  },
  {
    name: "a read that the Node authorizer forbids counts as the pod's absence",
    rule: 7,
    caughtAs: "L1 live pod has no machine",
    kubeError: (error, { method, path }) => (method === "GET" && error.status === 403 ? notFound(path) : error),
  },
  {
    name: "one machine that makes no sense makes the whole list unknown",
    rule: 11,
    caughtAs: "L1 live pod has no machine",
    scenario: "nonsense",
    machineList: ({ unknown = [] }) => {
      if (unknown.length > 0) throw new ProviderError("unavailable", "invalid reply");
    },
  },
  {
    name: "a machine that makes no sense counts as absent",
    rule: 11,
    caughtAs: "S6 terminal phase while the machine runs",
    scenario: "nonsense",
    machineList: (list) => {
      delete list.unknown;
    },
    provider: (error, operation) =>
      operation === "be.get" && error.unknownMachine !== undefined ? new ProviderError("not_found", "mutant") : error,
  },
  {
    name: "a status that is refused for good is sent again as it is",
    rule: 4,
    caughtAs: "L3 pod stuck in deletion",
    scenario: "refusals",
    kubeError: (error, { method }) =>
      method === "PATCH" && [413, 422].includes(error.status)
        ? new KubeApiError("mutant", { status: 503, reason: "ServiceUnavailable" })
        : error,
  },
  {
    name: "the sweep takes other nodes' machines",
    rule: 7,
    caughtAs: "S8 touched another node's machine",
    seesForeign: true,
  },
  {
    name: "status is written with the UID only, by two agents",
    rule: 10,
    caughtAs: "S6",
    kube: (request) => {
      if (request.method !== "PATCH") return request;
      const body = request.body as { metadata: { uid: string } };
      return { ...request, body: { ...body, metadata: { uid: body.metadata.uid } } };
    },
  },
  {
    name: "an agent that has lost its lead goes on",
    rule: 10,
    caughtAs: "S14",
    scenario: "leadership",
    ignoresLead: true,
  },
  {
    name: "what changed while a machine was made counts as applied",
    rule: 13,
    caughtAs: "L9 files of a machine are out of date",
    scenario: "updates",
    renderer: (real) => ({
      ...delegate(real),
      render: async (pod, signal) => {
        const rendered = await real.render(pod, signal);
        if (rendered.kind !== "ready") return rendered;
        const asRendered = { file_versions: versionsIn(rendered.spec), containers: [] } as unknown as Machine;
        return {
          ...rendered,
          get version() {
            return real.version(pod, asRendered);
          },
        };
      },
    }),
  },
  {
    name: "the files that a machine says it has are not looked at",
    rule: 13,
    caughtAs: "L9 files of a machine are out of date",
    scenario: "updates",
    renderer: (real) => ({
      ...delegate(real),
      version: (pod, { file_versions: _unseen, ...machine }) => real.version(pod, machine),
    }),
  },
];

function delegate(real: Renderer): Renderer {
  return {
    render: (pod: Pod, signal) => real.render(pod, signal),
    version: (pod, machine) => real.version(pod, machine),
    diff: (pod, machine, signal) => real.diff(pod, machine, signal),
    release: (uid) => real.release?.(uid),
  };
}

function versionsIn({ volumes }: { volumes?: { name: string; type: string; version?: string }[] }): FileVersion[] {
  return (volumes ?? []).flatMap(({ name, version }) => (version === undefined ? [] : [{ volume: name, version }]));
}
