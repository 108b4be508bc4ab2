import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { heldConnection } from "../../../providers/local/engines/cri/held-connection.ts";

test("a held connection passes bytes both ways, and its end is seen at once when it is closed", async () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-held-"));
  const server = createServer().listen(join(dir, "s"));
  onTestFinished(() => {
    server.close();
    rmSync(dir, { recursive: true, force: true });
  });
  await once(server, "listening");
  const socket = heldConnection(join(dir, "s"), 1000);
  const [theirs] = (await once(server, "connection")) as [Socket];
  socket.write("ask");
  expect(String((await once(theirs, "data"))[0])).toBe("ask");
  theirs.write("answer");
  expect(String((await once(socket, "data"))[0])).toBe("answer");
  theirs.resume();
  const ended = once(theirs, "close");
  socket.destroy();
  await ended;
});
