/** One machine: /v1/machines/ID. */
import {
  assertCapable,
  assertRuntimeHandler,
  assertTellable,
  type Machine,
  patchCapabilities,
  ProviderError,
  requiredCapabilities,
  specExcess,
} from "../../../../src/provider/kit/index.ts";
import { violation } from "../../../../src/provider/contract/document.ts";
import { Query, readJson, sendJson, sendNothing } from "../http.ts";
import { checkedId, lacks, type Exchange, type RouteContext } from "../router.ts";
import { machineJson } from "../telling.ts";

const machineId = ({ params }: Exchange): string => checkedId(params["id"], "MachineId", "id");

export async function putMachine({ provider, limits }: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = machineId(exchange);
  const spec = await readJson(exchange.request, "MachineSpec", limits.bodyBytes);
  if (exchange.audited !== undefined) exchange.audited.labels = spec.labels;
  assertTellable(specExcess(spec));
  const { capabilities, runtimeHandlers } = await provider.getInfo({ signal: exchange.workSignal });
  assertCapable(requiredCapabilities(spec), capabilities);
  assertRuntimeHandler(spec, runtimeHandlers);
  const machine = await provider.createPod(id, spec, { signal: exchange.workSignal });
  sendJson(exchange.response, 200, machineJson(machine));
}

export async function patchMachine({ provider, limits }: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = machineId(exchange);
  if (provider.updatePod === undefined) throw lacks("patch_files", "updatePod");
  const patch = await readJson(exchange.request, "MachinePatch", limits.bodyBytes);
  const { capabilities } = await provider.getInfo({ signal: exchange.workSignal });
  assertCapable(patchCapabilities(patch), capabilities);
  sendJson(exchange.response, 200, machineJson(await provider.updatePod(id, patch, { signal: exchange.workSignal })));
}

export async function deleteMachine({ provider }: RouteContext, exchange: Exchange): Promise<void> {
  const force = new Query(exchange.query, ["force"]).flag("force");
  const ifAbsent = exchange.request.headers["if-none-match"] === "*";
  await provider.deletePod(machineId(exchange), { signal: exchange.workSignal, force, ifAbsent });
  sendNothing(exchange.response);
}

export async function stopMachine({ provider, limits }: RouteContext, exchange: Exchange): Promise<void> {
  new Query(exchange.query, []);
  const id = machineId(exchange);
  const body = await readJson(exchange.request, "StopRequest", limits.bodyBytes);
  const machine = await provider.stopPod(id, { signal: exchange.workSignal, graceSeconds: body.grace_seconds });
  sendJson(exchange.response, 202, machine === undefined ? JSON.stringify({ id }) : machineJson(machine));
}

export async function getMachine(context: RouteContext, exchange: Exchange): Promise<void> {
  const asked = new Query(exchange.query, ["wait", "since_version", "timeout"]);
  const id = machineId(exchange);
  const states = asked.text("wait")?.split(",");
  for (const state of states ?? []) {
    const found = violation("request", "MachineState", state);
    if (found !== undefined) throw new ProviderError("invalid", `wait ${found.message}`, { field: "wait" });
  }
  const sinceVersion = asked.count("since_version");
  const timeoutMs = asked.timeoutMs(context.limits.longPollMs);
  const { signal } = exchange;
  let machine = await context.provider.getPod(id, { signal });
  const due = (seen: Machine): boolean =>
    (states === undefined && sinceVersion === undefined) ||
    states?.includes(seen.state) === true ||
    (sinceVersion !== undefined && seen.version > sinceVersion);
  if (!due(machine)) machine = await nextState(context, machine, due, timeoutMs, signal);
  sendJson(exchange.response, 200, machineJson(machine));
}

/** How often a provider without events is asked while a caller waits. */
const POLL_MS = 250;

async function nextState(
  { provider, clock }: RouteContext,
  machine: Machine,
  due: (machine: Machine) => boolean,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<Machine> {
  const expired = new AbortController();
  const cancel = clock.after(timeoutMs, () => expired.abort());
  const waiting = AbortSignal.any([signal, expired.signal]);
  let last = machine;
  try {
    const { capabilities } = await provider.getInfo({ signal });
    if (provider.watchPods === undefined || !capabilities.includes("events")) {
      while (!due(last)) {
        await clock.sleep(POLL_MS, waiting);
        last = await provider.getPod(machine.id, { signal });
      }
      return last;
    }
    // The list says from where to watch; what happened before it is in its items.
    const list = await provider.getPods({ signal, labels: machine.labels, includeDeleted: true });
    last = list.items.find((item) => item.id === machine.id) ?? last;
    if (due(last)) return last;
    for await (const event of provider.watchPods(list.revision, { signal: waiting, labels: machine.labels })) {
      if (event.machine?.id !== machine.id) continue;
      last = event.machine;
      if (due(last)) return last;
    }
    return last;
  } catch (thrown) {
    if (expired.signal.aborted && !signal.aborted) return last;
    throw thrown;
  } finally {
    cancel();
    expired.abort();
  }
}
