/** Devices by the Container Device Interface on engine cri, from a specification as drivers write them. */
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { onCri } from "./on-cri.ts";

const SPECIFICATIONS = "/var/run/cdi";
const kind = `t${randomBytes(4).toString("hex")}.test/null`;
const file = join(SPECIFICATIONS, `${kind.replace("/", "-")}.json`);

await onCri("devices of engine cri", { cdiDevices: [`${kind}=*`] }, (bench) => {
  beforeAll(() => {
    mkdirSync(SPECIFICATIONS, { recursive: true });
    const device = (name: string) => ({
      name,
      containerEdits: {
        deviceNodes: [{ path: `/dev/given-${name}`, hostPath: "/dev/null", type: "c" }],
        env: [`GIVEN_${name}=yes`],
      },
    });
    writeFileSync(file, JSON.stringify({ cdiVersion: "0.6.0", kind, devices: ["a", "b"].map(device) }));
  });
  afterAll(() => rmSync(file, { force: true }));

  const seen = "ls /dev | grep given; env | grep GIVEN; echo word > /dev/given-a && echo taken";

  test("a container has the devices and the variables that the specification says, and no others", async () => {
    const devices = { cdi_devices: [`${kind}=a`] };
    const id = await bench.create({ containers: [bench.shell("a", seen, devices)] });
    await bench.terminated(id, "a");
    expect(await bench.log(id, "a")).toEqual(["given-a", "GIVEN_a=yes", "taken"]);
  });

  test("the container beside it has none of them", async () => {
    const devices = { cdi_devices: [`${kind}=a`, `${kind}=b`] };
    const list = "ls /dev | grep -c given";
    const id = await bench.create({ containers: [bench.shell("a", list, devices), bench.shell("b", list)] });
    await bench.terminated(id, "a");
    await bench.terminated(id, "b");
    expect([await bench.log(id, "a"), await bench.log(id, "b")]).toEqual([["2"], ["0"]]);
  });

  test("a container starts again with its devices", async () => {
    const devices = { cdi_devices: [`${kind}=a`], mounts: [{ volume: "v", path: "/v" }] };
    const script = "ls /dev | grep given; [ -e /v/again ] || { touch /v/again; exit 1; }";
    const volumes = [{ name: "v", type: "empty_dir" as const, medium: "disk" as const }];
    const id = await bench.create({
      restart_policy: "on_failure",
      volumes,
      containers: [bench.shell("a", script, devices)],
    });
    await bench.reaches(id, "stopped");
    expect(await bench.container(id, "a")).toMatchObject({ restart_count: 1, terminated: { exit_code: 0 } });
    expect(await bench.log(id, "a")).toEqual(["given-a"]);
  });

  test("one that the owner of the host gives to nobody is refused", async () => {
    const created = bench.create({ containers: [bench.shell("a", "true", { cdi_devices: ["other.test/null=a"] })] });
    await expect(created).rejects.toMatchObject({ code: "unsupported", field: "containers.cdi_devices" });
  });

  test("one that no specification has is waited for, and the machine says which", async () => {
    const id = await bench.create({ containers: [bench.shell("a", "true", { cdi_devices: [`${kind}=c`] })] });
    await bench.until(async () => {
      expect(await bench.container(id, "a")).toMatchObject({
        state: "waiting",
        reason: "CreateContainerError",
        message: expect.stringContaining(`${kind}=c`),
      });
    });
  });
});
