/** What checks of plain HTTP have in common: requests that they make, and what they read from replies. */
import type { HttpTarget } from "../http-target.ts";
import { CHECK_LABEL, Violation, type CheckContext } from "../context.ts";

export const JSON_BODY = { "content-type": "application/json" };

export type Reply = Awaited<ReturnType<HttpTarget["request"]>>;

/** The code of a reply's error envelope. @throws Violation when it has none */
function codeOf(reply: Reply, doing: string): string {
  let code: unknown;
  let message: unknown;
  try {
    ({ code, message } = (JSON.parse(reply.body) as { error: { code: unknown; message: unknown } }).error);
  } catch {
    code = undefined; // Reported below: the body is not an envelope.
  }
  if (typeof code === "string" && typeof message === "string") return code;
  throw new Violation(
    `${doing} to answer {"error":{"code","message",…}}`,
    `HTTP ${reply.status} came with ${JSON.stringify(reply.body.slice(0, 100))}`,
  );
}

export function expectRefusal(
  context: CheckContext,
  reply: Reply,
  doing: string,
  status: readonly number[],
  code: string,
): void {
  const found = codeOf(reply, doing);
  context.expect(
    status.includes(reply.status) && found === code,
    `${doing} to answer ${status.join(" or ")} ${code}`,
    `it answers ${reply.status} ${found}`,
  );
}

export const put = (context: CheckContext, body: string): Promise<Reply> =>
  context.http!.request("PUT", `/v1/machines/${context.id()}`, { headers: JSON_BODY, body });

export const labelQuery = (context: CheckContext): string =>
  `label=${encodeURIComponent(`${CHECK_LABEL}=${context.labels[CHECK_LABEL]}`)}`;

/** How long a reply takes that waits for nothing: by it, checks that measure waiting tell it from mere slowness. */
export async function timeOfPlainGet(context: CheckContext, id: string): Promise<number> {
  const startedAt = context.clock.monotonic();
  await context.http!.request("GET", `/v1/machines/${id}`);
  return context.clock.monotonic() - startedAt;
}

/** Long enough for a backend that does not wait to have answered, however slow it is just now. */
export const enough = (promptMs: number): number => Math.min(300 + 5 * promptMs, 10_000);
