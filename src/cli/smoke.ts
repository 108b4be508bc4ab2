/**
 * `vmlet smoke NODE...`: a pod on each node, from creation to its end, as a user would see it: it must run, its log
 * must be readable through the API server, and it must be gone after it was deleted. `helm test` runs this.
 */
import { Command, InvalidArgumentError, Option } from "commander";
import { minutesToMilliseconds } from "date-fns/minutesToMilliseconds";
import { isNotFound } from "../kube/errors.ts";
import { loadKubeConfig } from "../kube/kubeconfig.ts";
import type { Kube } from "../kube/kube.ts";
import { podPath, resourcePath } from "../kube/paths.ts";
import { KubeTransport } from "../kube/transport.ts";
import type { Pod } from "../kube/wire.ts";
import { formatDuration, parseDuration } from "../resources/duration.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { systemClock, type Clock } from "../util/clock.ts";
import { toError, VmletError } from "../util/errors.ts";
import { signalToStop } from "./exit.ts";
import { requireNode } from "./no-such-node.ts";
import { Progress } from "./progress.ts";
import { VERSION } from "./version.ts";

const POLL_MS = 500;
const DEFAULT_TIMEOUT_MS = minutesToMilliseconds(3);

class SmokeError extends VmletError {
  readonly code = "SMOKE";
}

/** What the check needs of the API server: requests, and logs, which are not JSON. */
export type SmokeKube = Pick<Kube, "request"> & Pick<KubeTransport, "requestText">;

interface SmokeOptions {
  kube: SmokeKube;
  clock: Clock;
  node: string;
  namespace: string;
  image: string;
  /** With a security context as the restricted pod security standard wants it, which not every backend can keep. */
  restricted: boolean;
  timeoutMs: number;
  /** Told each step when it is done. */
  step: (text: string) => void;
  /** Ends the check early. */
  signal: AbortSignal;
}

interface SmokeFlags {
  kubeconfig?: string | undefined;
  namespace: string;
  image: string;
  restricted?: boolean | undefined;
  timeout: number;
}

export function smokeCommand(): Command {
  return new Command("smoke")
    .argument("<nodes...>", "names of the nodes")
    .option(
      "--kubeconfig <file>",
      "kubeconfig of the cluster (default: KUBECONFIG, ~/.kube/config, or the service account)",
    )
    .option("--namespace <name>", "where the pods are created", "default")
    .option("--image <image>", "image of the pods; it must have sh", "busybox:1.36")
    .option(
      "--restricted",
      "a pod that the restricted pod security standard accepts; the backend must have security_context",
    )
    .addOption(
      new Option("--timeout <duration>", "until a pod must run and be gone again")
        .argParser(milliseconds)
        .default(DEFAULT_TIMEOUT_MS, formatDuration(DEFAULT_TIMEOUT_MS)),
    )
    .action(async (nodes: string[], options: SmokeFlags) => {
      const { namespace, image, restricted = false } = options;
      const kube = new KubeTransport({
        kubeConfig: loadKubeConfig({ path: options.kubeconfig }),
        clock: systemClock,
        logger: silentLogger,
        version: VERSION,
      });
      const signal = signalToStop();
      const progress = new Progress();
      let failed = 0;
      for (const node of nodes) {
        const started = systemClock.monotonic();
        const seconds = () => ((systemClock.monotonic() - started) / 1000).toFixed(1);
        const working = progress.begin(`Smoke test of ${node}`);
        const step = (text: string) => {
          working.tell(text);
          progress.above(() => console.log(`${node}: ${text} (${seconds()} s)`));
        };
        try {
          await smoke({
            kube,
            clock: systemClock,
            node,
            namespace,
            image,
            restricted,
            timeoutMs: options.timeout,
            step,
            signal,
          });
        } catch (thrown) {
          failed++;
          step(`FAILED: ${toError(thrown).message}`);
        } finally {
          working();
        }
      }
      await kube.close();
      if (failed > 0) process.exitCode = 1;
    });
}

function milliseconds(text: string): number {
  try {
    return parseDuration(text);
  } catch {
    throw new InvalidArgumentError("it must be a duration such as 90s or 3m.");
  }
}

/**
 * @throws NoSuchNodeError; SmokeError that says which step failed and what was seen last; the pod is deleted in any
 * case
 */
