import { once } from "node:events";
import { createServer, type RequestListener } from "node:http";
import { connect, type AddressInfo, type Socket } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { Connections, type ConnectionLimits } from "../../../src/http/connections.ts";

const open: { destroy(): void }[] = [];
afterEach(() => {
  for (const each of open.splice(0)) each.destroy();
});

/** A server that trusts clients that ask for /let-me-in or /OWNER, and answers at once, except for /.../slow. */
async function serve(limits: ConnectionLimits) {
  const answer: RequestListener = (request, response) => {
    const [, owner = ""] = request.url!.split("/");
    const trusted = owner === "stranger" ? "no" : connections.trust(request.socket, owner);
    response.setHeader("trusted", String(trusted)).flushHeaders();
    if (!request.url!.endsWith("/slow")) response.end();
  };
  const server = createServer(answer);
  const connections = new Connections(server, limits);
  server.on("upgrade", (request, socket) => {
    connections.trust(request.socket, "upgraded");
    socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  open.push({ destroy: () => (connections.destroyAll(), server.close()) });
  const { port } = server.address() as AddressInfo;
  /** Connects, and is on the server's books when it resolves. */
  const join = async (localAddress = "127.0.0.1"): Promise<Socket> => {
    const accepted = once(server, "connection");
    const socket = connect({ port, host: "127.0.0.1", localAddress }).on("error", () => {});
    open.push(socket);
    await accepted;
    return socket;
  };
  return { join, connections };
}

/** Sends a request and waits for the head of the reply. */
async function ask(socket: Socket, path: string, headers = ""): Promise<string> {
  socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\n${headers}\r\n`);
  const [head] = (await once(socket, "data")) as [Buffer];
  return head.toString();
}

const gone = (socket: Socket) => (socket.resume(), once(socket, "close"));

/** Once another connection has come in and been answered, the connections that had to be dropped have been. */
async function stays(socket: Socket): Promise<boolean> {
  return (await ask(socket, "/stranger")).startsWith("HTTP/1.1 200");
}

describe("where there is no room", () => {
  test("a newcomer takes the place of the stranger that has been silent for longest", async () => {
    const { join } = await serve({ total: 3 });
    const [first, second, third] = [await join(), await join(), await join()];
    await ask(first, "/stranger");
    const newcomer = await join();
    await gone(second);
    expect([await stays(first), await stays(third), await stays(newcomer)]).toEqual([true, true, true]);
  });

  test("the address with most strangers pays, not one that has a single connection", async () => {
    const { join } = await serve({ total: 4 });
    const single = await join("127.0.0.2");
    const many = [await join("127.0.0.3"), await join("127.0.0.3"), await join("127.0.0.3")];
    await join("127.0.0.4");
    await gone(many[0]!);
    expect(await stays(single)).toBe(true);
  });

  test("a trusted connection stays while there are strangers", async () => {
    const { join } = await serve({ total: 2 });
    const trusted = await join();
    await ask(trusted, "/me");
    const stranger = await join();
    await join();
    await gone(stranger);
    expect(await stays(trusted)).toBe(true);
  });

  test("a trusted one that is idle goes for a newcomer when there are no strangers, the longest idle first", async () => {
    const { join } = await serve({ total: 2 });
    const [first, second] = [await join(), await join()];
    await ask(first, "/me");
    await ask(second, "/me");
    await ask(first, "/me");
    const newcomer = await join();
    await gone(second);
    expect([await stays(first), await stays(newcomer)]).toEqual([true, true]);
  });

  test("nobody goes whose request is under way: the newcomer does", async () => {
    const { join } = await serve({ total: 2 });
    const [first, second] = [await join(), await join()];
    await ask(first, "/me/slow");
    expect(await ask(second, "/", "Connection: Upgrade\r\nUpgrade: x\r\n")).toContain("101");
    await gone(await join());
    expect([first.destroyed, second.destroyed]).toEqual([false, false]);
  });

  test("a stranger goes although its request is under way, or who reads slowly would keep the place", async () => {
    const { join } = await serve({ total: 1 });
    const slow = await join();
    await ask(slow, "/stranger/slow");
    await join();
    await gone(slow);
  });
});

describe("bounds", () => {
  test("of one address hold for its strangers alone", async () => {
    const { join } = await serve({ total: 10, strangersPerAddress: 1 });
    const trusted = await join();
    await ask(trusted, "/me");
    const first = await join();
    const second = await join();
    await gone(first);
    expect([await stays(trusted), await stays(second)]).toEqual([true, true]);
  });

  test("of one owner are told to the server, once all of the owner's connections are in use", async () => {
    const { join } = await serve({ total: 10, trustedPerOwner: 2 });
    const [idle, busy, next, last] = [await join(), await join(), await join(), await join()];
    await ask(idle, "/a");
    await ask(busy, "/a/slow");
    expect(await ask(next, "/a/slow")).toContain("trusted: true");
    await gone(idle);
    expect(await ask(last, "/a")).toContain("trusted: false");
    expect(await ask(last, "/b")).toContain("trusted: true");
  });

  test("count nobody who has left", async () => {
    const { join } = await serve({ total: 10, trustedPerOwner: 1 });
    const first = await join();
    await ask(first, "/a/slow");
    const left = gone(first);
    first.destroy();
    await left;
    const next = await join();
    await expect.poll(() => ask(next, "/a")).toContain("trusted: true");
  });
});

describe("bytes that are not HTTP", () => {
  async function withWords(limits: ConnectionLimits) {
    const { join, connections } = await serve(limits);
    connections.answerGarbage((_error, socket) => {
      socket.end("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
    return join;
  }

  test("are refused in words, also behind a request that was answered in whole", async () => {
    const join = await withWords({ total: 10 });
    const socket = await join();
    await ask(socket, "/stranger");
    socket.write("garbage\r\n\r\n");
    expect((await socket.toArray()).join("")).toContain("400 Bad Request");
  });

  test.each([
    ["an answer that goes on", "/stranger/slow", ""],
    ["a request that was answered before its end", "/stranger", "Transfer-Encoding: chunked\r\n"],
  ])("get no second answer after %s, which could be taken for that to the next request", async (_what, path, head) => {
    const join = await withWords({ total: 10 });
    const socket = await join();
    await ask(socket, path, head);
    socket.write("garbage\r\n\r\n");
    expect((await socket.toArray()).join("")).not.toContain("400 Bad Request");
  });
});

test("a server that is closing cuts newcomers off", async () => {
  const { join, connections } = await serve({ total: 10 });
  connections.close();
  await gone(await join());
});
