/** What the server says of itself: health, version, discovery, OpenAPI and its signing keys. */
import { ISSUER, type Auth } from "../auth/auth.ts";
import { discoveryDocument, openApiV2, openApiV3, versionInfo } from "../kubectl/discovery.ts";
import { OPENAPI_V2_PROTOBUF, openApiV2Protobuf } from "../kubectl/openapi-v2.ts";
import { methodNotAllowed, notAcceptable, resourceNotFound } from "../objects/errors.ts";
import type { Json } from "../objects/object.ts";
import { send } from "./reply.ts";
import type { ApiRequest } from "./request.ts";

const AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/** Answers a path that names no resource. @throws ApiStatusError 404, 405, 406 */
export function serveDocument(
  path: string,
  { message, response }: Pick<ApiRequest, "message" | "response">,
  auth: Auth,
): void {
  const accept = message.headers.accept ?? "";
  if (message.method !== "GET" && message.method !== "HEAD") throw methodNotAllowed();
  if (/^\/(healthz|livez|readyz)(\/|$)/.test(path)) {
    response.writeHead(200, { "content-type": "text/plain; charset=utf-8" }).end("ok");
    return;
  }
  if (path === "/openapi/v2" && /proto-openapi\.spec\.v2/.test(accept)) {
    response.writeHead(200, { "content-type": OPENAPI_V2_PROTOBUF }).end(openApiV2Protobuf());
    return;
  }
  if (path === "/openapi/v2" && accept !== "" && !/application\/json|\*\/\*/.test(accept))
    throw notAcceptable(["application/json"]);
  const aggregated =
    accept.includes("as=APIGroupDiscoveryList") && /g=apidiscovery\.k8s\.io;\s*v=v2(?!beta)/.test(accept);
  const document = documentAt(path, aggregated, auth);
  if (document === undefined) {
    if (!/^\/apis?\//.test(path)) throw resourceNotFound();
    response.writeHead(404, { "content-type": "text/plain; charset=utf-8" }).end("404 page not found\n");
    return;
  }
  const isAggregated = aggregated && document.kind === "APIGroupDiscoveryList";
  send({ message, response }, 200, document, isAggregated ? AGGREGATED : "application/json");
}

function documentAt(path: string, aggregated: boolean, auth: Auth): Json {
  if (path.startsWith("/openapi/v3")) return openApiV3(path);
  switch (path) {
    case "/version":
      return versionInfo;
    case "/openapi/v2":
      return openApiV2();
    case "/openid/v1/jwks":
      return auth.jwks();
    case "/.well-known/openid-configuration":
      return {
        issuer: ISSUER,
        jwks_uri: `${ISSUER}/openid/v1/jwks`,
        response_types_supported: ["id_token"],
        subject_types_supported: ["public"],
        id_token_signing_alg_values_supported: ["ES256"],
      };
    default:
      return discoveryDocument(path, aggregated);
  }
}
