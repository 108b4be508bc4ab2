/** Turns a table of cases into tests: every case, with every fault, in a namespace of its own, judged by the history. */
import { afterAll, beforeAll, describe, test } from "vitest";
import type { Json } from "../harness/client.ts";
import { HttpError } from "../harness/client.ts";
import { must, waitFor } from "../harness/wait.ts";
import { sliced } from "../../support/slice.ts";
import { inject, type CaseEnvironment, type Fault } from "./environment.ts";
import type { Case } from "./pod-cases.ts";
import { Pods } from "./pods.ts";

export interface SuiteOptions {
  start: () => Promise<CaseEnvironment>;
  startTimeoutMs: number;
  cases: readonly Case[];
  faults: readonly Fault[];
  /** A case that is not run with this fault here. */
  leaveOut?: ((each: Case, fault: Fault) => boolean) | undefined;
  timeoutMs: number;
  /**
   * Run the cases of one fault at the same time. Faster, and harsher: what is killed for one case is killed in the middle
   * of the others as well. Not for the API server, whose restart a case must be able to tell from a failure of its own.
   */
  concurrent?: boolean | undefined;
  /** Namespaces that `start` has made, for an agent that has rights in named ones only; else each case makes its own. */
  namespaces?: readonly string[] | undefined;
}

/** Which slice of the cases a fault meets: no case is left out of all of them. */
let groups = 0;

export function describeCases(title: string, options: SuiteOptions): void {
  describe(title, () => {
    let env: CaseEnvironment;
    beforeAll(async () => {
      env = await options.start();
    }, options.startTimeoutMs);
    afterAll(() => env?.[Symbol.asyncDispose]());

    let serial = 0;
    for (const fault of options.faults) {
      describe(fault === "nothing" ? "undisturbed" : `while ${fault} is killed`, () => {
        const disturb = oneAtATime(() => inject(env, fault));
        const define = options.concurrent ? test.concurrent : test;
        const slice = groups++;
        const cases = sliced(
          options.cases.filter((each) => !options.leaveOut?.(each, fault)),
          slice,
        );
        define.for(cases)("$name", { timeout: options.timeoutMs }, async ({ run }) => {
          const at = serial++;
          const given = options.namespaces?.[at];
          if (options.namespaces && given === undefined) throw new Error("All namespaces were given out: make more");
          const pods = new Pods(
            env.client,
            given ?? (await createNamespace(env, `case-${at}`)),
            env.nodeName,
            env.patience,
          );
          try {
            await run({ env, pods, disturb });
          } catch (thrown) {
            const message = thrown instanceof Error ? thrown.message : String(thrown);
            throw new Error(`${message}\n${await describePods(pods)}\n${await env.agent.logTail()}`, { cause: thrown });
          } finally {
            await emptyNamespace(env, pods);
          }
          await env.history.check(pods.namespace);
        });
      });
    }
  });
}

async function describePods(pods: Pods): Promise<string> {
  const lines = (await pods.list()).map(({ metadata, spec, status }) => {
    const { name, uid, deletionTimestamp = "" } = metadata;
    const { phase, reason = "", message = "", containerStatuses = [] } = status;
    const states = containerStatuses.map((each: Json) => JSON.stringify(each.state)).join(" ");
    return [
      name,
      uid,
      spec.nodeName ?? "(no node)",
      phase,
      reason,
      message,
      states,
      deletionTimestamp && `deleted ${deletionTimestamp}`,
    ]
      .filter(Boolean)
      .join("  ");
  });
  return ["Pods at the time:", ...lines].join("\n");
}

/**
 * Kills must not overlap: one waits until what was killed before runs again. Whoever asks while one waits shares it, so
 * that cases that run at the same time do not each pay for a start.
 */
function oneAtATime(kill: () => Promise<void>): () => Promise<void> {
  let last = Promise.resolve();
  let waiting: Promise<void> | undefined;
  return () => {
    waiting ??= last.then(() => {
      waiting = undefined;
      return kill();
    });
    last = waiting.catch(() => undefined);
    return waiting;
  };
}

/** A namespace in which pods can be created: with its default ServiceAccount where the cluster makes one. */
export async function createNamespace(env: Pick<CaseEnvironment, "client">, name: string): Promise<string> {
  await env.client.create("/api/v1/namespaces", { metadata: { name } });
  await waitFor({ what: `the default ServiceAccount of ${name}` }, () =>
    env.client.get(`/api/v1/namespaces/${name}/serviceaccounts/default`),
  );
  return name;
}

/** Removes controllers first: they would replace the pods. */
async function emptyNamespace(env: CaseEnvironment, pods: Pods): Promise<void> {
  for (const path of [
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/statefulsets",
    "/apis/apps/v1/daemonsets",
    "/apis/batch/v1/jobs",
  ]) {
    const [, , group, version, resource] = path.split("/");
    const list = await env.client.get(path).catch((thrown: unknown) => {
      // devcluster has no workload controllers, and so no such resources.
      if (thrown instanceof HttpError && thrown.status === 404) return { items: [] };
      throw thrown;
    });
    for (const { metadata } of list.items.filter((each: Json) => each.metadata.namespace === pods.namespace)) {
      const object = `/apis/${group}/${version}/namespaces/${pods.namespace}/${resource}/${metadata.name}`;
      await env.client.delete(object, { propagationPolicy: "Background" });
      await waitFor({ what: `${object} to be gone` }, async () => {
        const gone = await env.client.get(object).then(
          () => false,
          (thrown: unknown) => thrown instanceof HttpError && thrown.status === 404,
        );
        must(gone, "still there");
      });
    }
  }
  await pods.deleteAll();
}
