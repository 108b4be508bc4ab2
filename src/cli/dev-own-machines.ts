/** Machines of this host: a backend that `vmlet dev` starts for itself, and the engine that it has. */
import { randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { checkSecrets, startBackend } from "../../providers/local/backend.ts";
import { parseBackendConfig } from "../../providers/local/config.ts";
import { createEngine } from "../../providers/local/engines/index.ts";
import { registryFault } from "../../providers/local/images/reachable.ts";
import { checkHost } from "../../providers/local/provider.ts";
import type { PublishNames } from "../devcluster/index.ts";
import { silentLogger, type Logger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { chooseEngine, type EngineName, fallBack } from "./dev-engine.ts";
import { type DevMachines, machinesOf } from "./dev-machines.ts";
import { VERSION } from "./version.ts";

type HostEngine = Exclude<EngineName, "memory">;

interface OwnMachinesOptions {
  stateDir: string;
  /** Stand-ins for well-known images, where machines have none. */
  standIns: boolean;
  /** Leave nothing behind. */
  isForgotten: boolean;
  logger: Logger;
}

const KINDS: Record<HostEngine, string> = {
  process: "plain processes of this machine, without isolation",
  oci: "containers",
  cri: "containers of a containerd of its own",
  vm: "QEMU microVMs",
};
/** Longer than containerd takes on a busy host, and not so long that somebody gives up. */
const START_MS = 15_000;
const REGISTRY_MS = 3_000;
/** Of the registry where most images are. */
const ANY_IMAGE = "busybox";

/** Asks this host. What engine `memory` is for, the caller has to make. */
export async function chosenEngine(stateDir: string): Promise<ReturnType<typeof chooseEngine>> {
  return await chooseEngine({
    async lacks(type) {
      const engine = createEngine(configOf(type), {
        stateDir: folderOf(stateDir, type),
        clock: systemClock,
        logger: silentLogger,
      });
      const problems = [...checkHost(), ...(await engine.check())];
      await engine.close();
      return problems.filter(({ fatal }) => fatal).map(({ problem }) => problem);
    },
    imageFault: () => registryFault(ANY_IMAGE, AbortSignal.timeout(REGISTRY_MS)),
  });
}

/** With plain processes where what was chosen does not start, or takes too long. */
export async function chosenMachines(
  { engine, said }: { engine: HostEngine; said: string },
  options: OwnMachinesOptions,
): Promise<DevMachines> {
  const starting = ownMachines(engine, options);
  if (engine === "process") return { ...(await starting), said };
  const { promise: tooLong, reject } = Promise.withResolvers<never>();
  const cancel = systemClock.after(START_MS, () => reject(new Error(`it is not up after ${START_MS / 1000} s`)));
  try {
    return { ...(await Promise.race([starting, tooLong])), said };
  } catch (thrown) {
    const late = starting.then(
      (machines) => machines.close(),
      () => {},
    );
    const instead = await ownMachines("process", options);
    const close = async () => {
      await Promise.all([instead.close(), late]);
    };
    return { ...instead, said: fallBack(engine, thrown).said, close };
  } finally {
    cancel();
  }
}

export async function ownMachines(
  engine: HostEngine,
  { stateDir, standIns, isForgotten, logger }: OwnMachinesOptions,
): Promise<DevMachines> {
  const dir = folderOf(stateDir, engine);
  // Made for each run: other programs of this host are kept out by it.
  const tokenFile = `${dir}-token`;
  const hostsDir = `${dir}-hosts`;
  await writeFile(tokenFile, randomBytes(32).toString("hex"), { mode: 0o600 });
  const clean = async () => {
    await rm(tokenFile, { force: true });
    if (isForgotten) for (const folder of [dir, hostsDir]) await rm(folder, { recursive: true, force: true });
  };
  const configWith = (more: object) =>
    parseBackendConfig(
      JSON.stringify({
        apiVersion: "vmlet.dev/v1",
        kind: "BackendConfig",
        stateDir: dir,
        listen: { address: "127.0.0.1", port: 0 },
        tokenFile,
        // Only a small cluster of our own says what its Services are called.
        engine: configOf(engine, { standIns, ...(isForgotten && { hostsDir }) }),
        ...more,
      }),
      "(vmlet dev)",
    );
  const inMemory = configWith({});
  const probe = createEngine(inMemory.engine, { stateDir: dir, clock: systemClock, logger: silentLogger });
  const config = checkSecrets(inMemory, probe).length === 0 ? inMemory : configWith({ secrets: { medium: "disk" } });
  await probe.close();
  try {
    const backend = await startBackend(config, {
      clock: systemClock,
      logger,
      version: VERSION,
      isForDevelopment: true,
    });
    return {
      ...machinesOf(backend.provider, {}),
      engine,
      ...(engine === "process" && { publishNames: writeHosts(hostsDir) }),
      provider: { type: "http-vm", url: backend.url, tokenFile },
      kind: KINDS[engine],
      async close() {
        await backend.close();
        await clean();
      },
    };
  } catch (thrown) {
    await rm(tokenFile, { force: true });
    throw thrown;
  }
}

/** No engine knows what to do with the machines of another. */
function folderOf(stateDir: string, engine: HostEngine): string {
  return join(stateDir, engine === "process" ? "backend" : `backend-${engine}`);
}

type EngineConfig = Parameters<typeof createEngine>[0];

function configOf(type: HostEngine, ofProcesses: { standIns?: boolean; hostsDir?: string } = {}): EngineConfig {
  if (type === "process") return { type, images: {}, addressPool: "127.64.0.0/10", ...ofProcesses };
  return { type, ...(type === "vm" && { warmPool: 1 }) };
}

/** What a hosts file of each namespace has beside this host's own. */
function writeHosts(dir: string): PublishNames {
  return (hosts) => {
    mkdirSync(dir, { recursive: true });
    const own = readFileSync("/etc/hosts", "utf8").trimEnd();
    // In place: machines have the very file.
    for (const [namespace, lines] of hosts) writeFileSync(join(dir, namespace), [own, ...lines, ""].join("\n"));
  };
}
