/**
 * `/statusz`: what runs here and since when (apiserver, pkg/server/statusz), as text for people, or as the object
 * `Statusz` where a client names it.
 */
import { HttpError } from "../../http/http-error.ts";
import { rfc3339, type Clock } from "../../util/clock.ts";
import type { Handler } from "../router.ts";

interface StatuszOptions {
  clock: Clock;
  /** Wall clock. */
  startedAtMs: number;
  /** vmlet's. */
  version: string;
}

/** The read-only paths that a kubelet lists. */
const PATHS = ["/configz", "/healthz", "/metrics"];

const WARNING =
  "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";

export function statusz({ clock, startedAtMs, version }: StatuszOptions): Handler {
  return {
    kind: "plain",
    handle: ({ request }) => {
      const form = wantedForm(request.headers.accept ?? "");
      if (form === undefined)
        throw new HttpError(406, "only text/plain and Statusz of config.k8s.io/v1beta1 are served");
      const uptimeSeconds = Math.max(0, Math.floor((clock.now() - startedAtMs) / 1000));
      const status = {
        kind: "Statusz",
        apiVersion: "config.k8s.io/v1beta1",
        metadata: { name: "kubelet" },
        startTime: rfc3339(startedAtMs),
        uptimeSeconds,
        goVersion: "",
        binaryVersion: version,
        paths: PATHS,
      };
      return Promise.resolve(
        form === "json"
          ? { status: 200, contentType: "application/json", body: JSON.stringify(status) }
          : { status: 200, contentType: "text/plain; charset=utf-8", body: text(status) },
      );
    },
  };
}

function text(status: { startTime: string; uptimeSeconds: number; binaryVersion: string; paths: string[] }): string {
  const { startTime, uptimeSeconds, binaryVersion, paths } = status;
  return [
    "",
    "kubelet statusz",
    WARNING,
    "",
    `Started: ${startTime}`,
    `Up: ${uptimeSeconds} s`,
    `Binary version: ${binaryVersion}`,
    `Paths: ${paths.join(" ")}`,
    "",
  ].join("\n");
}

/** The first of the forms that the header names that there is; none is asked for by an empty header: text. */
function wantedForm(accept: string): "text" | "json" | undefined {
  if (accept.trim() === "") return "text";
  for (const part of accept.split(",")) {
    const [type, ...parameters] = part.split(";").map((each) => each.trim().toLowerCase());
    if (type === "text/plain" || type === "text/*" || type === "*/*") return "text";
    const isOurs = ["as=statusz", "g=config.k8s.io", "v=v1beta1"].every((each) => parameters.includes(each));
    if (type === "application/json" && isOurs) return "json";
  }
  return undefined;
}
