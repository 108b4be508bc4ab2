/** Sessions whose bytes nobody takes, and more of them than there may be. */
import { randomBytes } from "node:crypto";
import { get, type IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import type WebSocket from "ws";
import { fill } from "../../e2e/harness/wait.ts";
import type { HostileCase } from "./case.ts";
import { openExec } from "./exec.ts";
import type { Tenant } from "./tenant.ts";

const MIB = 2 ** 20;

export const streamCases: readonly HostileCase[] = [
  {
    name: "writes to commands that read nothing",
    async begin(tenant) {
      await tenant.pod("process", "deaf");
      await tenant.untilRunning("deaf");
      const sockets = await openSessions(tenant, "deaf", 20, ["sleep", "1000"]);
      const stdin = (chunk: Buffer) => Buffer.concat([Buffer.from([0]), chunk]);
      await Promise.all(sockets.map((socket) => pour(socket, 32 * MIB, (chunk) => socket.send(stdin(chunk)))));
      return { end: () => closeAll(sockets) };
    },
  },
  {
    name: "begins WebSocket messages as large as may be and ends none",
    async begin(tenant) {
      await tenant.pod("process", "begun");
      await tenant.untilRunning("begun");
      const sockets = await openSessions(tenant, "begun", 40, ["sleep", "1000"]);
      await Promise.all(
        sockets.map((socket) => {
          const raw = rawSocket(socket);
          raw.write(frameHeader(31 * MIB));
          return pour(socket, 30 * MIB, (chunk) => raw.write(chunk));
        }),
      );
      return { end: () => closeAll(sockets) };
    },
  },
  {
    name: "reads nothing of commands that write for ever",
    async begin(tenant) {
      await tenant.pod("process", "loud");
      await tenant.untilRunning("loud");
      const sockets = await openSessions(tenant, "loud", 10, ["yes", "x".repeat(1000)]);
      for (const socket of sockets) rawSocket(socket).pause();
      return { end: () => closeAll(sockets) };
    },
  },
  {
    name: "follows logs that it does not read",
    async begin(tenant) {
      const command = ["sh", "-c", `yes ${"x".repeat(200)} | head -c 4000000; sleep 1000`];
      await tenant.pod("process", "unread", { container: { command } });
      await tenant.untilRunning("unread");
      const replies = await followLogs(tenant, "unread", 20);
      return { end: () => destroyAll(replies) };
    },
  },
  {
    name: "takes every session that there is",
    async begin(tenant) {
      const names = ["first", "second", "third"];
      for (const name of names) await tenant.pod("process", name);
      const sockets: WebSocket[] = [];
      for (const name of names) {
        await tenant.untilRunning(name);
        const opened = await Promise.allSettled(
          Array.from({ length: 130 }, () =>
            openExec(tenant.world.api, { namespace: tenant.namespace, name }, ["sleep", "1000"]),
          ),
        );
        for (const each of opened) if (each.status === "fulfilled") sockets.push(keep(each.value));
      }
      return { end: () => closeAll(sockets) };
    },
  },
  {
    name: "follows as many logs as it may",
    async begin(tenant) {
      const replies: IncomingMessage[] = [];
      for (const name of ["first", "second", "third", "fourth", "fifth"]) {
        await tenant.pod("process", name);
        await tenant.untilRunning(name);
        replies.push(...(await followLogs(tenant, name, 66)));
      }
      return { end: () => destroyAll(replies) };
    },
  },
  {
    name: "prints a line that does not end",
    async begin(tenant) {
      await tenant.pod("process", "line", {
        container: { command: ["sh", "-c", "head -c 10000000 /dev/zero; sleep 1000"] },
      });
      await tenant.untilRunning("line");
      const replies = await followLogs(tenant, "line", 1);
      return { end: () => destroyAll(replies) };
    },
  },
];

async function openSessions(tenant: Tenant, name: string, count: number, command: string[]): Promise<WebSocket[]> {
  const { api } = tenant.world;
  const pod = { namespace: tenant.namespace, name };
  return Promise.all(
    Array.from({ length: count }, async () => keep(await openExec(api, pod, command, { stdin: true }))),
  );
}

/** One that is cut off by the other end is no failure of the test. */
function keep(socket: WebSocket): WebSocket {
  return socket.on("error", () => undefined);
}

function rawSocket(socket: WebSocket): Socket {
  return (socket as unknown as { _socket: Socket })._socket;
}

/** Writes until `bytes` are written, the other end takes no more, or it has closed. */
async function pour(socket: WebSocket, bytes: number, write: (chunk: Buffer) => void): Promise<void> {
  const chunk = Buffer.alloc(MIB);
  const raw = rawSocket(socket);
  await fill({
    write: () => (write(chunk), chunk.length),
    pending: () => raw.writableLength,
    allowed: 4 * MIB,
    limit: bytes,
    closed: () => raw.destroyed,
  });
}

/** The header of a masked binary frame of which more are to follow (RFC 6455, 5.2). */
function frameHeader(length: number): Buffer {
  const header = Buffer.alloc(10);
  header[0] = 0x02;
  header[1] = 0x80 | 127;
  header.writeBigUInt64BE(BigInt(length), 2);
  return Buffer.concat([header, randomBytes(4)]);
}

function closeAll(sockets: readonly WebSocket[]): void {
  for (const socket of sockets) socket.terminate();
}

/** Those that the node does not refuse. */
async function followLogs(tenant: Tenant, name: string, count: number): Promise<IncomingMessage[]> {
  const opened = await Promise.allSettled(Array.from({ length: count }, () => followLog(tenant, name)));
  return opened.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
}

function destroyAll(replies: readonly IncomingMessage[]): void {
  for (const reply of replies) reply.destroy();
}

function followLog({ world, namespace }: Tenant, name: string): Promise<IncomingMessage> {
  const url = `${world.api.url}/api/v1/namespaces/${namespace}/pods/${name}/log?follow=true`;
  return new Promise((resolve, reject) => {
    get(url, { headers: { authorization: `Bearer ${world.api.token}` }, agent: false }, (reply) => {
      reply.on("error", () => undefined);
      if (reply.statusCode === 200) resolve(reply);
      else {
        reply.resume();
        reject(new Error(`${url}: ${reply.statusCode}`));
      }
    }).on("error", reject);
  });
}
