/** Starts the backend; backend.ts tells how it is built. */
import { createHash, randomBytes } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createSocket, type AddressInfo } from "node:net";
import { once } from "node:events";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { Backend } from "./backend.ts";
import { serve } from "./http.ts";

const { values } = parseArgs({
  options: { state: { type: "string", default: "state" }, port: { type: "string", default: "8480" } },
});
const state = resolve(values.state);
// Two backends would make every machine twice. A name that only one process of this host can have, and that goes with it.
const lock = createSocket().listen(`\0vmlet-sample-${createHash("sha256").update(state).digest("hex")}`);
await once(lock, "listening");
const backend = new Backend(state);
const tokenFile = join(state, "token");
if (!existsSync(tokenFile)) writeFileSync(tokenFile, randomBytes(32).toString("base64url"), { mode: 0o600 });
const token = readFileSync(tokenFile, "utf8").trim();
const server = createServer((request, reply) => void serve({ backend, token }, request, reply));
server.listen(Number(values.port), "127.0.0.1");
await once(server, "listening");
setInterval(() => backend.tendAll(), 50);
const { port } = server.address() as AddressInfo;
console.log(`listening on http://127.0.0.1:${port}, the token is in ${join(values.state, "token")}`);
