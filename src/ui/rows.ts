/**
 * Nodes and pods as people look at them, for the page and for the tables of the command line: a line each, of bounded
 * size, whatever a tenant writes into an object. Pure.
 */
import { podCounts } from "../kube/pod-summary.ts";
import { allContainersOf, allContainerStatusesOf, isDeleting } from "../kube/pod.ts";
import type { ContainerStatus, Node, Pod } from "../kube/wire.ts";
import { HOST, MACHINE } from "../pods/annotations.ts";
import { ANNOTATION_INSTANCE_TYPE } from "../podspec/admission/instance-types.ts";
import { podRequests } from "../resources/pod-resources.ts";
import { Quantity } from "../resources/quantity.ts";

/** Longest text of a row, in characters, and most containers that are told of. */
const MAX_TEXT = 400;
const MAX_CONTAINERS = 64;
const PHASES = ["Pending", "Running", "Succeeded", "Failed"] as const;
/** How an agent names the Node that it registered (node/node-status.ts). */
const PROVIDER_ID = "vmlet://";
/** A Node's annotation: what a CPU and a GiB of memory cost for an hour, such as `0.031 0.004 USD`. */
const PRICE = "vmlet.dev/price";

/** cpu in thousandths, memory in bytes. */
interface Size {
  cpuMillis: number;
  memoryBytes: number;
}

export interface NodeRow {
  uid: string;
  name: string;
  state: "Ready" | "NotReady" | "Unknown";
  cordoned: boolean;
  /** What the agent says of the machines' backend. */
  backend: { state: "answers" | "doubtful" | "fails" | "unknown"; message: string };
  /** What machines are made of, such as `vmlet-local://0.1.0`. */
  runtime: string;
  version: string;
  capacity: Size & { pods: number };
  taints: string[];
  price: Price | undefined;
  /** Epoch milliseconds, as all times here. */
  created: number;
}

/** Per hour. */
interface Price {
  cpu: number;
  memoryGiB: number;
  currency: string;
}

interface ContainerRow {
  name: string;
  state: "running" | "waiting" | "ended";
  ready: boolean;
  restarts: number;
  image: string;
  /** Why it waits or ended. */
  reason: string;
}

export interface PodRow {
  uid: string;
  namespace: string;
  name: string;
  node: string;
  /** The backend's id of the machine, and the host that carries it; empty while there is none. */
  machine: string;
  host: string;
  phase: (typeof PHASES)[number] | "Unknown";
  /** STATUS and READY of `kubectl get pods`. */
  status: string;
  ready: string;
  restarts: number;
  /** What the pod asks for. */
  size: Size;
  instanceType: string;
  ip: string;
  /** Why it is where it is, in the words of the one who said so last. */
  message: string;
  containers: ContainerRow[];
  created: number;
  /** When its first container ran, and its last one ended; 0 while none did. */
  started: number;
  ended: number;
}

/** The Node is a vmlet agent's. */
export function isVmletNode({ spec, status }: Node): boolean {
  return (
    spec?.providerID?.startsWith(PROVIDER_ID) === true || status?.nodeInfo?.kubeletVersion?.includes("+vmlet.") === true
  );
}

export function nodeRow(node: Node): NodeRow {
  const { metadata, spec, status } = node;
  const condition = (wanted: string) => status?.conditions?.find(({ type }) => type === wanted);
  return {
    uid: metadata?.uid ?? "",
    name: metadata?.name ?? "",
    state: STATES[condition("Ready")?.status ?? ""] ?? "Unknown",
    cordoned: spec?.unschedulable === true,
    backend: backendOf(condition("BackendReady")),
    runtime: cut(status?.nodeInfo?.containerRuntimeVersion),
    version: cut(status?.nodeInfo?.kubeletVersion),
    capacity: capacityOf(node),
    taints: taintsOf(node),
    price: priceOf(metadata?.annotations?.[PRICE]),
    created: ms(metadata?.creationTimestamp),
  };
}

const STATES: Readonly<Record<string, NodeRow["state"]>> = { True: "Ready", False: "NotReady" };

function capacityOf({ status }: Node): NodeRow["capacity"] {
  const { cpu = "0", memory = "0", pods = "0" } = status?.allocatable ?? status?.capacity ?? {};
  return { cpuMillis: millis(cpu), memoryBytes: units(memory), pods: units(pods) };
}

function taintsOf({ spec }: Node): string[] {
  return (spec?.taints ?? [])
    .slice(0, MAX_CONTAINERS)
    .map(({ key, value, effect }) => cut(`${key}${value === undefined ? "" : `=${value}`}:${effect}`));
}

