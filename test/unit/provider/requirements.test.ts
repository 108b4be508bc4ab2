import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { specFingerprint } from "../../../src/provider/fingerprint.ts";
import type { ContainerSpec, MachineSpec } from "../../../src/provider/machine.ts";
import {
  assertCapable,
  assertRuntimeHandler,
  patchCapabilities,
  requiredCapabilities,
} from "../../../src/provider/requirements.ts";
import { containerSpec, machineSpec } from "../../support/builders.ts";

const probe = { initial_delay_s: 0, period_s: 1, timeout_s: 1, success: 1, failure: 1 };

describe("requiredCapabilities", () => {
  test("a plain machine needs nothing beyond the core", () => {
    const plain = machineSpec({
      hostname: "h",
      dns: { nameservers: [], searches: [], options: [] },
      hosts: [],
      registry_auth: [],
      security: { supplemental_groups: [], sysctls: [] },
      containers: [
        containerSpec({
          pull_policy: "always",
          ports: [{ port: 80, protocol: "tcp" }],
          security: { privileged: false, run_as_non_root: false },
        }),
      ],
    });
    expect(requiredCapabilities(plain)).toEqual([]);
  });

  test.each<[string, Partial<MachineSpec>, string, string]>([
    [
      "two containers",
      { containers: [containerSpec(), containerSpec({ name: "d" })] },
      "multi_container",
      "containers.1",
    ],
    ["an init container", { init_containers: [containerSpec()] }, "init_containers", "init_containers.0"],
    [
      "a sidecar",
      { init_containers: [containerSpec({ restart_policy: "always" })] },
      "sidecars",
      "init_containers.0.restart_policy",
    ],
    [
      "a restart policy of its own",
      { containers: [containerSpec({ restart_policy: "never" })] },
      "restart_rules",
      "containers.0.restart_policy",
    ],
    [
      "a readiness probe",
      { containers: [containerSpec({ probes: { readiness: probe } })] },
      "probes",
      "containers.0.probes.readiness",
    ],
    [
      "a hook",
      { containers: [containerSpec({ hooks: { pre_stop: { sleep: { seconds: 1 } } } })] },
      "hooks",
      "containers.0.hooks.pre_stop",
    ],
    ["a terminal", { containers: [containerSpec({ tty: true })] }, "tty", "containers.0.tty"],
    [
      "a user",
      { containers: [containerSpec({ security: { user: 0 } })] },
      "security_context",
      "containers.0.security.user",
    ],
    [
      "no new privileges",
      { containers: [containerSpec({ security: { allow_privilege_escalation: false } })] },
      "security_context",
      "containers.0.security.allow_privilege_escalation",
    ],
    [
      "none of its image's groups",
      { security: { supplemental_groups_policy: "strict" } },
      "supplemental_groups_policy",
      "security.supplemental_groups_policy",
    ],
    ["limits of its traffic", { bandwidth: { egress_bits_per_second: 1_000_000 } }, "bandwidth", "bandwidth"],
    [
      "an AppArmor profile",
      { containers: [containerSpec({ security: { apparmor: "localhost/p" } })] },
      "apparmor",
      "containers.0.security.apparmor",
    ],
    [
      "privileges",
      { containers: [containerSpec({ security: { privileged: true } })] },
      "privileged",
      "containers.0.security.privileged",
    ],
    [
      "a host port",
      { containers: [containerSpec({ ports: [{ port: 80, protocol: "tcp", host_port: 80 }] })] },
      "host_ports",
      "containers.0.ports.0.host_port",
    ],
    [
      "scratch space",
      { volumes: [{ name: "v", type: "empty_dir", medium: "disk" }] },
      "volumes.empty_dir",
      "volumes.0",
    ],
    ["files", { volumes: [{ name: "v", type: "files", version: "1", files: [] }] }, "volumes.files", "volumes.0"],
    ["an image volume", { volumes: [{ name: "v", type: "image", image: "i" }] }, "volumes.image", "volumes.0"],
    ["an NFS folder", { volumes: [{ name: "v", type: "nfs", server: "s", path: "/" }] }, "volumes.nfs", "volumes.0"],
    ["a host path", { volumes: [{ name: "v", type: "host_path", path: "/" }] }, "volumes.host_path", "volumes.0"],
    [
      "a device",
      { containers: [containerSpec({ cdi_devices: ["v.example/gpu=0"] })] },
      "cdi_devices",
      "containers.0.cdi_devices",
    ],
    ["a path of the host", { volumes: [{ name: "v", type: "host", path: "/" }] }, "volumes.host", "volumes.0"],
    [
      "a mount that propagates",
      { containers: [containerSpec({ mounts: [{ volume: "v", path: "/v", propagation: "bidirectional" }] })] },
      "mount_propagation",
      "containers.0.mounts.0.propagation",
    ],
    ["the host's network", { host: { network: true } }, "host_network", "host.network"],
    ["the host's processes", { host: { pid: true } }, "host_pid", "host.pid"],
    ["the host's IPC namespace", { host: { ipc: true } }, "host_ipc", "host.ipc"],
    ["an instance type", { instance_type: "small" }, "instance_types", "instance_type"],
    ["host aliases", { hosts: [{ ip: "10.0.0.1", names: ["a"] }] }, "hosts", "hosts"],
    ["pull secrets", { registry_auth: [{ registry: "r" }] }, "registry_auth", "registry_auth"],
    ["a kernel parameter", { security: { sysctls: [{ name: "n", value: "v" }] } }, "sysctls", "security.sysctls"],
    [
      "one process namespace",
      { security: { share_process_namespace: true } },
      "share_process_namespace",
      "security.share_process_namespace",
    ],
  ])("%s needs its capability and names its field", (_name, rest, capability, field) => {
    expect(requiredCapabilities(machineSpec(rest))).toEqual([{ capability, field }]);
    expect(() => assertCapable(requiredCapabilities(machineSpec(rest)), [])).toThrow(
      expect.objectContaining({ code: "unsupported", field }) as Error,
    );
    expect(() => assertCapable(requiredCapabilities(machineSpec(rest)), [capability])).not.toThrow();
  });

  test("a patch needs a capability for each thing that it changes", () => {
    const patch = {
      files: [],
      containers: [],
      resources: [],
      machine_resources: {},
      registry_auth: [],
      ephemeral_containers: [],
    };
    expect(patchCapabilities(patch).map(({ capability }) => capability)).toEqual([
      "patch_files",
      "patch_image",
      "resize",
      "resize_machine",
      "patch_registry_auth",
      "ephemeral_containers",
    ]);
  });

  test.each<[string, Partial<ContainerSpec>, string, string]>([
    ["a block device", { devices: [{ volume: "v", path: "/dev/v" }] }, "volumes.block", "devices"],
    ["all rights", { security: { privileged: true } }, "privileged", "security.privileged"],
    ["a device of its host", { cdi_devices: ["v.example/gpu=0"] }, "cdi_devices", "cdi_devices"],
  ])("a container that joins a machine needs for %s what one of its own does", (_what, rest, capability, field) => {
    expect(patchCapabilities({ ephemeral_containers: [containerSpec(rest)] })).toEqual([
      { capability: "ephemeral_containers", field: "ephemeral_containers" },
      { capability, field: `ephemeral_containers.0.${field}` },
    ]);
  });
});

