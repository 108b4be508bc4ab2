/**
 * What a QEMU that a guest has broken out of can do: a program in its place, started as QEMU is (engines/vm/jail.ts), that
 * tries to reach another VM, the backend and the host.
 */
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { defaultGuestDir, hasGuest, makeGuest } from "../../../providers/local/engines/vm/guest.ts";
import { Jail, programFiles } from "../../../providers/local/engines/vm/jail.ts";
import { killVm, startJailed } from "../../../providers/local/engines/vm/qemu.ts";
import { VmUsers } from "../../../providers/local/engines/vm/users.ts";
import type { VmProcess } from "../../../providers/local/engines/vm/vm-processes.ts";
import { vmGroups } from "../../../providers/local/engines/vm/vm-groups.ts";
import { Cgroup } from "../../../providers/local/bundle/cgroup.ts";
import { VmEngine } from "../../../providers/local/engines/vm/engine.ts";
import { findTool } from "../../../providers/local/host/command.ts";
import { allProcesses, processStat } from "../../../providers/local/host/proc.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { leaveOut } from "../../support/left-out.ts";

/** On every Debian; it can make any system call. */
const perl = findTool("perl");
const problems = (await new VmEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger }).check())
  .filter(({ fatal }) => fatal)
  .map(({ problem }) => problem);
const missing = [...problems, ...(perl === undefined ? ["perl is not on the PATH"] : [])];

const SYS = { connect: 42, ptrace: 101, mount: 165, socket: 41, unshare: 272, setuid: 105, mknod: 133 };
const AF = { UNIX: 1, INET: 2, NETLINK: 16, PACKET: 17, VSOCK: 40 };
/** A program that ends before it was seen to run counts as one that could not be started. */
const LATER = "select(undef, undef, undef, 0.2);";
const SECRET = "the secret of another tenant";

