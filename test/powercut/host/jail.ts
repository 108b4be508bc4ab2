/**
 * Runs on the emulated host: programs in the jails that VMs have (engines/vm/jail.ts), in control groups v2. Prints one
 * object. Argument: folder with the launcher.
 */
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Cgroup } from "../../../providers/local/bundle/cgroup.ts";
import { Jail } from "../../../providers/local/engines/vm/jail.ts";
import { killVm, startJailed } from "../../../providers/local/engines/vm/qemu.ts";
import { VmUsers } from "../../../providers/local/engines/vm/users.ts";
import { vmGroups } from "../../../providers/local/engines/vm/vm-groups.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

const [guestDir = ""] = process.argv.slice(2);
/** Linked with nothing: it runs in an empty root. */
const program = realpathSync("/usr/bin/busybox");
const path = "/vmlet-jailed";
const dir = mkdtempSync(join(tmpdir(), "jail-"));
const users = new VmUsers({ dir: join(dir, "users") });
const groups = vmGroups(path, silentLogger);
const read = (file: string) => readFileSync(file, "utf8").trim();

async function start(name: string, args: readonly string[]) {
  const folder = join(dir, name);
  mkdirSync(join(folder, "root"), { recursive: true });
  writeFileSync(join(folder, "disk.img"), "");
  const jail = new Jail({
    guestDir,
    uid: await users.take(folder),
    root: join(folder, "root"),
    groups: await groups.make(name, { memoryMib: 32, cpus: 1 }),
    fileBytes: 1 << 20,
  });
  jail.see(program);
  jail.give("write", join(folder, "disk.img"));
  const started = await startJailed(jail, program, args, join(folder, "log"), AbortSignal.timeout(60_000));
  return { ...started, log: join(folder, "log") };
}

// A jailed program keeps nobody waiting: this keeps the process there until all is over.
const alive = createServer().listen(join(dir, "alive"));
const groupDir = (name: string) => `/sys/fs/cgroup${path}/${name}`;
const limits = (name: string) =>
  Object.fromEntries(
    ["memory.max", "cpu.max", "cpu.weight", "pids.max"].map((file) => [file, read(join(groupDir(name), file))]),
  );

/** The end of its output, and how it ended. */
async function outcome({ ended, log }: Awaited<ReturnType<typeof start>>): Promise<string> {
  const reason = await ended.catch((thrown: unknown) => String(thrown));
  return `${readFileSync(log, "utf8")} ${reason.split("\n")[0]}`;
}

const neighbour = await start("neighbour", ["sleep", "1000"]);
const status = read(`/proc/${neighbour.process.pid}/status`);
const found = {
  groupVersion: read("/sys/fs/cgroup/cgroup.controllers").split(" "),
  limits: limits("neighbour"),
  group: read(`/proc/${neighbour.process.pid}/cgroup`),
  uid: /^Uid:\t(\d+)/m.exec(status)?.[1],
  capabilities: /^CapEff:\t(\w+)/m.exec(status)?.[1],
  inner: /^NSpid:\t\d+\t(\d+)$/m.exec(status)?.[1],
};
const hog = await start("hog", ["sh", "-c", "x=xxxxxxxx; while :; do x=$x$x; done"]);
console.error("the hog runs");
const hogged = await outcome(hog);
// It ends with its first failure to begin another, and all that it has begun ends with it.
const bomb = await start("bomb", ["sh", "-c", `while :; do ${program} sleep 1000 & done`]);
console.error("the bomb runs");
await outcome(bomb);
console.error("the bomb is over");
const refusedForks = Number(/^max (\d+)$/m.exec(read(join(groupDir("bomb"), "pids.events")))?.[1]);
const isNeighbourWell = read(`/proc/${neighbour.process.pid}/stat`) !== "";
const outOfMemory = { hog: await groups.wasOutOfMemory("hog"), neighbour: await groups.wasOutOfMemory("neighbour") };
await killVm(neighbour.process, systemClock);
await new Cgroup(path).kill(systemClock);
for (const name of ["neighbour", "hog", "bomb"]) await groups.remove(name);
const left = await new Cgroup(path).remove().then(
  () => "nothing",
  (thrown: unknown) => String(thrown),
);
console.log(JSON.stringify({ ...found, hogged, refusedForks, isNeighbourWell, outOfMemory, left }));
alive.close();
