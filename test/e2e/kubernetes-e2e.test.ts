/**
 * Kubernetes' own tests of logs, exec, attach and port-forward, unchanged, against a node whose machines are plain processes:
 * what that engine can carry of them. The WebSocket tests of [sig-node] Pods are not among them, because their pods want to
 * run as another user, and of the logs of Deployments neither, because their replicas want the same port of one host. The
 * engines with images run those and the whole conformance suite (test/conformance).
 */
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startRealEnvironment } from "./cases/start.ts";
import { kubectlBinary } from "./harness/binaries.ts";
import { buildAgnhost, buildKubernetesSuite } from "./harness/build.ts";
import { runSuite, suiteImages, type SpecResult } from "./kubernetes-suite.ts";

const specs = [
  "[sig-node] Kubelet when scheduling a busybox command in a pod should print the output to logs",
  "[sig-cli] Kubectl logs logs should be able to retrieve and filter logs",
  "[sig-cli] Kubectl logs default container logs the second container is the default-container by annotation should log default container if not specified",
  "[sig-cli] Kubectl client Simple pod should support exec",
  "[sig-cli] Kubectl client Simple pod should support exec using resource/name",
  "[sig-cli] Kubectl client Simple pod should support exec through kubectl proxy",
  "[sig-cli] Kubectl client Simple pod should support inline execution and attach",
  "[sig-cli] Kubectl client Simple pod should support inline execution and attach with websockets or fallback to spdy",
  "[sig-cli] Kubectl client Simple pod should contain last line of the log",
  "[sig-cli] Kubectl client Simple pod should return command exit codes should support port-forward",
  "[sig-cli] Kubectl client Simple pod should return command exit codes execing into a container with a successful command",
  "[sig-cli] Kubectl client Simple pod should return command exit codes execing into a container with a failing command",
  "[sig-cli] Kubectl client Simple pod Kubectl run running a successful command",
  "[sig-cli] Kubectl client Simple pod Kubectl run running a failing command",
  "[sig-cli] Kubectl Port forwarding Shutdown client connection while the remote stream is writing data to the port-forward connection port-forward should keep working after detect broken connection",
  "[sig-cli] Kubectl Port forwarding with a pod being removed should stop port-forwarding",
];

let env: Awaited<ReturnType<typeof startRealEnvironment>>;
let results: SpecResult[];

beforeAll(async () => {
  const [binary, agnhost, kubectl] = [await buildKubernetesSuite(), await buildAgnhost(), await kubectlBinary()];
  env = await startRealEnvironment({
    nodeName: "vmlet-kubernetes-e2e",
    node: { taints: [] },
    images: programsOf(await suiteImages(binary), agnhost),
  });
  results = await runSuite({
    binary,
    kubeconfig: env.kubeconfig,
    kubectl,
    specs,
    dir: join(env.dir, "kubernetes-e2e"),
    timeoutMinutes: 8,
  });
  console.log(
    results
      .map(({ state, seconds, attempts, name }) => {
        const again = attempts > 1 ? ` (attempt ${attempts})` : "";
        return `${state} ${seconds.toFixed(0).padStart(4)} s  ${name}${again}`;
      })
      .join("\n"),
  );
}, 2_400_000);
afterAll(() => env?.[Symbol.asyncDispose]());

/** What runs for an image: agnhost as its image has it (entrypoint `/agnhost`, command `pause`); busybox by this host's tools. */
function programsOf(images: readonly string[], agnhost: string): Record<string, string[]> {
  const programs: Record<string, string[]> = {
    agnhost: ["/bin/sh", "-c", '[ $# -gt 0 ] || set -- pause; exec "$0" "$@"', agnhost],
    busybox: ["env"],
    pause: [agnhost, "pause"],
  };
  return Object.fromEntries(
    images.flatMap((image) => {
      const program = programs[/([^/]+):[^:]+$/.exec(image)?.[1] ?? ""];
      return program ? [[image, program]] : [];
    }),
  );
}

test.each(specs)("%s", (name) => {
  const result = results.find((each) => each.name.replaceAll(/( \[[^\]]+\])+$/g, "") === name);
  expect(result, "it did not run").toBeDefined();
  expect(result!.failure).toBe("");
  expect(result!.state).toBe("passed");
});
