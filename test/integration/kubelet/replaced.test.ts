/** Sessions and logs that are open while the pod behind them, or the agent that serves them, is replaced. */
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import { afterEach, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { ask, statusOf } from "./client.ts";
import { startKubelet, TestAuthority, testPod, type TestKubelet } from "./support.ts";

const opened: WebSocket[] = [];
afterEach(() => {
  for (const socket of opened.splice(0)) socket.terminate();
});

/** An exec of `cat`, and what it has written. */
async function openCat(kubelet: TestKubelet): Promise<{ socket: WebSocket; closed: Promise<unknown>; said(): string }> {
  const url = `${kubelet.url.replace("https", "wss")}/exec/default/p/main?command=cat&input=1&output=1`;
  const socket = new WebSocket(url, ["v5.channel.k8s.io"], { ...kubelet.client, ca: kubelet.authority.cert });
  opened.push(socket);
  let output = "";
  socket.on("message", (data: Buffer) => {
    if (data[0] === 1) output += data.subarray(1).toString();
  });
  const closed = once(socket, "close");
  await once(socket, "open");
  return { socket, closed, said: () => output };
}

const send = (socket: WebSocket, text: string) => socket.send(Buffer.concat([Buffer.of(0), Buffer.from(text)]));

describe("a session in a pod that is made again under the same name", () => {
  test("is the old pod's, and ends with it; a new one is in the new pod", async () => {
    await using kubelet = await startKubelet();
    const machines: string[] = [];
    const processes: { close(): void }[] = [];
    const exec = kubelet.provider.exec.bind(kubelet.provider);
    kubelet.provider.exec = async (id, ...rest) => {
      const process = await exec(id, ...rest);
      machines.push(id);
      processes.push(process);
      return process;
    };
    const old = await openCat(kubelet);
    kubelet.pods.set("default/p", { pod: testPod({ uid: "uid-2" }), machineId: "m-2" });
    const next = await openCat(kubelet);
    expect(machines).toEqual(["m-1", "m-2"]);

    send(old.socket, "to the old one");
    await waitFor({ what: "the old session to answer" }, () => must(old.said() === "to the old one", old.said()));
    expect(next.said()).toBe("");
    processes[0]!.close();
    await old.closed;
    send(next.socket, "still here");
    await waitFor({ what: "the new session to answer" }, () => must(next.said() === "still here", next.said()));
  });

  test("cannot be opened by the old pod's UID any more", async () => {
    await using kubelet = await startKubelet();
    kubelet.pods.set("default/p", { pod: testPod({ uid: "uid-2" }), machineId: "m-2" });
    const headers = { connection: "Upgrade", upgrade: "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io" };
    const path = "/exec/default/p/uid-1/main?command=true&output=1";
    expect(statusOf(await ask(kubelet, path, { method: "POST", headers })).code).toBe(404);
  });
});

describe("a session that is open while the serving certificate is replaced", () => {
  test("goes on, and who comes next is shown the new one", async () => {
    await using kubelet = await startKubelet();
    const session = await openCat(kubelet);
    kubelet.certificate.set(new TestAuthority("other").issue({ commonName: "vm-1" }, "serverAuth"));
    await expect(ask(kubelet, "/pods")).rejects.toThrow(/certificate/);
    send(session.socket, "still here");
    await waitFor({ what: "the session to answer" }, () => must(session.said() === "still here", session.said()));
  });
});

describe("a log that is followed while the agent is replaced", () => {
  const FOLLOW = "/containerLogs/default/p/main?follow=true";

  test("breaks off, for its end would look like the container's; followed again, it has each line once", async () => {
    await using first = await startKubelet();
    const { provider } = first;
    provider.log("one");
    const begun = Promise.withResolvers<IncomingMessage>();
    const broken = ask(first, FOLLOW, { onStart: (reply) => begun.resolve(reply) });
    const reply = await begun.promise;
    await once(reply, "data");
    const cut = expect(broken).rejects.toThrow(/aborted|ECONNRESET|cut off/);
    await first.server.close(0);
    await cut;

    await using second = await startKubelet({ provider: provider as never });
    provider.log("two");
    const whole = await ask(second, FOLLOW, { onStart: () => provider.endLogs() });
    expect(whole).toMatchObject({ status: 200, body: "one\ntwo\n" });
  });
});

describe("a session that may go on for a second", () => {
  const limits = { sessionMaxAgeMs: 1_000 };

  test("is ended, though something moves all the time, and its command with it", async () => {
    await using kubelet = await startKubelet({ limits });
    const ended = Promise.withResolvers<void>();
    const exec = kubelet.provider.exec.bind(kubelet.provider);
    kubelet.provider.exec = async (...args) => {
      const process = await exec(...args);
      void process.exit.then(
        () => ended.resolve(),
        () => ended.resolve(),
      );
      return process;
    };
    const cat = await openCat(kubelet);
    const chatter = setInterval(() => send(cat.socket, "still here"), 20);
    await cat.closed;
    clearInterval(chatter);
    await ended.promise;
  });

  test("leaves no followed log behind", async () => {
    await using kubelet = await startKubelet({ limits });
    const ended = Promise.withResolvers<void>();
    kubelet.provider.getLogs = async function* (_id, _container, { signal }) {
      yield { at: "2026-01-01T00:00:00Z", stream: "stdout", content: Buffer.from("first"), partial: false };
      await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
      ended.resolve();
      throw signal.reason;
    };
    const answer = ask(kubelet, "/containerLogs/default/p/main?follow=true");
    await ended.promise;
    await answer.catch(() => undefined);
  });
});
