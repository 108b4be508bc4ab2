/** Calls of a runtime that is away for a while. */
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { expect, onTestFinished, test } from "vitest";
import { RuntimeService } from "../../../providers/local/engines/cri/api.gen.js";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { RecordedTracing } from "../../support/recorded-tracing.ts";

/** A runtime that does not run yet. @param onCall every call of it, by name; `cut` ends all its connections */
function runtime(onCall: (name: string, cut: () => void, headers: Headers) => void) {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-runtime-"));
  const path = join(dir, "s");
  const sessions = new Set<ServerHttp2Session>();
  const cut = () => sessions.forEach((session) => session.destroy());
  const server: Http2Server = createServer(
    connectNodeAdapter({
      routes: (router) => {
        router.service(RuntimeService, {
          version(_request, { requestHeader }) {
            onCall("version", cut, requestHeader);
            return { runtimeName: "r" };
          },
          createContainer(_request, { requestHeader }) {
            onCall("createContainer", cut, requestHeader);
            return { containerId: "c" };
          },
        });
      },
    }),
  );
  server.on("session", (session) => {
    sessions.add(session);
    session.once("close", () => sessions.delete(session));
  });
  const clients: CriClient[] = [];
  onTestFinished(() => {
    for (const client of clients) client.close();
    cut();
    server.close();
    rmSync(dir, { recursive: true, force: true });
  });
  return {
    start: () => once(server.listen(path), "listening"),
    client(patience?: typeof systemClock, tracing?: RecordedTracing) {
      const client = new CriClient(path, patience, tracing);
      clients.push(client);
      return client;
    },
  };
}

test("what is asked while the runtime is away is answered when it is back", async () => {
  const { start, client } = runtime(() => {});
  const patient = client(systemClock);
  const created = patient.runtime.createContainer({}, patient.within());
  const impatient = client();
  await expect(impatient.runtime.createContainer({}, impatient.within())).rejects.toThrow("ENOENT");
  await start();
  expect((await created).containerId).toBe("c");
});

test("a call that was cut off is made again when it only tells", async () => {
  let calls = 0;
  const { start, client } = runtime((_name, cut) => {
    if (calls++ === 0) cut();
  });
  await start();
  const patient = client(systemClock);
  expect((await patient.runtime.version({}, patient.within())).runtimeName).toBe("r");
  expect(calls).toBe(2);
});

test("a call that was cut off is not made again when it may have had its effect", async () => {
  let calls = 0;
  const { start, client } = runtime((_name, cut) => {
    calls++;
    cut();
  });
  await start();
  const patient = client(systemClock);
  await expect(patient.runtime.createContainer({}, patient.within())).rejects.toThrow();
  expect(calls).toBe(1);
});

test("a runtime that stays away is waited for no longer than the call may take", async () => {
  const patient = runtime(() => {}).client(systemClock);
  await expect(patient.runtime.version({}, patient.within(250))).rejects.toThrow("ENOENT");
});

test("the runtime is told which trace a call is part of, and of calls outside of any nothing", async () => {
  const told: (string | null)[] = [];
  const { start, client } = runtime((_name, _cut, headers) => void told.push(headers.get("traceparent")));
  await start();
  const tracing = new RecordedTracing();
  const traced = client(systemClock, tracing);
  const span = tracing.begin("sandbox.open", {});
  await tracing.within(span, () => traced.runtime.version({}, traced.within()));
  await traced.runtime.version({}, traced.within());
  expect(told).toEqual([span.context.traceparent, null]);
});
