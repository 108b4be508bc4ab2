/** Runs the checklist in one environment; what cannot run there is left out by name. */
import { test } from "vitest";
import type { Capability } from "../../../../src/provider/capabilities.ts";
import type { ContainerEngine } from "../../../support/engines.ts";
import { busyboxImage, startRegistry } from "../../../support/registry.ts";
import { testNetwork } from "../../../support/host.ts";
import type { Environment } from "../environment.ts";
import type { StartOptions } from "../start.ts";
import { describeCases } from "../suite.ts";
import { asCase, namedCase, obstacle, type Surroundings } from "./case.ts";
import { checklist } from "./index.ts";

/** What the cases count on of the node. */
const NODE = {
  capacity: {
    cpu: "64",
    memory: "256Gi",
    pods: "1000",
    "ephemeral-storage": "1Ti",
    "example.com/licence": "1",
    "example.com/seat": "1",
  },
  runtimeHandlers: ["known"],
};

export interface Place extends Surroundings {
  options: StartOptions;
  stop(): Promise<void>;
}

/** A web server in one line of Node: a file's presence decides between 200 and 404. */
const nodeHttpd = (port: number, dir: string) =>
  `'${process.execPath}' -e 'require("http").createServer((q,r)=>{r.statusCode=require("fs").existsSync("${dir}"+q.url)?200:404;r.end()}).listen(${port})'`;

/** Engine `process`: containers are processes of this host. */
export function processPlace(capabilities: readonly Capability[], controllers: boolean): Place {
  return {
    capabilities,
    controllers,
    image: "busybox:1",
    hostFolder: ({ env }) => env.dir,
    httpd: nodeHttpd,
    options: { node: NODE },
    stop: () => Promise.resolve(),
  };
}

/** An engine that runs images, with a registry of its own. Needs what `missingForImages` does not name. */
export async function containerPlace(
  engine: ContainerEngine,
  capabilities: readonly Capability[],
  controllers: boolean,
): Promise<Place> {
  const registry = await startRegistry();
  const user = { name: "puller", password: "s3cret" };
  const closed = await startRegistry({ user });
  await closed.push("t/busybox:1", await busyboxImage());
  for (const tag of ["1", "2"]) await registry.push(`t/busybox:${tag}`, await busyboxImage());
  const { dir: _dir, ...network } = testNetwork("");
  return {
    capabilities,
    controllers,
    image: `${registry.host}/t/busybox:1`,
    privateImage: { image: `${closed.host}/t/busybox:1`, user },
    hostFolder: undefined,
    httpd: (port, dir) => `httpd -f -p ${port} -h ${dir}`,
    options: {
      node: NODE,
      engine: { type: engine, network, images: { insecureRegistries: [registry.host, closed.host] } },
    },
    async stop() {
      await registry.stop();
      await closed.stop();
    },
  };
}

export interface ChecklistOptions {
  start: (options: StartOptions) => Promise<Environment>;
  startTimeoutMs: number;
  /** A part of it, case after case, for engines whose machines take seconds each. Default: all, side by side. */
  only?: typeof checklist | undefined;
}

export function describeChecklist(
  title: string,
  place: Place,
  { start, startTimeoutMs, only = checklist }: ChecklistOptions,
): void {
  const possible = only.filter((each) => obstacle(each, place) === undefined);
  // One by one, because vitest takes an empty group for a mistake.
  for (const each of only.filter((one) => !possible.includes(one)))
    test.skip(`${title}: left out: ${namedCase(each)} (${obstacle(each, place)})`);
  describeCases(title, {
    async start() {
      const env = await start(place.options);
      return Object.assign(Object.create(env) as Environment, {
        async [Symbol.asyncDispose]() {
          await env[Symbol.asyncDispose]();
          await place.stop();
        },
      });
    },
    startTimeoutMs,
    cases: possible.map((each) => asCase(each, place)),
    faults: ["nothing"],
    timeoutMs: 180_000,
    concurrent: only === checklist,
  });
}
