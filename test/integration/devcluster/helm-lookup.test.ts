/** What the chart asks the cluster for while Helm renders it. */
import { cp, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { parse } from "yaml";
import { startDevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { helmBinary } from "../../e2e/harness/binaries.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import { createKubectl } from "../../e2e/harness/kubectl.ts";

const chart = join(import.meta.dirname, "../../../helm/vmlet");

/** The chart with one object, which says whom the network policy lets call the kubelet API: devcluster has no policies. */
async function callersChart(dir: string): Promise<string> {
  const folder = join(dir, "chart");
  await cp(chart, folder, { recursive: true });
  const templates = join(folder, "templates");
  for (const name of await readdir(templates))
    if (name !== "_helpers.tpl") await rm(join(templates, name), { recursive: true });
  const object = { apiVersion: "v1", kind: "ConfigMap", metadata: { name: "callers" } };
  const data = '{ from: {{ include "vmlet.kubeletFrom" . | quote }} }';
  await writeFile(join(templates, "callers.yaml"), `${JSON.stringify(object).slice(0, -1)}, "data": ${data}}`);
  return folder;
}

test.skipIf(process.arch !== "x64" || process.platform !== "linux")(
  "an API server with public addresses may call the kubelet API, of either family",
  async () => {
    const dir = await mkdtemp(join(tmpdir(), "vmlet-helm-"));
    const cluster = await startDevCluster({ clock: systemClock, logger: silentLogger });
    try {
      const kubeconfig = join(dir, "kubeconfig");
      await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
      const slice = {
        apiVersion: "discovery.k8s.io/v1",
        kind: "EndpointSlice",
        metadata: { name: "kubernetes", namespace: "default" },
        addressType: "IPv4",
        endpoints: [{ addresses: ["203.0.113.7"] }, { addresses: ["2001:db8::1"] }],
      };
      await writeFile(join(dir, "slice.json"), JSON.stringify(slice));
      const kubectl = await createKubectl(kubeconfig);
      await kubectl.run(["apply", "--filename", join(dir, "slice.json")]);
      const { stdout } = await runCommand(
        await helmBinary(),
        ["template", "burst", await callersChart(dir), "--kubeconfig", kubeconfig, "--dry-run=server"],
        { env: { PATH: process.env["PATH"], HOME: dir } },
      );
      const from = parse((parse(stdout) as { data: { from: string } }).data.from) as { ipBlock: { cidr: string } }[];
      const cidrs = from.map(({ ipBlock }) => ipBlock.cidr);
      expect(cidrs).toEqual(expect.arrayContaining(["10.0.0.0/8", "203.0.113.7/32", "2001:db8::1/128"]));
      expect(cidrs).not.toContain("0.0.0.0/0");
    } finally {
      await cluster.close();
      await rm(dir, { recursive: true, force: true });
    }
  },
);
