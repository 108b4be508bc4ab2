/**
 * OpenAPI v2 in protobuf, where kubectl looks for a kind that OpenAPI v3 does not have. All kinds of this server are in
 * v3, so what it is to find here is that there is nothing: without the document it would speak of content types instead
 * of the kind that is missing.
 */
import { KUBERNETES_VERSION } from "./discovery.ts";

export const OPENAPI_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/** A length-delimited field of a message. */
const field = (number: number, content: Buffer | string): Buffer => {
  const bytes = Buffer.from(content);
  return Buffer.concat([Buffer.from([(number << 3) | 2, bytes.length]), bytes]);
};

/** gnostic's `openapi.v2.Document` without paths and definitions. */
export const openApiV2Protobuf = (): Buffer =>
  Buffer.concat([
    field(1, "2.0"),
    field(2, Buffer.concat([field(1, "Kubernetes"), field(2, KUBERNETES_VERSION.gitVersion)])),
    field(8, ""),
    field(9, ""),
  ]);
