/** Where traces go: the same field of the agent's and the backend's file, by a kubelet's names. */
import { isIP } from "node:net";
import { z } from "zod";
import { pairUp } from "./fields.ts";

export const tracingSchema = z
  .strictObject({
    endpoint: z
      .string()
      .refine(isEndpoint, "must be http://host:port or https://host:port, with a path if need be, and without a user")
      .default("http://localhost:4318")
      .describe(
        "Collector that takes OTLP over HTTP. Without a path, it is /v1/traces. Default http://localhost:4318.",
      ),
    samplingRatePerMillion: z
      .int()
      .min(0)
      .max(1_000_000)
      .default(0)
      .describe(
        "Of a million traces that begin here, how many are taken. What is part of a caller's trace is taken when that is. Default 0.",
      ),
    headersFile: z
      .string()
      .optional()
      .describe(
        "File with headers for the collector, such as credentials: Name: value, one a line. It and the files below are read again for each request.",
      ),
    caFile: z
      .string()
      .optional()
      .describe("CA that signed the collector's certificate (PEM). Default: the public ones."),
    certFile: z.string().optional().describe("Client certificate (PEM)."),
    keyFile: z.string().optional().describe("Its key (PEM)."),
  })
  .superRefine((tracing, context) => {
    pairUp(tracing, context);
    const { endpoint } = tracing;
    if (!isEndpoint(endpoint) || endpoint.startsWith("https:")) return;
    const refuse = (field: string, message: string) =>
      context.addIssue({ code: "custom", path: [field], message: `${message}: use https://` });
    if (tracing.headersFile !== undefined && !isLoopback(new URL(endpoint).hostname))
      refuse("headersFile", "its headers would be shown to the network, for endpoint is plain HTTP beyond loopback");
    for (const field of ["caFile", "certFile"] as const)
      if (tracing[field] !== undefined) refuse(field, "is for TLS, and endpoint is plain HTTP");
  })
  .optional()
  .describe("OpenTelemetry traces. Absent: nothing is traced.");

function isEndpoint(text: string): boolean {
  const url = URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol)) return false;
  return url.username === "" && url.password === "" && url.search === "" && url.hash === "";
}

function isLoopback(hostname: string): boolean {
  const bare = hostname.replace(/^\[|\]$/g, "");
  return bare === "localhost" || bare === "::1" || (isIP(bare) === 4 && bare.startsWith("127."));
}
