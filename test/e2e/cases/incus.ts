/** The environment of the cases with instances of a real Incus as machines, on the real control plane. */
import { IncusCloud } from "../../../providers/cloud/incus/cloud.ts";
import { CloudProvider } from "../../../providers/cloud/index.ts";
import { guestConfigOf, missingForIncus, startIncus, type TestIncus } from "../../support/incus.ts";
import { relayTo } from "../../support/relay.ts";
import { startRegistry } from "../../support/registry.ts";
import type { Json } from "../harness/client.ts";
import { startCluster } from "../harness/cluster.ts";
import type { CaseEnvironment, Machines } from "./environment.ts";
import { recordHistory } from "./history.ts";
import { startImpersonating } from "./start.ts";
import { useImage } from "./workload.ts";

const SCOPE = "cases";
const LOOK_MS = 1_000;
const SIZE = { cpu: "2", memory: "2Gi" } as const;

/** @throws Error when this host lacks something for it */
export async function startIncusCases(): Promise<CaseEnvironment> {
  const missing = await missingForIncus();
  if (missing.length > 0) throw new Error(`no Incus can be had here: ${missing.join(", ")}`);
  await using begun = new AsyncDisposableStack();
  const registry = await startRegistry();
  begun.defer(() => registry.stop());
  const port = Number(registry.host.split(":")[1]);
  const cluster = await startCluster();
  begun.defer(() => cluster.stop());
  const incus = await startIncus(cluster.sandbox, { guestConfig: (address) => guestConfigOf(`${address}:${port}`) });
  begun.defer(() => incus.stop());
  begun.use(await relayTo(incus.address, port));
  await useImage(registry, `${incus.address}:${port}`);
  const nodeName = "incus";
  const instanceTypes = [{ name: "only", ...SIZE, zone: "one" }];
  const provider = { type: "cloud", cloud: incus.cloud, scope: SCOPE, instanceTypes };
  const agent = await startImpersonating({ cluster, provider, nodeName });
  begun.defer(() => agent.stop());
  const backend = machinesOf(incus, begun);
  const history = await recordHistory({ client: cluster.admin, machines: backend.machines });
  begun.defer(() => history.stop());
  const all = begun.move();
  return {
    ...{ client: cluster.admin, kubeconfig: cluster.adminKubeconfig, nodeName, dir: cluster.sandbox.dir },
    // VMs that all are containers of one small host.
    patience: 4,
    ...{ agent, backend, history, restartApiServer: () => cluster.restartApiServer() },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

/** As another agent of the scope sees them, which makes none. */
function machinesOf(incus: TestIncus, begun: AsyncDisposableStack): Machines {
  const types = [{ name: "only", resources: { cpu_millis: 2000, memory_bytes: 2 ** 31 }, zone: "one" }];
  const provider = new CloudProvider({ cloud: new IncusCloud(incus.cloud), scope: SCOPE, types });
  begun.defer(() => provider.close());
  const options = () => ({ signal: AbortSignal.timeout(60_000) });
  const list = async () => {
    const { items } = await provider.getPods({ labels: {}, ...options() });
    return items.filter(({ state }) => state !== "deleted");
  };
  let last: { readonly at: number; readonly listing: Promise<Json[]> } | undefined;
  return {
    // Incus takes a tenth of a second for it, and who watches asks several times a second.
    machines() {
      const at = performance.now();
      if (last === undefined || at - last.at > LOOK_MS) last = { at, listing: list() };
      return last.listing;
    },
    removeMachine: (id) => provider.deletePod(id, { force: true, ...options() }),
    // The instances run on.
    restart: () => incus.restart("one"),
    async killRuntime() {
      for (const name of incus.instances()) {
        try {
          // Not what carries this very command.
          incus.incus("exec", "--project", "burst", name, "--", "pkill", "-KILL", "-f", "[g]uest-main");
        } catch {
          // It goes, or does not run yet.
        }
      }
    },
  };
}
