/** Plain requests to a backend, for the conformance kit: no pacing, no validation, nothing hidden. */
import { request as httpRequest, type IncomingMessage, type RequestOptions } from "node:http";
import { request as httpsRequest } from "node:https";
import { type HttpTarget, systemClock } from "../../src/provider/kit/index.ts";
import { addressed } from "./adapter.ts";
import { CredentialStore, type Credentials } from "./credentials.ts";
import { InvalidReplyError } from "./invalid-reply.ts";
import { parseTarget, type HttpVmOptions, type Target } from "./options.ts";

import { parseReply, plainText } from "./validate.ts";

const TIMEOUT_MS = 90_000;
const MAX_BYTES = 64 * 1024 * 1024;

/** @throws TypeError when the url cannot be used */
export function httpTarget(options: Pick<HttpVmOptions, "url" | "credentials" | "allowPlainHttp">): HttpTarget {
  const target = parseTarget(options.url, options.allowPlainHttp ?? false);
  const store = new CredentialStore(options.credentials ?? {}, systemClock);
  return {
    hasCredentials: options.credentials?.tokenFile !== undefined,
    faultOf(schema, body) {
      try {
        parseReply(schema, body);
        return undefined;
      } catch (thrown) {
        if (thrown instanceof InvalidReplyError) return plainText(thrown.message, 1024);
        throw thrown;
      }
    },
    async request(method, path, { headers = {}, body, signal, anonymous = false } = {}) {
      const credentials = await store.read();
      const authorization =
        credentials.token === undefined || anonymous ? {} : { authorization: `Bearer ${credentials.token}` };
      const deadline = AbortSignal.timeout(TIMEOUT_MS);
      const reply = await open(target, credentials, {
        method,
        path,
        headers: {
          ...authorization,
          ...headers,
          ...(body === undefined ? {} : { "content-length": String(Buffer.byteLength(body)) }),
        },
        body,
        signal: signal === undefined ? deadline : AbortSignal.any([signal, deadline]),
      });
      const chunks: Buffer[] = [];
      let size = 0;
      // What follows is no body, and its connection is closed already.
      const content = reply.statusCode === 101 ? [] : (reply as AsyncIterable<Buffer>);
      for await (const chunk of content) {
        size += chunk.length;
        if (size > MAX_BYTES) throw new Error(`the reply to ${method} ${path} is larger than ${MAX_BYTES} bytes`);
        chunks.push(chunk);
      }
      const flat = Object.entries(reply.headers).map(([name, value]) => [
        name,
        Array.isArray(value) ? value.join(", ") : value,
      ]);
      return {
        status: reply.statusCode ?? 0,
        headers: Object.fromEntries(flat) as Record<string, string | undefined>,
        body: Buffer.concat(chunks).toString("utf8"),
      };
    },
  };
}

interface Outgoing {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string | undefined;
  signal: AbortSignal;
}

function open(target: Target, credentials: Credentials, outgoing: Outgoing): Promise<IncomingMessage> {
  const { ca, cert, key } = credentials;
  const options: RequestOptions = {
    ...addressed(target)(outgoing.path),
    method: outgoing.method,
    headers: outgoing.headers,
    signal: outgoing.signal,
  };
  return new Promise((resolve, reject) => {
    const request = target.isTls ? httpsRequest({ ...options, ca, cert, key }, resolve) : httpRequest(options, resolve);
    request.on("error", reject);
    request.on("upgrade", (reply, socket) => {
      socket.destroy();
      resolve(reply);
    });
    request.end(outgoing.body);
  });
}