/** The same value with the keys of every object in reverse. */
function reversed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(reversed);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .toReversed()
      .map(([key, field]) => [key, reversed(field)]),
  );
}

describe("specFingerprint", () => {
  test("does not depend on the order of keys, nor on fields that are undefined", () => {
    fc.assert(
      fc.property(fc.dictionary(fc.string(), fc.jsonValue()), (value) => {
        expect(specFingerprint(reversed(value) as object)).toBe(specFingerprint(value));
        expect(specFingerprint({ ...value, "only undefined": undefined })).toBe(specFingerprint(value));
      }),
    );
  });

  test("depends on every value and on the order of lists", () => {
    expect(specFingerprint({ a: [1, 2] })).not.toBe(specFingerprint({ a: [2, 1] }));
    expect(specFingerprint({ a: "1" })).not.toBe(specFingerprint({ a: 1 }));
    expect(specFingerprint({ a: { b: 1 } })).not.toBe(specFingerprint({ a: { c: 1 } }));
    expect(specFingerprint({ a: null })).not.toBe(specFingerprint({}));
  });
});

describe("assertRuntimeHandler", () => {
  const offered = [{ name: "" }, { name: "kata" }];

  test("takes a runtime that there is, and a machine that names none", () => {
    expect(() => assertRuntimeHandler({ runtime_handler: "kata" }, offered)).not.toThrow();
    expect(() => assertRuntimeHandler({}, [])).not.toThrow();
  });

  test.each([
    [offered, "kata"],
    [undefined, "none"],
  ])("refuses another one, and names those that there are", (handlers, known) => {
    expect(() => assertRuntimeHandler({ runtime_handler: "runsc" }, handlers)).toThrow(
      expect.objectContaining({
        code: "unsupported",
        field: "runtime_handler",
        message: `there is no runtime handler "runsc" (there is ${known})`,
      }),
    );
  });
});
