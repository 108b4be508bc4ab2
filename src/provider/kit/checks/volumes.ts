/** Files and addresses: what a container finds beside its process. */
import type { MachineSpec } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, mainOf, outputOf, type CheckContext } from "../context.ts";

const file = (text: string, path = "a") => [{ path, mode: 0o644, content_b64: Buffer.from(text).toString("base64") }];

const ENV_FILES = ["env_files", "init_containers", "volumes.empty_dir"] as const;

/** A variable whose value is in the file that `written` writes. */
const inFile = (name: string, key: string, rest: { optional?: boolean } = {}) => ({
  name,
  value: "",
  from_file: { volume: "work", path: "env", key, ...rest },
});

/** An init container that writes to a volume at /work. */
const written = (context: CheckContext, script: string): Partial<MachineSpec> => ({
  volumes: [{ name: "work", type: "empty_dir", medium: "disk" }],
  init_containers: [{ ...context.container(script), name: "writer", mounts: [{ volume: "work", path: "/work" }] }],
});

export const VOLUME_CHECKS: readonly Check[] = [
  {
    name: "volumes/files-are-there",
    needs: ["volumes.files"],
    why: "ConfigMaps, Secrets and tokens come by it.",
    async run(context: CheckContext) {
      const { id } = await context.over("", {
        containers: [
          context.container("cat /etc/conformance/a /etc/conformance/sub/b", {
            mounts: [{ volume: "cfg", path: "/etc/conformance" }],
          }),
        ],
        volumes: [
          { name: "cfg", type: "files", version: "v1", files: [...file("one\n"), ...file("two é\n", "sub/b")] },
        ],
      });
      const shown = await outputOf(context, id);
      context.expect(shown === "one\ntwo é", "the files' contents", `they are ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "volumes/a-path-is-the-machines-own",
    needs: ["volumes.host_path", "init_containers"],
    why: "A node's owner who allows hostPath means each pod's own machine, not what all of them share.",
    async run(context: CheckContext) {
      const path = "/var/lib/vmlet-conformance";
      const mounts = (volume: string) => ({ mounts: [{ volume, path: "/path" }] });
      const volumes = ["first", "second"].map((name) => ({ name, type: "host_path" as const, path }));
      const { id } = await context.over("", {
        volumes,
        init_containers: [context.container("echo here > /path/file", { name: "writer", ...mounts("first") })],
        containers: [context.container("cat /path/file", mounts("second"))],
      });
      const shown = await outputOf(context, id);
      context.expect(shown === "here", "both volumes to be one path", `the second has ${JSON.stringify(shown)}`);
      const other = await context.over("", {
        volumes,
        containers: [context.container("cat /path/file", mounts("first"))],
      });
      const code = mainOf(other).terminated?.exit_code;
      context.expect(code !== 0, "another machine to have a path of its own", "it has what the first one has written");
    },
  },
  {
    name: "volumes/their-version-is-told",
    needs: ["volumes.files"],
    why: "The agent learns from it that the files are in place.",
    async run(context: CheckContext) {
      const { id } = await context.running("", {
        labels: context.labelsOf("version"),
        containers: [context.container(FOREVER, { mounts: [{ volume: "cfg", path: "/etc/conformance" }] })],
        volumes: [{ name: "cfg", type: "files", version: "v1-conformance", files: file("one") }],
      });
      await context.until(id, "file_versions to have v1-conformance of cfg", ({ file_versions = [] }) =>
        file_versions.some(({ version }) => version === "v1-conformance"),
      );
    },
  },
  {
    name: "files/patch-changes-the-content",
    needs: ["volumes.files", "patch_files"],
    why: "A ConfigMap that was changed must reach its readers, not only be said to.",
    async run(context: CheckContext) {
      const script = "while true; do cat /etc/conformance/a; sleep 0.3; done";
      const { id } = await context.saying("one", "", {
        containers: [context.container(script, { mounts: [{ volume: "cfg", path: "/etc/conformance" }] })],
        volumes: [{ name: "cfg", type: "files", version: "v1", files: file("one\n") }],
      });
      await context.provider.updatePod?.(
        id,
        { files: [{ volume: "cfg", version: "v2", files: file("changed\n") }] },
        { signal: context.signal },
      );
      await context.untilTrue("the container to read the file's new content", async () =>
        (await outputOf(context, id)).endsWith("changed"),
      );
    },
  },
  {
    name: "files/patch-of-an-absent-machine-is-not-found",
    needs: ["patch_files"],
    why: "There is nothing left to change.",
    async run(context: CheckContext) {
      await context.expectCode(
        context.provider.updatePod!(
          context.id(),
          { files: [{ volume: "cfg", version: "v2", files: file("two") }] },
          { signal: context.signal },
        ),
        "not_found",
        "a patch of a machine that never was",
      );
    },
  },
  {
    name: "env-files/a-file-has-a-variable",
    needs: ENV_FILES,
    why: "A container is started with what an earlier one has written.",
    async run(context: CheckContext) {
      const { id } = await context.over("", {
        ...written(context, `echo "OTHER='no'" > /work/env; echo "KEY='from a file'" > /work/env`),
        containers: [
          context.container('echo "$A,$B"', {
            env: [inFile("A", "KEY"), { name: "B", value: "<@env A@>" }],
            env_tokens: { open: "@env ", close: "@" },
          }),
        ],
      });
      const shown = await outputOf(context, id);
      context.expect(
        shown === "from a file,<from a file>",
        "the value in the file, and the same where its token was",
        `the container sees ${JSON.stringify(shown)}`,
      );
    },
  },
  {
    name: "env-files/without-its-key-a-container-waits",
    needs: ENV_FILES,
    why: "It would run without what it was to be told.",
    async run(context: CheckContext) {
      const { id } = await context.create("", {
        ...written(context, `echo "OTHER='no'" > /work/env`),
        labels: context.labelsOf("no-key"),
        containers: [context.container("true", { env: [inFile("A", "KEY")] })],
      });
      await context.until(id, "its container to wait for its configuration", (machine) => {
        const { state, reason } = mainOf(machine);
        context.expect(
          state === "waiting",
          "a container that does not start",
          `its container, without the key, is ${state}`,
        );
        return reason === "CreateContainerConfigError";
      });
    },
  },
  {
    name: "env-files/what-is-optional-is-left-out",
    needs: ENV_FILES,
    why: "A variable that is empty is not one that is not there.",
    async run(context: CheckContext) {
      const { id } = await context.over("", {
        ...written(context, `echo "OTHER='no'" > /work/env`),
        labels: context.labelsOf("optional"),
        containers: [
          context.container('echo "$A$B"', {
            env: [
              { name: "A", value: "before" },
              inFile("A", "KEY", { optional: true }),
              inFile("B", "KEY", { optional: true }),
            ],
          }),
        ],
      });
      const shown = await outputOf(context, id);
      context.expect(shown === "before", "the variable that it has without", `it sees ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "address/stands-where-its-token-did",
    needs: ["pod_ip"],
    why: "Programs are told their own address by `status.podIP`.",
    async run(context: CheckContext) {
      const machine = await context.running("", {
        labels: context.labelsOf("address"),
        address_tokens: { pod_ip: "@conformance-ip@", pod_ips: "@conformance-ips@" },
        containers: [
          context.container('echo "$ADDRESS"; sleep 3600', {
            env: [{ name: "ADDRESS", value: "<@conformance-ip@>" }],
          }),
        ],
      });
      let shown = "";
      await context.untilTrue("the container to print its address", async () => {
        shown = await outputOf(context, machine.id);
        return shown !== "";
      });
      const { addresses } = await context.get(machine.id);
      context.expect(
        shown === `<${addresses[0]?.ip}>`,
        `the machine's first address, ${addresses[0]?.ip}`,
        `the container sees ${shown}`,
      );
    },
  },
  {
    name: "stats/are-of-now",
    needs: ["stats"],
    why: "An old sample scales by what was.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER, { labels: context.labelsOf("now") });
      const sample = async () => {
        const all = await context.provider.getStats!({ signal: context.signal, labels: context.labels });
        return all.find((stats) => stats.id === id);
      };
      await context.untilTrue("a sample of the machine", async () => (await sample()) !== undefined);
      const at = (await sample())?.at ?? "";
      const offMs = Math.abs(Date.parse(at) - context.clock.now());
      context.expect(offMs < 5 * 60_000, "a sample of the last five minutes", `it is of ${at}`);
      const main = mainOf(await context.get(id));
      const container = (await sample())?.containers.find(({ name }) => name === "main");
      context.expect(
        main.started_at === undefined || container?.started_at.slice(0, 19) === main.started_at.slice(0, 19),
        `the sample to name the start of the instance, ${main.started_at}`,
        `it names ${container?.started_at}`,
      );
    },
  },
];
