import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/provider.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import type { PodEvent } from "../../../src/podspec/types.ts";
import { AgentProber } from "../../../src/pods/agent-prober.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { waitFor, must } from "../../e2e/harness/wait.ts";
import { pod } from "../../support/builders.ts";
import { machine, running } from "./fixtures.ts";

describe("AgentProber", () => {
  let server: Server;
  let status: number;
  let events: PodEvent[];
  let changes: number;
  let prober: AgentProber;
  let probed: Pod;
  let subject: Machine;
  let isActive: boolean;

  beforeEach(async () => {
    status = 200;
    events = [];
    changes = 0;
    isActive = true;
    server = createServer((_request, response) => response.writeHead(status).end());
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    prober = new AgentProber({
      provider: new MemoryProvider(),
      isActive: () => isActive,
      onChange: () => changes++,
      event: (_pod, event) => void events.push(event),
      clock: systemClock,
      logger: silentLogger,
    });
    const readinessProbe = { httpGet: { path: "/", port: "web" }, periodSeconds: 1, failureThreshold: 1 };
    probed = pod({
      spec: {
        containers: [{ name: "app", image: "a", ports: [{ name: "web", containerPort: port }], readinessProbe }],
      },
    });
    subject = machine({ addresses: [{ ip: "127.0.0.1" }] });
  });
  afterEach(() => {
    prober.release("u1");
    server.close();
  });

  const isReady = () => prober.apply(probed, subject).containers[0]!.ready;

  test("holds a container back until its probe succeeds, then says that something changed", async () => {
    expect(isReady()).toBe(false);
    await waitFor({ what: "the container to be ready" }, () => must(isReady(), events));
    expect(changes).toBe(1);
  });

  test("probes nothing any more when it is closed", () => {
    isReady();
    prober.close();
    expect(prober.tallies()).toEqual([]);
  });

  test("counts how its probes came out", async () => {
    isReady();
    await waitFor({ what: "a success" }, () => must(prober.tallies()[0]?.tally.successful === 1, prober.tallies()));
    status = 503;
    await waitFor({ what: "a failure" }, () => must(prober.tallies()[0]?.tally.failed === 1, prober.tallies()));
    expect(prober.tallies()).toEqual([
      { podUid: "u1", container: "app", tally: { probe: "readiness", successful: 1, failed: 1, unknown: 0 } },
    ]);
  });

  test("says that a probe failed, in kubelet's words, at the container", async () => {
    status = 503;
    isReady();
    await waitFor({ what: "an event" }, () => must(events.length > 0, events));
    expect(events[0]).toEqual({
      type: "Warning",
      reason: "Unhealthy",
      message: "Readiness probe failed: HTTP probe failed with statuscode: 503",
      fieldPath: "spec.containers{app}",
    });
    expect(isReady()).toBe(false);
  });

  test("keeps what the API server says of the same instance until it knows better", () => {
    const containerStatuses = [
      { name: "app", ready: true, containerID: "vmlet://app-0", image: "", imageID: "", restartCount: 0 },
    ];
    probed = { ...probed, status: { ...probed.status, containerStatuses } };
    expect(isReady()).toBe(true);
  });

  test("begins anew with a new instance", async () => {
    isReady();
    await waitFor({ what: "the container to be ready" }, () => must(isReady(), events));
    subject = machine({ addresses: [{ ip: "127.0.0.1" }], containers: [running("app", { id: "app-1" })] });
    expect(isReady()).toBe(false);
  });

  test("leaves containers without a probe as the backend says", () => {
    expect(prober.apply(pod(), machine()).containers[0]!.ready).toBe(true);
  });

  test("does nothing while the backend runs the probes", () => {
    isActive = false;
    expect(isReady()).toBe(true);
  });

  test("stops when the backend begins to run the probes", () => {
    isReady();
    isActive = false;
    isReady();
    expect(prober.tallies()).toEqual([]);
  });
});
