/** A registry that answers what a test has it say, whatever it is asked by: what a tenant can set up anywhere. */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export const MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json";
export const INDEX_TYPE = "application/vnd.oci.image.index.v1+json";

export interface LyingRegistry {
  readonly host: string;
  /** `METHOD PATH` of each request. */
  readonly requests: string[];
  /** Says this to clients that ask for `/v2/REPOSITORY/manifests/REFERENCE`. @returns its real digest */
  manifest(repository: string, reference: string, document: object | Buffer, type?: string): string;
  /** Gives this out as the blob of its real digest. */
  blob(repository: string, content: Buffer): { digest: string; size: number };
  /** Answers for a path by hand. */
  answer(path: string, answer: (request: IncomingMessage, response: ServerResponse) => void): void;
  stop(): Promise<void>;
}

export async function startLyingRegistry(): Promise<LyingRegistry> {
  const answers = new Map<string, (request: IncomingMessage, response: ServerResponse) => void>();
  const requests: string[] = [];
  const server = createServer((request, response) => {
    const path = request.url!.split("?")[0]!;
    requests.push(`${request.method} ${path}`);
    const answer = answers.get(path);
    if (answer !== undefined) answer(request, response);
    else if (path === "/v2/") response.end("{}");
    else
      response.writeHead(404, { "content-type": "application/json" }).end('{"errors":[{"code":"MANIFEST_UNKNOWN"}]}');
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    host: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    manifest(repository, reference, document, type = MANIFEST_TYPE) {
      const content = Buffer.isBuffer(document) ? document : Buffer.from(JSON.stringify(document));
      const digest = sha256(content);
      for (const name of [reference, digest])
        answers.set(`/v2/${repository}/manifests/${name}`, (_request, response) =>
          response.writeHead(200, { "content-type": type }).end(content),
        );
      return digest;
    },
    blob(repository, content) {
      const digest = sha256(content);
      answers.set(`/v2/${repository}/blobs/${digest}`, (_request, response) => response.end(content));
      return { digest, size: content.length };
    },
    answer: (path, answer) => answers.set(path, answer),
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

function sha256(content: Buffer): string {
  return `sha256:${createHash("sha256").update(content).digest("hex")}`;
}
