/**
 * A systemd for tests, as process 1 of namespaces of its own: it has control groups below one of this host's, D-Bus, and
 * no units besides. What is started by `within` shares this host's network and file systems, but not `/run`, nor the folder
 * of its owner's units.
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { vi } from "vitest";
import { Cgroup } from "../../providers/local/bundle/cgroup.ts";
import { findTool } from "../../providers/local/host/command.ts";
import { systemClock } from "../../src/util/clock.ts";

const SYSTEMD = "/lib/systemd/systemd";
const UNITS = "/lib/systemd/system";
/** What other units are started after. */
const TARGETS = ["sysinit", "basic", "sockets", "shutdown", "umount"];
const PATIENCE = { timeout: 20_000, interval: 50 };

/** Joins a group of each tree of this host, GROUP, and has the rest see nothing above it. */
const ENTER = `
for tree in $(awk '$5 ~ "^/sys/fs/cgroup" && / - cgroup2? / { print $5 }' /proc/self/mountinfo); do
  mkdir -p "$tree/$GROUP"
  for file in cpuset.cpus cpuset.mems; do [ ! -e "$tree/$file" ] || [ "$tree" = /sys/fs/cgroup ] || cat "$tree/$file" > "$tree/$GROUP/$file"; done
  echo 0 > "$tree/$GROUP/cgroup.procs"
done
exec unshare --cgroup --mount --propagation private --pid --fork --kill-child --mount-proc sh -ec "$BOOT"
`;
const BOOT = `
trees=$(awk '$5 ~ "^/sys/fs/cgroup" && / - cgroup2? / { for (i = 7; $i != "-"; i++); n = split($(i + 3), o, ","); s = ""; for (j = 1; j <= n; j++) if (o[j] != "rw") s = s (s == "" ? "" : ",") o[j]; print $5 ":" $(i + 1) ":" s }' /proc/self/mountinfo)
umount -R /sys/fs/cgroup
case "$trees" in /sys/fs/cgroup:*) ;; *) mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup;; esac
for tree in $trees; do
  IFS=: read -r path type options <<END
$tree
END
  mkdir -p "$path"
  case "$options" in name=*) options="none,$options";; esac
  mount -t "$type" \${options:+-o "$options"} "$type" "$path"
done
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/dbus /etc/systemd/system
mount --bind "$UNITS" /etc/systemd/system
container=test SYSTEMD_UNIT_PATH="$UNITS" exec ${SYSTEMD} --system --unit=test.target --log-target=null --show-status=no
`;

/** Why there can be none here; undefined when there can. */
export function missingForSystemd(): string | undefined {
  if (process.getuid?.() !== 0) return "root, for a systemd of the tests";
  if (!existsSync(SYSTEMD)) return "the package systemd";
  const tools = ["dbus-daemon", "busctl", "nsenter", "unshare"].filter((name) => findTool(name) === undefined);
  return tools.length === 0 ? undefined : `${tools.join(", ")} (packages dbus, systemd and util-linux)`;
}

export class TestSystemd {
  /** The group of this host that all of its own are below. */
  readonly group = `vmlet-test-${randomBytes(4).toString("hex")}`;
  readonly #dir = mkdtempSync(join(tmpdir(), "vmlet-systemd-"));
  #process: ChildProcess | undefined;
  #pid = 0;

  async start(): Promise<void> {
    const units = join(this.#dir, "units");
    mkdirSync(units);
    for (const name of ["dbus.socket", "dbus.service"]) copyFileSync(join(UNITS, name), join(units, name));
    for (const name of TARGETS) writeFileSync(join(units, `${name}.target`), "[Unit]\nDefaultDependencies=no\n");
    writeFileSync(
      join(units, "test.target"),
      "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\nAfter=dbus.socket\n",
    );
    const env = { ...process.env, GROUP: this.group, BOOT, UNITS: units };
    const child = spawn("sh", ["-ec", ENTER], { stdio: ["ignore", "ignore", "inherit"], env });
    this.#process = child;
    await vi.waitFor(() => {
      if (child.exitCode !== null) throw new Error(`systemd has ended with ${child.exitCode}`);
      const [pid] = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, "latin1").split(" ");
      this.#pid = Number(pid);
      this.run("busctl", ["--quiet", "status"]);
    }, PATIENCE);
  }

  /** The start of a command line that is run there. */
  get within(): string[] {
    return ["nsenter", "--target", String(this.#pid), "--mount", "--pid", "--cgroup", "--"];
  }

  /** @returns what it prints */
  run(command: string, args: readonly string[]): string {
    const [program, ...rest] = [...this.within, command, ...args];
    return execFileSync(program!, rest, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  }

  /** Ends all that runs there. */
  async stop(): Promise<void> {
    const child = this.#process;
    if (child !== undefined && child.exitCode === null && child.signalCode === null) {
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGKILL");
      await ended;
    }
    const group = new Cgroup(`/${this.group}`);
    await group.kill(systemClock);
    await vi.waitFor(async () => await group.remove(), PATIENCE);
    rmSync(this.#dir, { recursive: true, force: true });
  }
}