if (missing.length > 0) leaveOut("the jail of a VM", missing);
else {
  const signal = AbortSignal.timeout(120_000);
  const group = `/vmlet-jail-${randomBytes(3).toString("hex")}`;
  const groups = vmGroups(group, silentLogger);
  let dir: string;
  let guestDir: string;
  let users: VmUsers;
  let backend: Server;

  /** Starts a perl program in QEMU's place, in a VM's folder of its own. */
  async function start(name: string, script: string, furnish: (jail: Jail, folder: string) => void = () => undefined) {
    const folder = join(dir, name);
    mkdirSync(join(folder, "root"), { recursive: true });
    writeFileSync(join(folder, "disk.img"), SECRET, { mode: 0o600 });
    const jail = new Jail({
      guestDir,
      uid: await users.take(folder),
      root: join(folder, "root"),
      groups: await groups.make(name, { memoryMib: 32, cpus: 1 }),
      fileBytes: 1 << 20,
    });
    jail.see(...(await programFiles(perl!)));
    jail.give("listen", join(folder, "qmp"));
    const disk = jail.give("write", join(folder, "disk.img"));
    furnish(jail, folder);
    const log = join(folder, "log");
    const { process: vm, ended } = await startJailed(jail, perl!, ["-e", `${LATER} ${script}`], log, signal);
    onTestFinished(async () => {
      await killVm(vm, systemClock);
    });
    /** What it has printed when it is over. */
    const said = async () => {
      const reason = await ended.catch((thrown: unknown) => String(thrown));
      return `${readFileSync(log, "utf8")}\n${reason.split(":")[1]}`;
    };
    return { vm, folder, disk, said };
  }

  beforeAll(async () => {
    guestDir = process.env["VMLET_GUEST_DIR"] ?? defaultGuestDir();
    if (!hasGuest(guestDir)) await makeGuest(guestDir);
    dir = mkdtempSync(join(tmpdir(), "vmlet-jail-"));
    users = new VmUsers({ dir: join(dir, "users") });
    backend = createServer((socket) => socket.end("the backend"));
    await new Promise<void>((resolve) => backend.listen(0, "0.0.0.0", resolve));
  }, 120_000);
  afterAll(async () => {
    await new Cgroup(group).remove();
    backend.close();
    rmSync(dir, { recursive: true, force: true });
  });

  /** A neighbour that stands still, and a hostile program that is told where it is. */
  async function attack(script: (place: { neighbour: string; pid: number }) => string): Promise<string> {
    const { vm, folder } = await start("neighbour", "sleep 1000");
    const text = await (await start("hostile", script({ neighbour: folder, pid: vm.pid }))).said();
    expect(processStat(vm.pid)?.startTime).toBe(vm.startTime);
    return text;
  }

  test("the program runs as a user of its own that no other VM has, without any privilege", async () => {
    const a = await start("neighbour", "sleep 1000");
    const b = await start("hostile", "sleep 1000");
    const status = (vm: VmProcess) => readFileSync(`/proc/${vm.pid}/status`, "utf8");
    const isStarted = (vm: VmProcess) => readFileSync(`/proc/${vm.pid}/cmdline`, "utf8").startsWith(`${perl}\0`);
    await expect.poll(() => [a, b].every(({ vm }) => isStarted(vm)), { timeout: 10_000 }).toBe(true);
    const uids = [a, b].map(({ vm }) => /^Uid:\t(\d+)\t\1\t\1\t\1$/m.exec(status(vm))?.[1]);
    expect(new Set(uids).size).toBe(2);
    expect(uids).not.toContain("0");
    for (const kind of ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
      expect(status(b.vm)).toContain(`${kind}:\t0000000000000000\n`);
    expect(status(b.vm)).toContain("NoNewPrivs:\t1\n");
    expect(status(b.vm)).toContain("Seccomp:\t2\n");
    expect(status(b.vm)).toMatch(/^Groups:\t?\s*$/m);
    expect(status(b.vm)).toContain(`NSpid:\t${b.vm.pid}\t1\n`);
  });

  test("it finds no file of the host's: no other VM's disk, no state, no secret, no process", async () => {
    const text = await attack(({ neighbour }) => {
      const paths = [
        join(neighbour, "disk.img"),
        join(dir, "users"),
        ...["/etc/shadow", "/etc/passwd", "/root", "/proc/1/environ", "/proc/self/root", "/sys", "/dev/mem"],
        ...["/dev/kvm", "/dev/net/tun", "/run", "/tmp", "/var/lib"],
      ];
      return `for (${paths.map((path) => `'${path}'`).join(", ")}) { print STDERR "seen $_\\n" if -e $_ } print STDERR "done\\n"`;
    });
    expect(text).toContain("done");
    expect(text).not.toContain("seen");
  });

  test("it can make no file, and change none that it sees", async () => {
    const text = await attack(
      () => `
      my @folders = ('/', '/dev', '/usr', '/usr/share', '/lib', '/lib/x86_64-linux-gnu');
      while (my $at = shift @folders) {
        print STDERR "written $at\\n" if open(my $f, '>', "$at/new") || mkdir "$at/newer";
      }
      print STDERR "written itself\\n" if open(my $f, '>>', $^X);
      print STDERR "done\\n"`,
    );
    expect(text).toContain("done");
    expect(text).not.toContain("written");
  });

  test("its own disk grows to its size and no further", async () => {
    const { folder, disk, said } = await start(
      "hostile",
      `$SIG{XFSZ} = 'IGNORE'; open(my $d, '+<&=', 11) or die; seek($d, 0, 2); for (1..64) { syswrite($d, 'x' x 65536) }`,
    );
    expect(disk).toBe(11);
    await said();
    expect(statSync(join(folder, "disk.img")).size).toBe(1 << 20);
  });

  test("it reaches no socket of another VM, not the backend, and no network", async () => {
    const { port } = backend.address() as { port: number };
    const hosts = Object.values(networkInterfaces())
      .flatMap((all) => all ?? [])
      .filter(({ family }) => family === "IPv4")
      .map(({ address }) => address);
    const text = await attack(
      ({ neighbour }) => `
      sub try { my ($name, $family, $address) = @_;
        my $s = syscall(${SYS.socket}, $family, 1, 0);
        if ($s >= 0 && syscall(${SYS.connect}, $s, $address, length $address) == 0) { print STDERR "reached $name\\n" } }
      try('unix', ${AF.UNIX}, pack('Sa*x', ${AF.UNIX}, '${neighbour}/qmp'));
      try($_, ${AF.INET}, pack('SnC4x8', ${AF.INET}, ${port}, split /\\./, $_)) for (${["127.0.0.1", ...hosts].map((host) => `'${host}'`).join(", ")});
      for (${AF.INET}, ${AF.NETLINK}, ${AF.PACKET}, ${AF.VSOCK}) { print STDERR "made $_\\n" if syscall(${SYS.socket}, $_, 3, 0) >= 0 || syscall(${SYS.socket}, $_, 1, 0) >= 0 }
      print STDERR "done\\n"`,
    );
    expect(text).toContain("done");
    expect(text).not.toMatch(/reached|made/);
  });

  test("it can neither kill nor trace another process, nor become anybody else", async () => {
    const text = await attack(
      ({ pid }) => `
      for my $pid (${pid}, ${process.pid}) {
        print STDERR "killed $pid\\n" if kill(9, $pid);
        print STDERR "traced $pid\\n" if syscall(${SYS.ptrace}, 16, $pid, 0, 0) >= 0;
      }
      print STDERR "killed all\\n" if kill(9, -1);
      print STDERR "became root\\n" if syscall(${SYS.setuid}, 0) >= 0;
      print STDERR "mounted\\n" if syscall(${SYS.mount}, 'x', '/dev', 'tmpfs', 0, 0) >= 0;
      print STDERR "made a device\\n" if syscall(${SYS.mknod}, '/dev/x', 020600, 1) >= 0;
      for (0x10000000, 0x20000, 0x40000000) { print STDERR "left a namespace\\n" if syscall(${SYS.unshare}, $_) >= 0 }
      print STDERR "done\\n"`,
    );
    expect(text).toContain("done");
    expect(text).not.toMatch(/killed|traced|became|mounted|made|left/);
  });

  test("processes without end come to an end at its own control group's limit", async () => {
    const text = await attack(
      () => `my $n = 0; for (1..5000) { my $pid = fork; last unless defined $pid; if ($pid == 0) { sleep 1000 } $n++ }
      print STDERR "begun $n\\n"`,
    );
    const begun = Number(/begun (\d+)/.exec(text)?.[1]);
    expect(begun).toBeGreaterThan(10);
    expect(begun).toBeLessThan(200);
  });

  test("memory without end ends it, and nobody else", async () => {
    const text = await attack(
      () => `my @all; for (1..2000) { push @all, 'x' x (1 << 20) } print STDERR "has it all\\n"`,
    );
    expect(text).not.toContain("has it all");
    expect(text).toMatch(/ended with 137/);
    expect(await Promise.all(["hostile", "neighbour"].map((name) => groups.wasOutOfMemory(name)))).toEqual([
      true,
      false,
    ]);
  });

  test("what it prints without end leaves a short log, whether or not the backend lives", async () => {
    const { folder, said } = await start(
      "hostile",
      `for (1..64) { print STDERR 'x' x (1 << 18) } print STDERR "the last"`,
    );
    const text = await said();
    expect(text).toContain("the last");
    expect(statSync(join(folder, "log")).size).toBeLessThanOrEqual(1 << 20);
  });

  test("a template's memory can be read, and written to by nobody", async () => {
    const ram = join(dir, "ram.img");
    writeFileSync(ram, "template", { mode: 0o444 });
    const text = await (
      await start(
        "hostile",
        `print STDERR "opened as asked\\n" if open(my $f, '+<', '${ram}'); open($f, '<', '${ram}') and print STDERR <$f>, "\\n";
         chmod 0666, '${ram}' and print STDERR "changed\\n"; unlink '${ram}' and print STDERR "removed\\n"`,
        (jail) => jail.see(ram),
      )
    ).said();
    expect(text).toContain("template");
    expect(text).not.toMatch(/opened as asked|changed|removed/);
    expect(existsSync(ram)).toBe(true);
  });

  test("with it ends everything that it has begun", async () => {
    const { vm, folder, said } = await start("hostile", "fork; fork; sleep 1000");
    const uid = await users.take(folder);
    const left = async () => (await allProcesses()).filter(({ pid }) => ownerOf(pid) === uid);
    await expect.poll(async () => (await left()).length, { timeout: 10_000 }).toBeGreaterThanOrEqual(4);
    await killVm(vm, systemClock);
    expect(await said()).toMatch(/ended with 137/);
    await expect.poll(left, { timeout: 10_000 }).toEqual([]);
  });
}

function ownerOf(pid: number): number | undefined {
  return statSync(`/proc/${pid}`, { throwIfNoEntry: false })?.uid;
}
