import type { IncomingMessage } from "node:http";
import { HttpError } from "./http-error.ts";

/**
 * A request's body. What exceeds the limit is read on and thrown away, so that the client gets to read the refusal.
 *
 * @throws HttpError 413 as soon as there are more than `maxBytes`, 400 when the client breaks off
 */
export function readBody(request: IncomingMessage, maxBytes: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    request.on("data", (chunk: Buffer) => {
      size += chunk.length;
      if (size <= maxBytes) chunks.push(chunk);
      else {
        chunks.length = 0;
        reject(new HttpError(413, `the body is larger than ${maxBytes} bytes`, [["Connection", "close"]]));
      }
    });
    request.on("end", () => resolve(Buffer.concat(chunks)));
    request.on("error", reject);
    const brokeOff = () => reject(new HttpError(400, "the request broke off"));
    request.on("close", brokeOff);
    // It may have broken off while its caller was asked about: nothing more will be heard of it then.
    if (request.destroyed) brokeOff();
  });
}
