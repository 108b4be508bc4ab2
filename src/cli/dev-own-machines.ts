/** Machines of this host: a backend that `vmlet dev` starts for itself, and the engine that it has. */
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { rm, writeFile } from "node:fs/promises";
import { isIP } from "node:net";
import { join } from "node:path";
import { checkSecrets, type RunningBackend, startBackend } from "../../providers/local/backend.ts";
import { type BackendConfig, parseBackendConfig } from "../../providers/local/config.ts";
import { hostResolvConf } from "../../providers/local/bundle/host-resolv.ts";
import { createEngine } from "../../providers/local/engines/index.ts";
import { registryFault } from "../../providers/local/images/reachable.ts";
import { checkHost } from "../../providers/local/check-host.ts";
import type { PublishNames } from "../devcluster/index.ts";
import { silentLogger, type Logger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { chooseEngine, type EngineName, fallBack } from "./dev-engine.ts";
import { type DevMachines, machinesOf } from "./dev-machines.ts";
import { removeVolumes } from "./dev-volumes.ts";
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
/** What a node has that says nothing of itself, as one of plain processes does. */
const ROOMY = { cpu: "16", memory: "64Gi", pods: "110" };
/** 10.99.0.0/16, as a backend without configuration has, and those below. */
const FIRST_NETWORK = 99;
const NETWORKS = 4;
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
  const settings = {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir: dir,
    listen: { address: "127.0.0.1", port: 0 },
    tokenFile,
    // Only a small cluster of our own says what its Services are called.
    engine: configOf(engine, { standIns, ...(isForgotten && { hostsDir }) }),
  };
  const isNew = !existsSync(dir);
  try {
    const backend = await startSomewhere(settings, logger);
    const machines = machinesOf(backend.provider, {});
    return {
      ...machines,
      engine,
      volumes: backend.provider,
      // On a laptop the examples would wait for room that they do not use.
      ...(isForgotten && ["oci", "cri"].includes(engine) && { capacity: ROOMY }),
      ...(engine === "process" ? { publishNames: writeHosts(hostsDir) } : { nameservers: await hostNameservers() }),
      provider: { type: "http-vm", url: backend.url, tokenFile },
      kind: KINDS[engine],
      async remove() {
        await machines.remove();
        await removeVolumes(backend.provider);
      },
      async close() {
        await backend.close();
        await clean();
      },
    };
  } catch (thrown) {
    // What an earlier run has left there may run still.
    await (isNew ? clean() : rm(tokenFile, { force: true }));
    throw thrown;
  }
}

/** On the first network that nobody has: two such clusters, or another backend, may be on one host. */
async function startSomewhere(
  settings: { stateDir: string; engine: EngineConfig },
  logger: Logger,
): Promise<RunningBackend> {
  const { engine } = settings;
  for (let index = 0; ; index++) {
    const network = { bridge: `vmlet${index}`, cidr: `10.${FIRST_NETWORK - index}.0.0/16` };
    const config = await withSecrets({
      ...settings,
      engine: engine.type === "process" ? engine : { ...engine, network },
    });
    try {
      const options = { clock: systemClock, logger, version: VERSION, isForDevelopment: true };
      return await startBackend(config, options);
    } catch (thrown) {
      const isTaken = /^network\.(?:bridge|cidr) /.test(toError(thrown).message);
      if (!isTaken || index + 1 >= NETWORKS) throw thrown;
    }
  }
}

/** Secrets are kept in memory where this user may. */
async function withSecrets(settings: { stateDir: string; engine: EngineConfig }): Promise<BackendConfig> {
  const parsed = (more: object) => parseBackendConfig(JSON.stringify({ ...settings, ...more }), "(vmlet dev)");
  const inMemory = parsed({});
  const probe = createEngine(inMemory.engine, {
    stateDir: settings.stateDir,
    clock: systemClock,
    logger: silentLogger,
  });
  const isInMemory = checkSecrets(inMemory, probe).length === 0;
  await probe.close();
  return isInMemory ? inMemory : parsed({ secrets: { medium: "disk" } });
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

async function hostNameservers(): Promise<string[]> {
  const lines = (await hostResolvConf()).split("\n").map((line) => line.trim().split(/\s+/));
  return lines.flatMap(([keyword, server = ""]) => (keyword === "nameserver" && isIP(server) !== 0 ? [server] : []));
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
