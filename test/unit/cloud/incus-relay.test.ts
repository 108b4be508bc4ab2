import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { WebSocketServer } from "ws";
import { IncusClient } from "../../../providers/cloud/incus/client.ts";
import { dialGuest } from "../../../providers/cloud/incus/relay.ts";

const FDS = ["0", "1", "2", "control"];

/** An Incus of one operation, whose streams are the secrets' names. @param accepts false: it never answers */
async function incus(accepts: (fd: string, opened: readonly string[]) => boolean) {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-relay-"));
  const opened: string[] = [];
  const streams = new WebSocketServer({ noServer: true });
  const server = createServer((_request, response) =>
    response.end(
      JSON.stringify({
        operation: "/1.0/operations/one",
        metadata: { metadata: { fds: Object.fromEntries(FDS.map((fd) => [fd, fd])) } },
      }),
    ),
  );
  server.on("upgrade", (request, socket, head) => {
    const fd = new URL(request.url!, "http://incus").searchParams.get("secret")!;
    const isTaken = accepts(fd, opened);
    opened.push(fd);
    if (isTaken) streams.handleUpgrade(request, socket, head, () => {});
  });
  const path = join(dir, "incus.sock");
  server.listen(path);
  await once(server, "listening");
  const client = new IncusClient({ url: `unix://${path}`, project: "burst" });
  onTestFinished(async () => {
    await client.close();
    for (const socket of streams.clients) socket.terminate();
    server.closeAllConnections();
    server.close();
    rmSync(dir, { recursive: true, force: true });
  });
  return { client, opened };
}

const signal = AbortSignal.timeout(30_000);

test("the command starts when its streams are there, so the control stream is opened before them", async () => {
  const { client, opened } = await incus(() => true);
  const stream = await dialGuest(client, "vm", { signal });
  stream.destroy();
  expect(opened[0]).toBe("control");
  expect(opened.toSorted()).toEqual(FDS);
});

test("without its control stream no other is opened, for the operation may be over by then", async () => {
  const { client, opened } = await incus((fd) => fd !== "control");
  const cancel = new AbortController();
  const dialled = dialGuest(client, "vm", { signal: cancel.signal });
  await expect.poll(() => opened).toEqual(["control"]);
  cancel.abort();
  await expect(dialled).rejects.toThrow();
  expect(opened).toEqual(["control"]);
});

test("a way in that does not open before Incus gives it up is unavailable", async () => {
  const { client } = await incus((fd) => fd !== "2");
  await expect(dialGuest(client, "vm", { signal, setupMs: 50 })).rejects.toMatchObject({
    code: "unavailable",
    message: "Incus has not opened a way into vm within 0.05 s",
  });
});
