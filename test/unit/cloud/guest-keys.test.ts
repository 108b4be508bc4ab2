/** Guests that are reached at their addresses: who is let in, and whom an agent believes. */
import { once } from "node:events";
import { connect, type AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { createServer, connect as connectTls } from "node:tls";
import { expect, onTestFinished, test } from "vitest";
import type { Vm, VmCloud, VmRequest } from "../../../providers/cloud/cloud.ts";
import { GuestKeys, withGuestKeys, withoutGuestKeys } from "../../../providers/cloud/guest-keys.ts";
import { toError } from "../../../src/util/errors.ts";

const [SECRET, OTHER] = ["1".repeat(64), "2".repeat(64)];
const signal = AbortSignal.timeout(30_000);
const keysOf = (text = SECRET, scope = "burst") => new GuestKeys(text, { scope, field: "guestKeysFile" });
const requestOf = (birth: string): VmRequest => ({
  name: "vmlet-a",
  type: { name: "small", resources: {} },
  labels: { "vmlet-birth": birth },
});
const code = (expected: string): unknown => expect.objectContaining({ code: expected });

/** A guest that has these keys, and greets whom it lets in; and its VM as the cloud shows it. */
async function guestWith({ keys, labels, name }: VmRequest) {
  const { certificate: cert, key, clientCa: ca } = keys!;
  const server = createServer({ cert, key, ca, requestCert: true, rejectUnauthorized: true }, (socket) => {
    socket.on("error", () => {});
    socket.end("hello");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  const vm: Vm = { name, labels, state: "running", isSeen: true, addresses: ["127.0.0.1"] };
  return { vm, port };
}

/** The cloud whose agents have these keys, of which each VM is at this port. */
function agentOf(keys: GuestKeys, port: number): VmCloud {
  const dial = () => Promise.resolve(connect(port, "127.0.0.1"));
  return withGuestKeys({ dial } as unknown as VmCloud, keys);
}

async function greeting(stream: Duplex): Promise<string> {
  let text = "";
  for await (const chunk of stream) text += String(chunk);
  return text;
}

const enter = async (keys: GuestKeys, { vm, port }: { vm: Vm; port: number }) =>
  await greeting(await agentOf(keys, port).dial(vm, { signal }));

test("any agent of the scope reaches a guest, whichever ordered it, with nothing stored", async () => {
  const guest = await guestWith(keysOf().order(requestOf("one")));
  expect(await enter(keysOf(), guest)).toBe("hello");
  expect(await enter(keysOf(), guest)).toBe("hello");
});

test("a guest of an older secret is reached as long as that is there, and new ones have keys of the first", async () => {
  const guest = await guestWith(keysOf(SECRET).order(requestOf("one")));
  const rotated = keysOf(`${OTHER}\n${SECRET}\n`);
  expect(await enter(rotated, guest)).toBe("hello");
  expect(rotated.order(requestOf("two")).labels["vmlet-keys"]).toBe(keysOf(OTHER).newest);
  await expect(enter(keysOf(OTHER), guest)).rejects.toMatchObject({
    code: "unavailable",
    message: expect.stringContaining("guestKeysFile") as string,
  });
});

test.each([
  ["another VM of the same name", () => keysOf().order(requestOf("two"))],
  ["a VM of another scope", () => keysOf(SECRET, "other").order(requestOf("one"))],
])("what answers in place of a guest with the keys of %s is not believed", async (_, order) => {
  const impostor = await guestWith(order());
  const { labels } = keysOf().order(requestOf("one"));
  await expect(enter(keysOf(), { ...impostor, vm: { ...impostor.vm, labels } })).rejects.toEqual(code("unavailable"));
});

/** What a guest says to who has this to show. */
async function said(port: number, options: object): Promise<string> {
  const socket = connectTls({ port, host: "127.0.0.1", rejectUnauthorized: false, ...options });
  return await greeting(socket).catch((thrown: unknown) => toError(thrown).message);
}

test("a guest lets in nobody without a certificate, nor who has another guest's or its own keys", async () => {
  const own = keysOf().order(requestOf("one"));
  const { port } = await guestWith(own);
  const other = keysOf().order(requestOf("two")).keys!;
  expect(await said(port, {})).not.toContain("hello");
  expect(await said(port, { cert: other.certificate, key: other.key })).not.toContain("hello");
  expect(await said(port, { cert: own.keys!.certificate, key: own.keys!.key })).not.toContain("hello");
});

test("a VM's labels and an error tell which secret its keys are of, and nothing of the secret or the keys", async () => {
  const { labels, keys } = keysOf().order(requestOf("one"));
  expect(JSON.stringify(labels)).not.toContain(SECRET.slice(0, 8));
  const vm: Vm = { name: "vmlet-a", labels, state: "running", isSeen: true, addresses: [] };
  const refused = await agentOf(keysOf(OTHER), 1)
    .dial(vm, { signal })
    .catch((thrown: unknown) => toError(thrown).message);
  expect(refused).toContain(labels["vmlet-keys"]);
  expect(refused).not.toContain(SECRET.slice(0, 8));
  expect(keys!.clientCa).not.toBe(keys!.certificate);
});

test("a VM whose birth the cloud does not show is not reached: keys of no birth would be those of many", () => {
  const labels = { "vmlet-keys": keysOf().newest };
  expect(() => keysOf().connectionTo({ name: "vmlet-a", labels })).toThrow("vmlet-birth");
});

test("VMs that wait are replaced when the first secret is another", async () => {
  const cloud = { version: () => Promise.resolve("image 1") } as unknown as VmCloud;
  const [before, after] = [keysOf(SECRET), keysOf(`${OTHER}\n${SECRET}`)].map((keys) => withGuestKeys(cloud, keys));
  expect(await after!.version!({ signal })).not.toBe(await before!.version!({ signal }));
});

test("an agent without the secret tells a guest with keys nothing, for it could be anybody", async () => {
  let dialled = 0;
  const cloud = { dial: () => Promise.resolve(dialled++) } as unknown as VmCloud;
  const { labels } = keysOf().order(requestOf("one"));
  const vm: Vm = { name: "vmlet-a", labels, state: "running", isSeen: true, addresses: ["127.0.0.1"] };
  await expect(withoutGuestKeys(cloud).dial(vm, { signal })).rejects.toEqual(code("unavailable"));
  expect(dialled).toBe(0);
});

test("a VM that was ordered without keys is reached by the cloud's own way", async () => {
  const stream = connect(1, "127.0.0.1").on("error", () => {});
  const cloud = withGuestKeys({ dial: () => Promise.resolve(stream) } as unknown as VmCloud, keysOf());
  const vm: Vm = { name: "vmlet-a", labels: { "vmlet-birth": "one" }, state: "running", isSeen: true, addresses: [] };
  expect(await cloud.dial(vm, { signal })).toBe(stream);
});

test.each(["", "\n", "short"])("a file with %j as its secret is refused, with the cure", (text) => {
  expect(() => keysOf(text)).toThrow(/guestKeysFile .*openssl rand -hex 32/);
});