function backendOf(condition: { status: string; reason?: string; message?: string } | undefined): NodeRow["backend"] {
  const message = cut(condition?.message);
  if (condition?.status === "True") return { state: "answers", message };
  if (condition?.status !== "False") return { state: "unknown", message };
  return { state: condition.reason === "MachinesMissing" ? "doubtful" : "fails", message };
}

function priceOf(text: string | undefined): Price | undefined {
  const [, cpu, memoryGiB, currency] =
    /^(\d{1,9}(?:\.\d{1,9})?) (\d{1,9}(?:\.\d{1,9})?) ([A-Z]{3})$/.exec(text ?? "") ?? [];
  if (currency === undefined) return undefined;
  return { cpu: Number(cpu), memoryGiB: Number(memoryGiB), currency };
}

export function podRow(pod: Pod): PodRow {
  const { metadata, spec, status } = pod;
  const { ready, status: told, restarts } = podCounts(pod);
  const statuses = allContainerStatusesOf(pod);
  const annotations = metadata?.annotations ?? {};
  return {
    uid: metadata?.uid ?? "",
    namespace: metadata?.namespace ?? "",
    name: metadata?.name ?? "",
    node: spec?.nodeName ?? "",
    machine: cut(annotations[MACHINE]),
    host: cut(annotations[HOST]),
    phase: PHASES.find((phase) => phase === (status?.phase ?? "Pending")) ?? "Unknown",
    status: cut(told),
    ready,
    restarts,
    size: sizeOf(pod),
    instanceType: cut(annotations[ANNOTATION_INSTANCE_TYPE]),
    ip: status?.podIP ?? "",
    message: cut(messageOf(pod)),
    containers: containerRows(pod),
    created: ms(metadata?.creationTimestamp),
    started: statuses.flatMap(startsOf).toSorted((a, b) => a - b)[0] ?? 0,
    ended: isOver(pod) ? Math.max(0, ...statuses.map(({ state }) => ms(state?.terminated?.finishedAt))) : 0,
  };
}

const isOver = ({ status }: Pod): boolean => status?.phase === "Succeeded" || status?.phase === "Failed";

/** A pod that asks for what is no amount is no reason to show none. */
function sizeOf({ spec }: Pod): Size {
  try {
    const requests = podRequests((spec ?? {}) as Parameters<typeof podRequests>[0]);
    return {
      cpuMillis: Number((requests.get("cpu") ?? Quantity.zero).nano / 1_000_000n),
      memoryBytes: Number((requests.get("memory") ?? Quantity.zero).nano / 1_000_000_000n),
    };
  } catch {
    return { cpuMillis: 0, memoryBytes: 0 };
  }
}

function startsOf({ state, lastState }: ContainerStatus): number[] {
  return [state?.running?.startedAt, state?.terminated?.startedAt, lastState?.terminated?.startedAt]
    .map(ms)
    .filter((start) => start > 0);
}

function messageOf(pod: Pod): string {
  const { status } = pod;
  if (isDeleting(pod)) return `deleted, with ${pod.metadata?.deletionGracePeriodSeconds ?? 0} s of grace`;
  if (status?.message) return status.message;
  const waiting = allContainerStatusesOf(pod).find(({ state }) => state?.waiting?.message)?.state?.waiting?.message;
  if (waiting !== undefined) return waiting;
  return status?.conditions?.find(({ status: is, message }) => is === "False" && message)?.message ?? "";
}

function containerRows(pod: Pod): ContainerRow[] {
  const statuses = new Map(allContainerStatusesOf(pod).map((each) => [each.name, each]));
  return allContainersOf(pod)
    .slice(0, MAX_CONTAINERS)
    .map(({ name, image = "" }): ContainerRow => {
      const { state, ready = false, restartCount = 0 } = statuses.get(name) ?? {};
      const base = { name, ready, restarts: restartCount, image: cut(image) };
      if (state?.running) return { ...base, state: "running", reason: "" };
      const { terminated } = state ?? {};
      if (terminated)
        return { ...base, state: "ended", reason: cut(`${terminated.reason ?? ""} (${terminated.exitCode})`) };
      return { ...base, state: "waiting", reason: cut(state?.waiting?.reason) };
    });
}

const cut = (text: string | undefined): string => (text ?? "").slice(0, MAX_TEXT);
const ms = (time: string | undefined): number => Date.parse(time ?? "") || 0;
const amount = (text: string): bigint => Quantity.tryParse(text)?.nano ?? 0n;
const millis = (text: string): number => Number(amount(text) / 1_000_000n);
const units = (text: string): number => Number(amount(text) / 1_000_000_000n);
