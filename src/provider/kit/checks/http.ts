/** What only HTTP shows: envelopes, status codes, request ids, pages, long polls. */
import type { Capability } from "../../capabilities.ts";
import type { Machine } from "../../machine.ts";
import type { Check } from "../check.ts";
import type { ReplySchema } from "../http-target.ts";
import { FOREVER, type CheckContext } from "../context.ts";
import { HTTP_LIST_CHECKS } from "./http-lists.ts";
import { HTTP_REQUEST_CHECKS } from "./http-requests.ts";
import { enough, expectRefusal, labelQuery, put, timeOfPlainGet } from "./http-replies.ts";

const GATED: readonly { capability: Capability; path: string }[] = [
  { capability: "capacity", path: "/v1/capacity" },
  { capability: "stats", path: "/v1/stats" },
  { capability: "volumes.persistent", path: "/v1/volumes" },
  { capability: "images.prewarm", path: "/v1/images" },
  { capability: "pod_ranges", path: "/v1/pod-ranges" },
  { capability: "events", path: "/v1/events?since=0&timeout=0" },
];

const missingRoutes = (context: CheckContext) => GATED.filter(({ capability }) => !context.has(capability));

const RULES: readonly Omit<Check, "needsHttp">[] = [
  {
    name: "http/request-ids-come-back",
    why: "A client tells by it that a reply on a shared connection answers its own request.",
    async run(context: CheckContext) {
      const { headers } = await context.http!.request("GET", "/v1/info", {
        headers: { "x-request-id": "conformance-17" },
      });
      context.expect(
        headers["x-request-id"] === "conformance-17",
        "X-Request-Id: conformance-17",
        `it is ${headers["x-request-id"] ?? "missing"}`,
      );
    },
  },
  {
    name: "http/every-reply-has-a-request-id",
    why: "It is how a failure is found in the backend's log.",
    async run(context: CheckContext) {
      for (const path of ["/v1/info", "/v1/machines/conformance-absent", "/v1/no-such-route"]) {
        const { headers } = await context.http!.request("GET", path);
        context.expect(Boolean(headers["x-request-id"]), `X-Request-Id in the reply to ${path}`, "it is missing");
      }
    },
  },
  {
    name: "http/info-says-v1",
    why: "A client must not talk to an API that it does not know.",
    async run(context: CheckContext) {
      const { body } = await context.http!.request("GET", "/v1/info");
      const { api } = JSON.parse(body) as { api?: unknown };
      context.expect(api === "v1", '"api":"v1"', `it is ${JSON.stringify(api)}`);
    },
  },
  {
    name: "http/replies-are-valid",
    why: "An agent passes over what is not, and then knows nothing of that machine.",
    skip: (context) => (context.http?.faultOf === undefined ? "this run cannot validate replies" : undefined),
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const { id } = await context.running(FOREVER, { restart_policy: "always" });
      const labels = labelQuery(context);
      const routes: { schema: ReplySchema; path: string; needs?: Capability }[] = [
        { schema: "Machine", path: `/v1/machines/${id}` },
        { schema: "MachinePage", path: `/v1/machines?${labels}` },
        { schema: "ProviderCapacity", path: "/v1/capacity", needs: "capacity" },
        { schema: "StatsList", path: `/v1/stats?${labels}`, needs: "stats" },
        { schema: "PersistentVolumePage", path: `/v1/volumes?${labels}`, needs: "volumes.persistent" },
        { schema: "PrewarmedImageList", path: `/v1/images?${labels}`, needs: "images.prewarm" },
        { schema: "PodRanges", path: "/v1/pod-ranges", needs: "pod_ranges" },
        { schema: "VolumeCapacity", path: "/v1/volume-capacity", needs: "volumes.persistent" },
        { schema: "EventList", path: `/v1/events?since=${revision}&timeout=10&${labels}`, needs: "events" },
      ];
      for (const { schema, path, needs } of routes) {
        if (needs !== undefined && !context.has(needs)) continue;
        const { body } = await context.http!.request("GET", path);
        const fault = context.http!.faultOf!(schema, body);
        context.expect(fault === undefined, `GET ${path} to answer a valid ${schema}`, fault ?? "");
        const { addresses = [] } = JSON.parse(body) as Partial<Machine>;
        const families = addresses.map(({ ip }) => ip.includes(":"));
        const came = `there are ${addresses.map(({ ip }) => ip).join(", ")}`;
        context.expect(new Set(families).size === families.length, "one address of each family at most", came);
      }
    },
  },
  {
    name: "http/absent-has-the-envelope",
    why: "A 404 without it may come from a proxy, and proves nothing.",
    async run(context: CheckContext) {
      const reply = await context.http!.request("GET", `/v1/machines/${context.id()}`);
      expectRefusal(context, reply, "a get of an absent machine", [404], "not_found");
    },
  },
  {
    name: "http/unknown-routes-are-unsupported",
    why: "`not_found` is proof that a machine is absent; a wrong base path must not give that proof.",
    async run(context: CheckContext) {
      const reply = await context.http!.request("GET", "/v1/no-such-route");
      expectRefusal(context, reply, "an unknown route", [501, 404], "unsupported");
    },
  },
  {
    name: "http/missing-capabilities-are-501",
    why: "The agent tells a missing feature from a failing backend by it.",
    skip: (context) => (missingRoutes(context).length === 0 ? "the backend has all gated routes" : undefined),
    async run(context: CheckContext) {
      for (const { path } of missingRoutes(context)) {
        expectRefusal(context, await context.http!.request("GET", path), `GET ${path}`, [501], "unsupported");
      }
    },
  },
  {
    name: "http/unknown-fields-are-refused",
    why: "A field that is ignored runs something else than what was asked for.",
    async run(context: CheckContext) {
      const body = JSON.stringify({ ...context.spec(FOREVER), no_such_field: true });
      expectRefusal(context, await put(context, body), "a specification with an unknown field", [400, 422], "invalid");
      const nested = context.spec(FOREVER);
      const inner = JSON.stringify({ ...nested, containers: [{ ...nested.containers[0], no_such_field: true }] });
      expectRefusal(context, await put(context, inner), "a container with an unknown field", [400, 422], "invalid");
    },
  },
  {
    name: "http/x-fields-are-taken",
    why: "They let a client say more to a backend that knows them, without breaking one that does not.",
    async run(context: CheckContext) {
      const { status } = await put(context, JSON.stringify({ ...context.spec(FOREVER), "x-conformance": { a: 1 } }));
      context.expect(
        status === 200 || status === 201,
        "a field that begins with x- to be taken",
        `HTTP ${status} came`,
      );
    },
  },
  {
    name: "http/invalid-values-are-refused",
    why: "A specification that can never work must fail its pod at once.",
    async run(context: CheckContext) {
      const body = JSON.stringify({ ...context.spec(FOREVER), restart_policy: "sometimes" });
      expectRefusal(context, await put(context, body), "an unknown restart policy", [400, 422], "invalid");
    },
  },
  {
    name: "http/malformed-json-is-refused",
    why: "It is the client's fault, and repeating it would not help.",
    async run(context: CheckContext) {
      expectRefusal(context, await put(context, '{"labels":'), "a body that is not JSON", [400], "invalid");
    },
  },
  {
    name: "http/unknown-parameters-are-refused",
    why: "A misspelt selector that is ignored lists, and so touches, other people's machines.",
    async run(context: CheckContext) {
      const reply = await context.http!.request("GET", "/v1/machines?labels=a%3Db");
      expectRefusal(context, reply, "an unknown query parameter", [400], "invalid");
    },
  },
  {
    name: "http/a-strange-cursor-is-refused",
    why: "To begin again from the start would list machines twice.",
    async run(context: CheckContext) {
      const reply = await context.http!.request("GET", "/v1/machines?cursor=%21%21");
      expectRefusal(context, reply, "a cursor that the backend did not make", [400], "invalid");
    },
  },
  {
    name: "http/pages-have-everything-once",
    why: "A machine that falls between two pages looks lost; one that comes twice makes the list invalid.",
    async run(context: CheckContext) {
      const ids: string[] = [];
      for (let i = 0; i < 5; i++) ids.push((await context.create(FOREVER)).id);
      await context.untilTrue("five machines in the list", async () => (await context.list()).items.length === 5);
      const seen: string[] = [];
      const revisions = new Set<number>();
      for (let cursor = "", pages = 0; pages < 10; pages++) {
        const path = `/v1/machines?${labelQuery(context)}&limit=2${cursor && `&cursor=${encodeURIComponent(cursor)}`}`;
        const { body } = await context.http!.request("GET", path);
        const page = JSON.parse(body) as { items: Machine[]; next_cursor?: string; revision: number };
        context.expect(
          page.items.length <= 2,
          "no more machines on a page than asked for",
          `there are ${page.items.length}`,
        );
        seen.push(...page.items.map(({ id }) => id));
        revisions.add(page.revision);
        // What comes and goes between two pages must not move the others.
        if (pages === 0) await context.delete((await context.create(FOREVER, { labels: {} })).id);
        if (page.next_cursor === undefined) break;
        cursor = page.next_cursor;
      }
      context.expect(
        seen.toSorted().join() === ids.toSorted().join(),
        "each of five machines on one page",
        `the pages have ${seen.length}: ${seen.join(", ")}`,
      );
      context.expect(
        revisions.size === 1,
        "all pages to say the first one's revision",
        `they say ${[...revisions].join(", ")}`,
      );
    },
  },
  {
    name: "http/delete-of-absent-is-2xx",
    why: "The tombstone is what the client is after; there is nothing to complain about.",
    async run(context: CheckContext) {
      const { status } = await context.http!.request("DELETE", `/v1/machines/${context.id()}`);
      context.expect(status === 202 || status === 204, "202 or 204", `HTTP ${status} came`);
    },
  },
  {
    name: "http/get-waits-for-a-change",
    why: "It is how a backend without events is still followed closely.",
    async run(context: CheckContext) {
      const { id, version } = await context.running(FOREVER);
      const promptMs = await timeOfPlainGet(context, id);
      const waiting = context.http!.request("GET", `/v1/machines/${id}?since_version=${version}&timeout=40`);
      await context.clock.sleep(enough(promptMs), context.signal);
      await context.stop(id, 0);
      const changed = JSON.parse((await waiting).body) as Machine;
      context.expect(changed.version > version, `a version above ${version}`, `it is ${changed.version}`);
    },
  },
  {
    name: "http/get-returns-when-its-time-is-over",
    why: "A long poll that does not end looks like a dead backend.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const seconds = 1 + Math.ceil((5 * (await timeOfPlainGet(context, id))) / 1000);
      const startedAt = context.clock.monotonic();
      const { status } = await context.http!.request("GET", `/v1/machines/${id}?wait=deleted&timeout=${seconds}`);
      const tookMs = context.clock.monotonic() - startedAt;
      context.expect(status === 200, "the machine as it is, with 200", `HTTP ${status} came`);
      const inTime = tookMs > seconds * 1000 - 200 && tookMs < seconds * 1000 + 10_000;
      context.expect(inTime, `the reply after ${seconds} s`, `it came after ${Math.round(tookMs)} ms`);
    },
  },
  {
    name: "http/long-poll-of-events",
    needs: ["events"],
    why: "It is for clients that cannot hold a stream open.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const { id } = await context.create(FOREVER);
      const { body } = await context.http!.request(
        "GET",
        `/v1/events?since=${revision}&timeout=10&${labelQuery(context)}`,
      );
      const reply = JSON.parse(body) as { events?: { machine: Machine; revision: number }[]; revision?: number };
      context.expect(
        reply.events?.some(({ machine }) => machine.id === id) === true,
        `an event of machine ${id}`,
        `there are ${reply.events?.length ?? 0} events`,
      );
      context.expect((reply.revision ?? 0) > revision, "the revision to ask from next", `it is ${reply.revision}`);
    },
  },
  {
    name: "http/wants-credentials",
    why: "Whoever can call this API can run anything.",
    skip: (context) => (context.http?.hasCredentials === true ? undefined : "no credentials are in use"),
    async run(context: CheckContext) {
      const reply = await context.http!.request("GET", "/v1/machines", { anonymous: true });
      expectRefusal(context, reply, "a call without credentials", [401, 403], "unauthorized");
    },
  },
];

export const HTTP_CHECKS: readonly Check[] = [...RULES, ...HTTP_REQUEST_CHECKS, ...HTTP_LIST_CHECKS].map((rule) => ({
  ...rule,
  needsHttp: true,
}));
