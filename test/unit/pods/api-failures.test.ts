/** What the reconciler does when the API server, or something before it, does not take what it is told. */
import { beforeEach, describe, expect, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import { pod as basePod } from "../../support/builders.ts";
import { apiError } from "../../support/scripted-kube.ts";
import { World } from "./world.ts";

const NOT_FOUND = apiError(404, "NotFound", { details: { kind: "pods", name: "web" } });
const BY_A_PROXY = apiError(404, "HTTP404");
const patched = (request: KubeRequest) => Object.keys((request.body as { status: object }).status);

let world: World;
const sent = (method: string) => world.requests.filter((request) => request.method === method);
const says = (reason: string) => world.said(reason);

beforeEach(() => {
  world = new World(basePod({ spec: { terminationGracePeriodSeconds: 1 } }));
});

describe("a status with a field that the API server refuses for good", () => {
  const causes = [{ reason: "FieldValueInvalid", field: "status.containerStatuses[0].state", message: "no" }];
  beforeEach(() => {
    world.onRequest = (request) => {
      if (request.method === "PATCH" && patched(request).includes("containerStatuses"))
        throw apiError(422, "Invalid", { details: { causes } });
    };
  });

  test("is written without that field, and the pod is told so once", async () => {
    await world.settle();
    expect(world.pod.status).toMatchObject({ phase: "Running", podIP: expect.any(String) });
    expect(world.pod.status).not.toHaveProperty("containerStatuses");
    expect(says("FailedStatusUpdate")).toEqual([
      "The API server refuses the status of this pod, which is written without containerStatuses: 422 Invalid",
    ]);
  });

  test("is not sent again for as long as it says the same", async () => {
    await world.settle();
    const before = sent("PATCH").length;
    await world.pass(600_000);
    expect(sent("PATCH")).toHaveLength(before);
  });

  test("is tried again when the field says something else", async () => {
    await world.settle();
    const before = sent("PATCH").length;
    const containers = world.provider.machines[0]!.containers.map((each) => ({ ...each, restart_count: 1 }));
    await world.hear({ containers });
    await world.settle();
    expect(sent("PATCH").length).toBeGreaterThan(before);
  });

  test("keeps no pod from going", async () => {
    await world.settle();
    world.deletePod();
    await world.pass(10_000);
    expect(world.pod.status?.phase).toBe("Failed");
    expect(sent("DELETE")).not.toHaveLength(0);
  });
});

describe("a status that the API server refuses whole", () => {
  test.each([400, 413, 422])("with %i, is sent with phase and conditions only, and then not at all", async (status) => {
    world.onRequest = (request) => {
      if (request.method === "PATCH") throw apiError(status, "Invalid");
    };
    await world.settle();
    const fields = sent("PATCH").map(patched);
    expect(fields.at(-1)).toEqual(expect.arrayContaining(["phase", "conditions"]));
    expect(fields.at(-1)).toHaveLength(2);
    await world.pass(600_000);
    expect(sent("PATCH")).toHaveLength(fields.length);
    world.deletePod();
    await world.pass(10_000);
    expect(sent("DELETE")).not.toHaveLength(0);
  });
});

describe("a status that is forbidden", () => {
  test("for its annotations is written without them", async () => {
    world.onRequest = ({ method, body }) => {
      const { metadata } = (body ?? {}) as { metadata?: { annotations?: object } };
      if (method === "PATCH" && metadata?.annotations) throw apiError(403, "Forbidden");
    };
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
    expect(says("FailedStatusUpdate")).toHaveLength(1);
  });

  test("altogether is told, tried again, and keeps no pod from going for more than a minute", async () => {
    let isForbidden = true;
    world.onRequest = ({ method }) => {
      if (method === "PATCH" && isForbidden) throw apiError(403, "Forbidden");
    };
    expect(await world.settle()).toMatchObject({ kind: "retry" });
    expect(says("FailedStatusUpdate").at(-1)).toBe(
      "The API server does not take the status of this pod: 403 Forbidden",
    );
    isForbidden = false;
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
    isForbidden = true;
    world.deletePod();
    await world.pass(30_000);
    expect(sent("DELETE")).toHaveLength(0);
    await world.pass(60_000);
    expect(sent("DELETE")).not.toHaveLength(0);
  });
});

describe("a status that was decided on an old copy of the pod", () => {
  test("is decided again on the newest one at once, though the watch brings nothing", async () => {
    world.watched = world.pod;
    world.change({ annotations: { somebody: "else" } });
    expect(await world.settle()).toEqual({ kind: "settled" });
    expect(world.pod.status?.phase).toBe("Running");
  });

  test("is left to later when the API server says conflict though nothing changed", async () => {
    world.onRequest = ({ method }) => {
      if (method === "PATCH") throw apiError(409, "Conflict");
    };
    expect(await world.settle()).toMatchObject({ kind: "retry" });
    expect(sent("PATCH")).toHaveLength(1);
  });
});

describe("a 404 that is not the API server's own", () => {
  test("does not pass for the end of a pod that is being removed", async () => {
    await world.settle();
    let isProxyBroken = true;
    world.onRequest = ({ method }) => {
      if (method === "DELETE" && isProxyBroken) throw BY_A_PROXY;
    };
    world.deletePod();
    await world.pass(10_000);
    const before = sent("DELETE").length;
    expect(before).toBeGreaterThan(0);
    isProxyBroken = false;
    expect(await world.settle()).toMatchObject({ kind: "after" });
    expect(sent("DELETE")).toHaveLength(before + 1);
  });

  test("does not pass for the absence of a machine's pod", async () => {
    await world.settle();
    world.onRequest = () => {
      throw BY_A_PROXY;
    };
    world.goneFromCache();
    expect(await world.settle()).toMatchObject({ kind: "retry" });
    expect(world.provider.machines[0]!.state).toBe("running");
    world.onRequest = () => {
      throw NOT_FOUND;
    };
    await world.pass(10_000);
    expect(world.provider.machines).toEqual([]);
  });
});

describe("a pod whose object stays after it was removed", () => {
  test("is removed again, later and later", async () => {
    await world.settle();
    world.deletePod();
    await world.pass(600_000);
    // After 0, 30, 90, 210 and 450 seconds.
    expect(sent("DELETE")).toHaveLength(5);
  });
});
