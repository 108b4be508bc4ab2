/** What plain requests for lists, changes and logs show: the agent's client would pass over much of it. */
import type { Machine } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, CHECK_LABEL, mainOf, type CheckContext } from "../context.ts";
import { enough, expectRefusal, JSON_BODY, labelQuery, timeOfPlainGet } from "./http-replies.ts";

const label = (key: string, value: string) => `label=${encodeURIComponent(`${key}=${value}`)}`;
const labelOf = (context: CheckContext) => context.labels[CHECK_LABEL]!;

async function json<T>(context: CheckContext, path: string): Promise<T> {
  const { body } = await context.http!.request("GET", path);
  return JSON.parse(body) as T;
}

const idsOf = (machines: readonly Machine[] | undefined): string => (machines ?? []).map(({ id }) => id).join(", ");

export const HTTP_LIST_CHECKS: readonly Omit<Check, "needsHttp">[] = [
  {
    name: "http/a-list-has-only-what-carries-the-labels",
    why: "Other nodes' machines must not even be told; the agent's client would only hide them.",
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, { labels: { ...context.labels, role: "mine" } });
      await context.create(FOREVER, { labels: { ...context.labels, role: "other" } });
      const { items } = await json<{ items: Machine[] }>(
        context,
        `/v1/machines?${labelQuery(context)}&${label("role", "mine")}`,
      );
      context.expect(idsOf(items) === id, `only ${id}`, `the list has ${idsOf(items) || "nothing"}`);
    },
  },
  {
    name: "http/a-list-with-tombstones-has-only-what-carries-the-labels",
    why: "Whose machine it was, the labels of a tombstone say as well.",
    async run(context: CheckContext) {
      const gone = async (role: string) => {
        const { id } = await context.running(FOREVER, { labels: { ...context.labels, role } });
        await context.delete(id);
        await context.untilDeleted(id);
        return id;
      };
      const [id] = await Promise.all([gone("buried"), gone("other")]);
      const { items } = await json<{ items: Machine[] }>(
        context,
        `/v1/machines?include_deleted=true&${labelQuery(context)}&${label("role", "buried")}`,
      );
      context.expect(idsOf(items) === id, `only the tombstone ${id}`, `the list has ${idsOf(items) || "nothing"}`);
    },
  },
  {
    name: "http/label-values-may-hold-equals-signs",
    why: "Only the first one parts key and value.",
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, { labels: { ...context.labels, sum: "a=b=c" } });
      const { items } = await json<{ items: Machine[] }>(
        context,
        `/v1/machines?${labelQuery(context)}&${label("sum", "a=b=c")}`,
      );
      context.expect(
        idsOf(items) === id,
        `machine ${id}, whose label sum is a=b=c`,
        `the list has ${idsOf(items) || "nothing"}`,
      );
    },
  },
  {
    name: "http/an-empty-label-is-a-label",
    why: "To carry it with no value is something else than not to carry it.",
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, { labels: { ...context.labels, blank: "" } });
      await context.create(FOREVER);
      const { items } = await json<{ items: Machine[] }>(
        context,
        `/v1/machines?${labelQuery(context)}&${label("blank", "")}`,
      );
      context.expect(
        idsOf(items) === id,
        `only machine ${id}, which has it`,
        `the list has ${idsOf(items) || "nothing"}`,
      );
    },
  },
  {
    name: "http/pages-are-in-the-order-of-ids",
    why: "A cursor is an id; in another order it would leave machines out.",
    async run(context: CheckContext) {
      const ids: string[] = [];
      for (let i = 0; i < 3; i++) ids.push((await context.create(FOREVER)).id);
      const { items } = await json<{ items: Machine[] }>(context, `/v1/machines?${labelQuery(context)}&limit=3`);
      context.expect(
        idsOf(items) === ids.toSorted().join(", "),
        `the ids ${ids.toSorted().join(", ")}`,
        `they are ${idsOf(items)}`,
      );
    },
  },
  {
    name: "http/an-empty-list-is-one",
    why: "That there are no machines is an answer; an error is none.",
    async run(context: CheckContext) {
      const { status, body } = await context.http!.request("GET", `/v1/machines?${label("no-such", labelOf(context))}`);
      context.expect(
        status === 200 && (JSON.parse(body) as { items?: unknown[] }).items?.length === 0,
        "200 with no items for labels that nothing carries",
        `HTTP ${status} came with ${body.slice(0, 100)}`,
      );
    },
  },
  {
    name: "http/samples-have-only-what-carries-the-labels",
    needs: ["stats"],
    why: "What other nodes' machines use is not this one's.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER, { labels: { ...context.labels, role: "sampled" } });
      const other = await context.running(FOREVER);
      let seen = "";
      await context.untilTrue("a sample of the machine that carries the label", async () => {
        const path = `/v1/stats?${labelQuery(context)}&${label("role", "sampled")}`;
        const { items } = await json<{ items: { id: string }[] }>(context, path);
        seen = items.map((item) => item.id).join(", ");
        return items.some((item) => item.id === id);
      });
      context.expect(!seen.includes(other.id), `only a sample of ${id}`, `there are ${seen}`);
    },
  },
  {
    name: "http/events-have-only-what-carries-the-labels",
    needs: ["events"],
    why: "Other nodes' changes must not even be told; the agent's client would only hide them.",
    async run(context: CheckContext) {
      const { revision } = await json<{ revision: number }>(context, "/v1/machines?limit=1");
      const { id: other } = await context.create(FOREVER, { labels: { ...context.labels, role: "other" } });
      const { id } = await context.create(FOREVER, { labels: { ...context.labels, role: "watched" } });
      const path = `/v1/events?since=${revision}&timeout=10&${labelQuery(context)}&${label("role", "watched")}`;
      const { events } = await json<{ events: { machine: Machine }[] }>(context, path);
      const ids = events.map(({ machine }) => machine.id);
      context.expect(
        ids.includes(id) && !ids.includes(other),
        `events of ${id} alone`,
        `they are of ${[...new Set(ids)].join(", ") || "nothing"}`,
      );
    },
  },
  {
    name: "http/a-long-poll-waits-for-an-event",
    needs: ["events"],
    why: "One that answers with nothing at once is asked again at once, without end.",
    async run(context: CheckContext) {
      const path = (revision: number) => `/v1/events?since=${revision}&timeout=40&${labelQuery(context)}`;
      const { id: known } = await context.running(FOREVER);
      const promptMs = await timeOfPlainGet(context, known);
      const { revision } = await json<{ revision: number }>(context, "/v1/machines?limit=1");
      const waiting = json<{ events: { machine: Machine }[] }>(context, path(revision));
      await context.clock.sleep(enough(promptMs), context.signal);
      await context.create(FOREVER);
      const { events } = await waiting;
      context.expect(events.length > 0, "the reply to come with the event that it waited for", "it has no event");
    },
  },
  {
    name: "http/a-long-poll-ends-in-time",
    needs: ["events"],
    why: "A proxy between the two cuts what takes longer than was said.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 0");
      await context.settled(id);
      const { revision } = await json<{ revision: number }>(context, "/v1/machines?limit=1");
      const startedAt = context.clock.monotonic();
      const { events } = await json<{ events: unknown[] }>(
        context,
        `/v1/events?since=${revision}&timeout=1&${labelQuery(context)}`,
      );
      const tookMs = context.clock.monotonic() - startedAt;
      context.expect(events.length === 0, "no events when nothing happens", `there are ${events.length}`);
      context.expect(tookMs < 10_000, "the reply after 1 s", `it came after ${Math.round(tookMs)} ms`);
    },
  },
  {
    name: "http/events-in-the-future-are-gone",
    needs: ["events"],
    why: "After a backend was set back, its client must list again.",
    async run(context: CheckContext) {
      const { revision } = await json<{ revision: number }>(context, "/v1/machines?limit=1");
      const reply = await context.http!.request("GET", `/v1/events?since=${revision + 1_000_000_000}&timeout=1`);
      expectRefusal(context, reply, "events since a revision that was never reached", [410], "gone");
    },
  },
  {
    name: "http/get-waits-for-a-state",
    why: "It is how a client without events sees the end of a stop at once.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const promptMs = await timeOfPlainGet(context, id);
      const waiting = json<Machine>(context, `/v1/machines/${id}?wait=stopped,failed&timeout=40`);
      await context.clock.sleep(enough(promptMs), context.signal);
      await context.stop(id, 0);
      const { state } = await waiting;
      context.expect(state === "stopped", "the machine when it is stopped", `it is ${state}`);
    },
  },
  {
    name: "http/get-does-not-wait-for-what-is-so",
    why: "A state that was reached before the question would be waited for in vain.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 0");
      const startedAt = context.clock.monotonic();
      const { state } = await json<Machine>(context, `/v1/machines/${id}?wait=stopped&timeout=20`);
      const tookMs = context.clock.monotonic() - startedAt;
      context.expect(
        state === "stopped" && tookMs < 19_000,
        "the reply at once for a state that the machine is in",
        `it came after ${Math.round(tookMs)} ms`,
      );
    },
  },
  {
    name: "http/replies-to-changes-are-valid",
    why: "The agent writes a pod's first and last status from them.",
    skip: (context) => (context.http?.faultOf === undefined ? "this run cannot validate replies" : undefined),
    async run(context: CheckContext) {
      const path = `/v1/machines/${context.id()}`;
      const ask = (method: string, at: string, body: object) =>
        context.http!.request(method, at, { headers: JSON_BODY, body: JSON.stringify(body) });
      const made = context.http!.faultOf!("Machine", (await ask("PUT", path, context.spec(FOREVER))).body);
      context.expect(made === undefined, "PUT to answer a valid Machine", made ?? "");
      const stopped = context.http!.faultOf!("Machine", (await ask("POST", `${path}/stop`, { grace_seconds: 0 })).body);
      context.expect(stopped === undefined, "a stop to answer a valid Machine", stopped ?? "");
    },
  },
  {
    name: "http/json-says-that-it-is-json",
    why: "Proxies and clients decide by the content type what to do with a body.",
    async run(context: CheckContext) {
      for (const path of ["/v1/info", `/v1/machines?${labelQuery(context)}`, `/v1/machines/${context.id()}`]) {
        const type = (await context.http!.request("GET", path)).headers["content-type"] ?? "none";
        context.expect(
          type.startsWith("application/json"),
          `content-type application/json of ${path}`,
          `it is ${type}`,
        );
      }
    },
  },
  {
    name: "http/every-request-gets-an-id-of-its-own",
    why: "With one id for all, a failure cannot be found in the log.",
    async run(context: CheckContext) {
      const idOf = async () => (await context.http!.request("GET", "/v1/info")).headers["x-request-id"];
      const [first, second] = [await idOf(), await idOf()];
      context.expect(first !== second, "another X-Request-Id for each request that brings none", `both are ${first}`);
    },
  },
  {
    name: "http/delete-has-no-body",
    why: "There is nothing to say; a client reads on at the next reply.",
    async run(context: CheckContext) {
      const { status, body } = await context.http!.request("DELETE", `/v1/machines/${context.id()}?force=true`);
      context.expect(
        (status === 202 || status === 204) && body === "",
        "202 or 204 without a body",
        `HTTP ${status} came with ${JSON.stringify(body.slice(0, 60))}`,
      );
    },
  },
  {
    name: "http/logs-are-lines-of-CRI",
    why: "It is parsed by looking for newlines and blanks, and by nothing else.",
    async run(context: CheckContext) {
      const { id } = await context.over("echo a line; echo another >&2");
      const { status, headers, body } = await context.http!.request("GET", `/v1/machines/${id}/containers/main/logs`);
      const line = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (?:stdout|stderr) [FP] .*$/;
      const wrong = body
        .split("\n")
        .slice(0, -1)
        .find((each) => !line.test(each));
      context.expect(
        status === 200 && wrong === undefined && body.endsWith("\n"),
        "lines as 2026-10-06T00:17:09.669794202Z stdout F text",
        `one is ${JSON.stringify((wrong ?? body).slice(0, 100))}`,
      );
      const type = headers["content-type"] ?? "none";
      context.expect(type.startsWith("text/x-cri-log"), "content-type text/x-cri-log", `it is ${type}`);
    },
  },
  {
    name: "http/an-absent-machine's-log-has-the-envelope",
    why: "A 404 without it may come from a proxy, and proves nothing.",
    async run(context: CheckContext) {
      const reply = await context.http!.request("GET", `/v1/machines/${context.id()}/containers/main/logs`);
      expectRefusal(context, reply, "the log of an absent machine", [404], "not_found");
    },
  },
  {
    name: "http/tombstones-stay-ten-minutes",
    why: "A create can be on its way for that long.",
    async run(context: CheckContext) {
      const { limits } = await json<{ limits?: { tombstone_seconds?: number } }>(context, "/v1/info");
      const seconds = limits?.tombstone_seconds ?? 600;
      context.expect(seconds >= 600, "limits.tombstone_seconds of at least 600", `it is ${seconds}`);
    },
  },
  {
    name: "http/a-gone-id-has-the-envelope",
    why: "By the code the agent tells a late create from one that it may repeat.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.delete(id);
      await context.untilDeleted(id);
      const body = JSON.stringify(context.spec(FOREVER));
      const reply = await context.http!.request("PUT", `/v1/machines/${id}`, { headers: JSON_BODY, body });
      expectRefusal(context, reply, "a create of a deleted id", [410], "gone");
    },
  },
  {
    name: "http/a-tombstone-has-its-containers",
    why: "Exit codes are asked for after the fact.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 14");
      await context.delete(id);
      await context.untilDeleted(id);
      const machine = await json<Machine>(context, `/v1/machines/${id}`);
      const code = mainOf(machine).terminated?.exit_code;
      context.expect(code === 14, "exit code 14 in the tombstone", `it is ${code}`);
    },
  },
];