export async function smoke(options: SmokeOptions): Promise<void> {
  const { kube, clock, node, namespace, image, restricted, timeoutMs, step } = options;
  const greeting = `vmlet smoke test of ${node}`;
  const deadline = clock.monotonic() + timeoutMs;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(timeoutMs)]);
  await requireNode(kube, node, signal);
  const created = await kube.request<Pod>({
    method: "POST",
    path: resourcePath({ resource: "pods", namespace }),
    body: smokePod({ node, image, restricted, greeting }),
    signal,
  });
  const path = podPath(namespace, created.metadata!.name!);
  try {
    step(`pod ${namespace}/${created.metadata!.name!} created`);
    await until(options, deadline, "the pod to run", async () => {
      const pod = await kube.request<Pod>({ method: "GET", path, signal });
      if (pod.spec?.nodeName !== undefined && pod.spec.nodeName !== node)
        throw new SmokeError(`the pod runs on ${pod.spec.nodeName}`);
      if (pod.status?.phase === "Running") return undefined;
      if (pod.status?.phase === "Failed") throw new SmokeError(`the pod failed: ${describe(pod)}`);
      return describe(pod);
    });
    step("pod runs");
    await until(options, deadline, "its log", async () => {
      const log = await kube.requestText({ method: "GET", path: `${path}/log`, signal });
      return log.includes(greeting) ? undefined : `${log.length} bytes`;
    });
    step("log read through the API server");
  } finally {
    // A check that timed out still cleans up.
    await kube.request({ method: "DELETE", path, signal: AbortSignal.timeout(30_000) }).catch((thrown: unknown) => {
      if (!isNotFound(thrown)) step(`pod not deleted: ${toError(thrown).message}`);
    });
  }
  await until(options, deadline, "the pod to be gone", async () => {
    try {
      const pod = await kube.request<Pod>({ method: "GET", path, signal });
      return pod.metadata?.uid === created.metadata?.uid ? describe(pod) : undefined;
    } catch (thrown) {
      if (isNotFound(thrown)) return undefined;
      throw thrown;
    }
  });
  step("pod deleted");
}

function smokePod({
  node,
  image,
  restricted,
  greeting,
}: {
  node: string;
  image: string;
  restricted: boolean;
  greeting: string;
}): object {
  // By its name: the label kubernetes.io/hostname is another when the node's configuration has a hostname.
  const isNode = { matchFields: [{ key: "metadata.name", operator: "In", values: [node] }] };
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: { generateName: "vmlet-smoke-", labels: { "app.kubernetes.io/component": "smoke-pod" } },
    spec: {
      affinity: { nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [isNode] } } },
      tolerations: [{ operator: "Exists" }],
      restartPolicy: "Never",
      terminationGracePeriodSeconds: 5,
      automountServiceAccountToken: false,
      ...(restricted && {
        securityContext: { runAsNonRoot: true, runAsUser: 65532, seccompProfile: { type: "RuntimeDefault" } },
      }),
      containers: [
        {
          name: "main",
          image,
          command: ["sh", "-c", `trap 'exit 0' TERM; echo "$GREETING"; sleep 600 & wait`],
          env: [{ name: "GREETING", value: greeting }],
          resources: { requests: { cpu: "10m", memory: "16Mi" } },
          ...(restricted && { securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ["ALL"] } } }),
        },
      ],
    },
  };
}

/** Calls `probe` until it returns undefined; what it returns is what is still missing. */
async function until(
  { clock, signal }: Pick<SmokeOptions, "clock" | "signal">,
  deadline: number,
  what: string,
  probe: () => Promise<string | undefined>,
): Promise<void> {
  let missing: string | undefined;
  do {
    try {
      missing = await probe();
      if (missing === undefined) return;
    } catch (thrown) {
      if (thrown instanceof SmokeError) throw thrown;
      missing = toError(thrown).message;
    }
    await clock.sleep(POLL_MS, signal);
  } while (clock.monotonic() < deadline);
  throw new SmokeError(`no more time to wait for ${what}; last seen: ${missing}`);
}

function describe(pod: Pod): string {
  const { phase, reason, message, conditions = [], containerStatuses = [] } = pod.status ?? {};
  const waiting = containerStatuses
    .flatMap(({ state }) => state?.waiting ?? [])
    .map((each) => [each.reason, each.message]);
  const unmet = conditions
    .filter((each) => each.status === "False")
    .map((each) => [each.type, each.reason, each.message]);
  return [phase, reason, message, ...waiting.flat(), ...unmet.flat()].filter(Boolean).join(", ") || "no status";
}
