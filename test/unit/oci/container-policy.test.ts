import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { VmEngine } from "../../../providers/local/engines/vm/engine.ts";
import { ALL_LINUX_CAPABILITIES } from "../../../providers/local/bundle/bundle.ts";
import {
  CONTAINED_CAPABILITIES,
  DEFAULT_CAPABILITIES,
  requireContained,
} from "../../../providers/local/bundle/container-policy.ts";
import type { ContainerSecurity, MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const surroundings = { stateDir: "/nonexistent", clock: new VirtualClock(), logger: silentLogger };
const spec = (security: ContainerSecurity, more: Partial<MachineSpec> = {}): MachineSpec => ({
  labels: {},
  restart_policy: "never",
  containers: [{ name: "a", image: "i", security }],
  ...more,
});

describe("a pod on a kernel that it shares", () => {
  const engine = new OciEngine(surroundings);
  const verdict = (machine: MachineSpec) => {
    try {
      engine.validate(machine);
      return "admitted";
    } catch (thrown) {
      return thrown;
    }
  };
  const contained = new Set<string>([...DEFAULT_CAPABILITIES, ...CONTAINED_CAPABILITIES]);
  const refused = (field: string) =>
    expect.objectContaining({
      code: "unsupported",
      field,
      message: expect.stringContaining("engine.allowPrivileged is off"),
    });

  test.each(ALL_LINUX_CAPABILITIES.filter((name) => !contained.has(name)))("is refused with %s", (name) => {
    expect(verdict(spec({ capabilities_add: [name] }))).toEqual(refused("containers.security.capabilities_add"));
  });
  test.each(["ALL", "all", "CAP_ALL", "sys_admin", "Sys_Admin", "cap_sys_admin"])(
    "is refused however it spells a capability: %s",
    (name) =>
      expect(verdict(spec({ capabilities_add: ["CHOWN", name] }))).toEqual(
        refused("containers.security.capabilities_add"),
      ),
  );
  test.each([...contained].flatMap((name) => [name, name.slice("CAP_".length).toLowerCase()]))("may add %s", (name) =>
    expect(verdict(spec({ capabilities_add: [name] }))).toBe("admitted"),
  );
  test.each<[string, ContainerSecurity, string]>([
    ["privileged", { privileged: true }, "privileged"],
    ["an unmasked /proc", { unmasked_proc: true }, "unmasked_proc"],
    ["no seccomp profile", { seccomp: "unconfined" }, "seccomp"],
  ])("is refused with %s", (_title, security, field) =>
    expect(verdict(spec(security))).toEqual(refused(`containers.security.${field}`)),
  );
  test.each([true, false])("is refused without an AppArmor profile where the kernel has it: %s", (hasAppArmor) => {
    const policy = { allowPrivileged: false, allowedCapabilities: [], hasAppArmor };
    const check = () => requireContained(spec({ apparmor: "unconfined" }), policy);
    if (hasAppArmor) expect(check).toThrow(refused("containers.security.apparmor"));
    else expect(check).not.toThrow();
  });
  test.each([
    ["enforce", "admitted"],
    ["complain", "refused"],
    ["unconfined", "refused"],
  ])("with an AppArmor profile of its host that is in mode %s is %s", (mode, outcome) => {
    const root = mkdtempSync(join(tmpdir(), "vmlet-apparmor-"));
    mkdirSync(join(root, "sys/kernel/security/apparmor"), { recursive: true });
    writeFileSync(join(root, "sys/kernel/security/apparmor/profiles"), `other (enforce)\nbusybox (${mode})\n`);
    const policy = { allowPrivileged: false, allowedCapabilities: [], hasAppArmor: true };
    const check = () => requireContained(spec({ apparmor: "localhost/busybox" }), policy, root);
    if (outcome === "refused") expect(check).toThrow(refused("containers.security.apparmor"));
    else expect(check).not.toThrow();
    rmSync(root, { recursive: true });
  });
  test.each<[string, ContainerSecurity]>([
    ["any capability", { capabilities_add: ["SYS_ADMIN"] }],
    ["an unmasked /proc", { unmasked_proc: true }],
    ["no seccomp profile", { seccomp: "unconfined" }],
    ["no AppArmor profile", { apparmor: "unconfined" }],
  ])("that may be privileged has to say so, and is refused with %s alone", (_title, security) => {
    const policy = { allowPrivileged: false, mayBePrivileged: true, allowedCapabilities: [], hasAppArmor: true };
    expect(() => requireContained(spec(security), policy)).toThrow(
      expect.objectContaining({ code: "unsupported", field: `containers.security.${Object.keys(security)[0]}` }),
    );
    expect(() => requireContained(spec({ ...security, privileged: true }), policy)).not.toThrow();
  });
  test.each(["init_containers", "ephemeral_containers"] as const)("is refused for one of its %s, too", (kind) => {
    const more = { [kind]: [{ name: "b", image: "i", security: { capabilities_add: ["SYS_ADMIN"] } }] };
    expect(verdict(spec({}, more))).toEqual(refused("containers.security.capabilities_add"));
  });
  test.each([
    "vm.swappiness",
    "kernel.core_pattern",
    "kernel.shm/../core_pattern",
    "net/../kernel/core_pattern",
    "net.",
    "fs.file-max",
  ])("is refused with the host's kernel parameter %s", (name) =>
    expect(verdict(spec({}, { security: { sysctls: [{ name, value: "1" }] } }))).toMatchObject({
      code: "invalid",
      field: "security.sysctls",
    }),
  );
  test.each(["net.ipv4.tcp_syncookies", "kernel.shmmax", "kernel.sem", "fs.mqueue.msg_max"])(
    "may set %s, which is its own",
    (name) => expect(verdict(spec({}, { security: { sysctls: [{ name, value: "1" }] } }))).toBe("admitted"),
  );
});

describe("what else the host's owner says", () => {
  const everything = spec({
    privileged: true,
    capabilities_add: ["ALL"],
    unmasked_proc: true,
    seccomp: "unconfined",
  });
  test("with allowPrivileged all is admitted", () =>
    expect(() => new OciEngine({ ...surroundings, allowPrivileged: true }).validate(everything)).not.toThrow());
  test("on a kernel of its own a machine may have all", () =>
    expect(() => new VmEngine(surroundings).validate(everything)).not.toThrow());
  test("allowedCapabilities takes the place of the usual ones", () => {
    const engine = new OciEngine({ ...surroundings, allowedCapabilities: ["sys_ptrace"] });
    expect(() => engine.validate(spec({ capabilities_add: ["SYS_PTRACE", "CHOWN"] }))).not.toThrow();
    expect(() => engine.validate(spec({ capabilities_add: ["NET_ADMIN"] }))).toThrow("NET_ADMIN");
  });
});
