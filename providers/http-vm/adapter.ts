/**
 * How axios sends a request of this API: by node:http and nothing else. Its own adapter also knows proxies, redirects,
 * forms, compression and progress, none of which a backend may have, and takes several times as long for it.
 */
import { request as httpRequest, type IncomingMessage, type RequestOptions } from "node:http";
import { request as httpsRequest } from "node:https";
import { type AxiosAdapter, AxiosError, type AxiosResponse, CanceledError } from "axios";
import { onAbort } from "../../src/provider/kit/index.ts";
import type { Target } from "./options.ts";

/** Where a request of this path goes, as node:http wants it. The path begins with `/`. */
export function addressed(target: Target): (path: string) => RequestOptions {
  const { hostname, port, pathname } = new URL(target.baseUrl);
  const prefix = pathname.replace(/\/$/, "");
  const where: RequestOptions =
    target.socketPath === undefined
      ? { host: hostname.replace(/^\[|\]$/g, ""), port: port || (target.isTls ? 443 : 80) }
      : { socketPath: target.socketPath };
  return (path) => ({ ...where, path: prefix + path });
}

/**
 * `url` of a request is the path, with its query. The reply's `data` is its body, a stream, which breaks off when the
 * request's signal aborts.
 *
 * @returns the adapter; it rejects with an AxiosError that has the request, or a CanceledError on abort
 */
export function nodeAdapter(target: Target): AxiosAdapter {
  const send = target.isTls ? httpsRequest : httpRequest;
  const at = addressed(target);
  return (config) =>
    new Promise<AxiosResponse<IncomingMessage>>((resolve, reject) => {
      const { data, headers } = config as typeof config & { data?: string };
      // axios gives one to each method that may have a body.
      if (data === undefined) headers.delete("content-type");
      const request = send({
        ...at(config.url ?? ""),
        method: config.method?.toUpperCase() ?? "GET",
        headers: headers.toJSON() as Record<string, string>,
        agent: target.isTls ? config.httpsAgent : config.httpAgent,
      });
      const aborting = onAbort(config.signal as AbortSignal | undefined, () => {
        const canceled = new CanceledError(undefined, config, request);
        reject(canceled);
        request.destroy(canceled);
      });
      let hasReply = false;
      request
        .once("response", (reply) => {
          hasReply = true;
          resolve({
            data: reply,
            status: reply.statusCode ?? 0,
            statusText: reply.statusMessage ?? "",
            headers: reply.headers as Record<string, string>,
            config,
            request,
          });
        })
        .on("error", (error) => reject(AxiosError.from(error, undefined, config, request)))
        .once("close", () => {
          aborting[Symbol.dispose]();
          // Of a reply that would speak another protocol from then on, node:http says no more than this.
          if (!hasReply)
            reject(
              new AxiosError("the connection ended without a reply", AxiosError.ERR_BAD_RESPONSE, config, request),
            );
        })
        .end(data);
    });
}
