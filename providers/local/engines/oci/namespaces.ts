/**
 * The namespaces that a machine's containers join: each held by a file, so that nothing depends on the number of a
 * process.
 */
import { closeSync, openSync } from "node:fs";
import { mkdir, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ociConfig } from "../../bundle/bundle.ts";
import { seccompProfile } from "../../bundle/seccomp.ts";
import type { MachineHome } from "../../engine.ts";
import { findTool, run } from "../../host/command.ts";
import { isMissing } from "../../host/files.ts";
import { machineHash } from "../../host/machine-hash.ts";
import { bindDescriptor } from "../../host/mounts.ts";
import { isAlive, processStat } from "../../host/proc.ts";
import type { Attachment } from "../../network/network.ts";
import { cgroupVersion } from "../../bundle/cgroup.ts";
import type { OciContext } from "./context.ts";
import { pauseProgram } from "../../bundle/pause.ts";
import { mountMapped } from "../../bundle/mapped-mounts.ts";
import { readPid } from "./runtime.ts";
import { makeRoot, newNamespaces } from "./user-namespace.ts";

/** The first process of a shared process namespace. */
export interface PauseProcess {
  pid: number;
  startTime: string;
}

const PAUSE_PIDS = 1;

/**
 * Those of them that the machine has not from its host.
 * @param attachment absent: it is on the host's network, and has the host's name
 * @param hasUsers the machine has users of its own
 */
export function heldNamespaces(
  { dir, spec }: Pick<MachineHome, "dir" | "spec">,
  attachment: Attachment | undefined,
  hasUsers: boolean,
) {
  const held = (type: "user" | "ipc" | "uts") => ({ type, path: join(dir, "ns", type) });
  return [
    ...(hasUsers ? [held("user")] : []),
    ...(attachment === undefined ? [] : [{ type: "network" as const, path: attachment.netns! }, held("uts")]),
    ...(spec.host?.ipc === true ? [] : [held("ipc")]),
  ];
}

/** Whether a file is one that a namespace was bound to. @throws what the system says when that cannot be known */
export async function isNamespace(file: string): Promise<boolean> {
  try {
    const [held, parent] = await Promise.all([stat(file), stat(join(file, ".."))]);
    return held.dev !== parent.dev;
  } catch (thrown) {
    if (isMissing(thrown)) return false;
    throw thrown;
  }
}

/**
 * Makes the machine's network, unless it is on the host's, IPC and names, and holds them.
 * @param options.users what its root is on this host; absent: root
 */
export async function makeNamespaces(
  { network }: OciContext,
  { id, dir, spec }: MachineHome,
  { hostname, users, signal }: { hostname: string; users: number | undefined; signal: AbortSignal },
): Promise<Attachment | undefined> {
  const [ipc, uts] = [join(dir, "ns/ipc"), join(dir, "ns/uts")];
  const setName = ["sh", "-c", 'printf %s "$1" >/proc/sys/kernel/hostname', "sh", hostname];
  if (users === undefined) {
    const attachment = spec.host?.network === true ? undefined : await network.attachNamespace(id);
    signal.throwIfAborted();
    for (const file of [ipc, uts]) await writeFile(file, "");
    await run(findTool("unshare")!, [`--ipc=${ipc}`, `--uts=${uts}`, ...setName], { signal });
    return attachment;
  }
  const namespaces = await newNamespaces(users, signal);
  try {
    const attachment = await network.attachNamespace(id, namespaces.pid);
    signal.throwIfAborted();
    await namespaces.hold("user", join(dir, "ns/user"));
    await namespaces.hold("ipc", ipc);
    await namespaces.hold("uts", uts);
    await run(findTool("nsenter")!, [`--uts=${uts}`, ...setName], { signal });
    return attachment;
  } finally {
    namespaces.end();
  }
}

/** Starts the first process of a shared process namespace, and holds that. */
export async function startPause(
  context: OciContext,
  home: MachineHome,
  { attachment, users }: { attachment: Attachment | undefined; users?: number | undefined },
): Promise<PauseProcess> {
  const bundle = join(home.dir, "pause");
  const rootfs = users === undefined ? join(bundle, "rootfs") : await makeRoot(home.dir, "pause");
  await mkdir(join(bundle, "rootfs"), { recursive: true });
  for (const folder of ["proc", "dev", "sys"]) await mkdir(join(bundle, "rootfs", folder), { recursive: true });
  await writeFile(join(bundle, "rootfs/pause"), pauseProgram(process.arch)!, { mode: 0o755 });
  if (users !== undefined)
    await mountMapped(context.mapper, {
      source: join(bundle, "rootfs"),
      target: rootfs,
      users: join(home.dir, "ns/user"),
    });
  const config = ociConfig({
    spec: {
      name: "pause",
      image: "",
      command: ["/pause"],
      security: { read_only_root: true, capabilities_drop: ["ALL"], allow_privilege_escalation: false },
    },
    image: {},
    user: { uid: 65_535, gid: 65_535, supplementalGroups: [], home: "/" },
    hostname: "",
    rootfs,
    namespaces: [...heldNamespaces(home, attachment, users !== undefined), { type: "pid" }],
    mounts: [],
    cgroupsPath: join(context.cgroupRoot, machineHash(home.id), "pause"),
    cgroupVersion: cgroupVersion(),
    sysctls: [],
    seccomp: (capabilities) => seccompProfile(context.seccomp(), capabilities, process.arch),
    pidsLimit: PAUSE_PIDS,
  });
  await writeFile(join(bundle, "config.json"), JSON.stringify(config));
  await context.runtime.runDetached(
    `pause-${machineHash(home.id)}`,
    bundle,
    join(bundle, "pid"),
    join(bundle, "runtime.log"),
  );
  const pid = (await readPid(join(bundle, "pid")))!;
  const pause = { pid, startTime: processStat(pid)!.startTime };
  if (!(await holdPause(home.dir, pause)))
    throw new Error("the first process of the shared process namespace has ended");
  return pause;
}

/** @returns false when the process is gone */
export async function holdPause(dir: string, { pid, startTime }: PauseProcess): Promise<boolean> {
  return await holdProcesses(pid, () => Promise.resolve(isAlive(pid, startTime)), join(dir, "ns/pid"));
}

/**
 * Binds a process's process namespace to a file, which goes on naming that namespace when the process has ended and its
 * number is used again.
 * @param isTheirs whether the number is still that process's: asked when its namespace is held, for only then is the
 * answer about that one
 * @returns false when it is not, or the process is gone
 */
export async function holdProcesses(pid: number, isTheirs: () => Promise<boolean>, file: string): Promise<boolean> {
  let fd: number;
  try {
    fd = openSync(`/proc/${pid}/ns/pid`, "r");
  } catch (thrown) {
    if (isMissing(thrown)) return false;
    throw thrown;
  }
  try {
    if (!(await isTheirs())) return false;
    await writeFile(file, "");
    await bindDescriptor(fd, file);
    return true;
  } finally {
    closeSync(fd);
  }
}
