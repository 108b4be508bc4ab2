/** The guest's end of a command's streams (engines/vm/guest/session.c), in a VM without containers. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { VmEngine } from "../../../providers/local/engines/vm/engine.ts";
import { tscKhz } from "../../../providers/local/engines/vm/frequency.ts";
import { defaultGuestDir, hasGuest, makeGuest } from "../../../providers/local/engines/vm/guest.ts";
import { GuestPorts } from "../../../providers/local/engines/vm/ports.ts";
import { killVm, Qemu, type StartedVm } from "../../../providers/local/engines/vm/qemu.ts";
import { Qmp } from "../../../providers/local/engines/vm/qmp.ts";
import type { GuestCommandPlace } from "../../../providers/local/engine.ts";
import { GuestSession } from "../../../providers/local/shim/guest-session.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { leaveOut } from "../../support/left-out.ts";

const engine = new VmEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger });
const problems = (await engine.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);

if (problems.length > 0) leaveOut("sessions in a VM", problems);
else {
  const { signal } = new AbortController();
  let dir: string;
  let started: StartedVm;
  let qmp: string;
  let ports: GuestPorts;

  beforeAll(async () => {
    const guestDir = process.env["VMLET_GUEST_DIR"] ?? defaultGuestDir();
    if (!hasGuest(guestDir)) await makeGuest(guestDir);
    dir = mkdtempSync(join(tmpdir(), "vmlet-session-"));
    const at = (name: string) => join(dir, name);
    qmp = at("qmp");
    ports = new GuestPorts(qmp, dir);
    const khz = await tscKhz(guestDir, at("frequency"));
    const qemu = new Qemu({
      guestDir,
      tscKhz: khz,
      templatesDir: dir,
      accelerator: "tcg",
      diskBytes: 64 << 20,
      clock: systemClock,
    });
    const place = { qmp, ctl: at("ctl"), tap: undefined, disk: at("disk.img"), log: at("log") };
    started = await qemu.boot({ memoryMib: 192, cpus: 1 }, place, AbortSignal.timeout(120_000));
  });
  afterAll(async () => {
    started?.control.close();
    if (started !== undefined) await killVm(started.vm, systemClock);
    if (dir !== undefined) rmSync(dir, { recursive: true, force: true });
  });

  const isOpenInGuest = async (port: string) => {
    const connection = await Qmp.open(qmp, signal);
    const chardevs = (await connection.execute("query-chardev")) as { label: string; "frontend-open": boolean }[];
    connection.close();
    return chardevs.find(({ label }) => label === port)?.["frontend-open"];
  };
  const exitCode = (place: GuestCommandPlace) =>
    new Promise<number>((resolve, reject) => {
      let code = -1;
      new GuestSession(place, {
        output: () => undefined,
        streamEnd: () => undefined,
        exited: (exited) => (code = exited),
        closed: (error) => (error === undefined ? resolve(code) : reject(error)),
      });
    });

  test("a guest tells its time, takes another, and QEMU says that it runs", async () => {
    const { control } = started;
    const time = async () => Number((await control.script("date +%s", signal)).trim());
    await control.script("clock 1700000000000", signal);
    expect(await time()).toBeGreaterThanOrEqual(1_700_000_000);
    expect(await time()).toBeLessThan(1_700_000_600);
    await control.script(`clock ${systemClock.now()}`, signal);
    expect(Math.abs((await time()) - systemClock.now() / 1000)).toBeLessThan(60);
    using connection = await Qmp.open(qmp, signal);
    expect(await connection.execute("query-status")).toMatchObject({ status: "running" });
  });

  test("a session begins also when the guest's kernel is late to hear that its host has come", async () => {
    // Ports' news come by a kernel thread, the bytes do not. This one gets next to no time.
    await started.control.script(
      'ps | while read -r pid _ name; do case $name in *kworker*) renice -n 19 -p "$pid";; esac; done >/dev/null 2>&1\n' +
        "(while :; do :; done) </dev/null >/dev/null 2>&1 3>&- &",
      signal,
    );
    for (let count = 0; count < 20; count++) {
      const port = await ports.take(signal);
      // Nothing listens there.
      await started.control.run([["dial", String(port.number), port.token, "9"]], signal);
      await vi.waitFor(async () => expect(await isOpenInGuest(`p${port.number}`)).toBe(true), { timeout: 30_000 });
      expect(await exitCode(port)).toBe(1);
      ports.release(port);
    }
  });
}
