/** The containerd that a backend starts for itself, and takes away again. */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { OwnContainerd } from "../../../providers/local/engines/cri/own-containerd.ts";
import { mountsBelow } from "../../../providers/local/host/mounts.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";

const missing = await missingForContainerd();
const { signal } = new AbortController();

function make(clock = systemClock): { own: OwnContainerd; dir: string } {
  const dir = join(mkdtempSync(join(tmpdir(), "vmlet-cri-")), "cri");
  const { bridge, cidr } = testNetwork("");
  const gateway = cidr!.replace("0/24", "1");
  const own = new OwnContainerd({ dir, clock, bridge: bridge!, range: () => ({ cidr: cidr!, gateway }) });
  onTestFinished(async () => {
    await own.remove();
    rmSync(join(dir, ".."), { recursive: true, force: true });
  });
  return { own, dir };
}

async function imageNames(socket: string): Promise<string[]> {
  const client = new CriClient(socket);
  const { images } = await client.images.listImages({}, client.within());
  client.close();
  return images.flatMap(({ repoTags }) => repoTags);
}

const pidOf = (dir: string): number => Number(readFileSync(join(dir, "pid"), "latin1").split(" ")[0]);

if (missing !== undefined) leaveOut("a containerd of our own", [missing]);
else {
  test("it has its sandbox image without any registry, and is found again by the next backend", async () => {
    const { own, dir } = make();
    await own.start(signal);
    expect(await imageNames(own.socket)).toEqual([expect.stringMatching(/^sandbox\.vmlet\.dev\/pause:/)]);
    const pid = pidOf(dir);
    await own.start(signal);
    expect(pidOf(dir)).toBe(pid);
  });

  test("one that was killed is started again with what it had", async () => {
    const { own, dir } = make();
    await own.start(signal);
    const before = await imageNames(own.socket);
    process.kill(pidOf(dir), "SIGKILL");
    await own.start(signal);
    expect(await imageNames(own.socket)).toEqual(before);
  });

  test("addresses of sandboxes that it does not have are free again when it is started", async () => {
    const { own, dir } = make();
    await own.start(signal);
    const [name] = readdirSync(join(dir, "cni")).map((file) => readFileSync(join(dir, "cni", file), "utf8"));
    const { name: network } = JSON.parse(name!) as { name: string };
    const leases = join(dir, "cni-leases", network);
    const kept = `/var/lib/cni/results/${network}-${"a".repeat(64)}-eth0`;
    mkdirSync(leases, { recursive: true });
    mkdirSync(dirname(kept), { recursive: true });
    for (const file of [join(leases, "10.1.2.3"), kept]) writeFileSync(file, "");
    process.kill(pidOf(dir), "SIGKILL");
    await own.start(signal);
    expect([readdirSync(leases), existsSync(kept)]).toEqual([[], false]);
  });

  test("one that is killed while it starts is not waited for", async () => {
    // By this clock no time passes: only the end of the process can tell.
    const { own, dir } = make({ ...systemClock, monotonic: () => 0 });
    await own.start(signal);
    const before = pidOf(dir);
    process.kill(before, "SIGKILL");
    const starting = own.start(signal).catch((thrown: unknown) => String(thrown));
    await vi.waitFor(() => expect(pidOf(dir)).not.toBe(before), { interval: 1 });
    process.kill(pidOf(dir), "SIGKILL");
    expect(await starting).toContain("containerd does not start");
    await own.start(signal);
  });

  test("nothing of it is left when it is removed", async () => {
    const { own, dir } = make();
    await own.start(signal);
    const pid = pidOf(dir);
    await own.remove();
    expect(() => process.kill(pid, 0)).toThrow("ESRCH");
    expect([existsSync(dir), existsSync(own.socket), await mountsBelow(dir)]).toEqual([false, false, []]);
  });
}
