/** Which requests a backend refuses, and which it must take. */
import type { Capability } from "../../capabilities.ts";
import type { Machine, MachineSpec } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, type CheckContext } from "../context.ts";
import { expectRefusal, JSON_BODY, put, type Reply } from "./http-replies.ts";

const EXTRA = { no_such_field: true };
const PATCHES: readonly Capability[] = [
  "patch_files",
  "patch_image",
  "patch_registry_auth",
  "resize",
  "resize_machine",
  "ephemeral_containers",
];

const post = (context: CheckContext, id: string, body: unknown): Promise<Reply> =>
  context.http!.request("POST", `/v1/machines/${id}/stop`, { headers: JSON_BODY, body: JSON.stringify(body) });

const UPGRADE = {
  connection: "Upgrade",
  upgrade: "websocket",
  "sec-websocket-version": "13",
  "sec-websocket-key": "Y29uZm9ybWFuY2Uta2l0IQ==",
};
const what = (offered: object): string =>
  Object.keys(offered).length === 0 ? "no subprotocol" : "another subprotocol alone";

/** The specification with another main container. */
const withMain = (context: CheckContext, rest: object): object => {
  const spec = context.spec(FOREVER);
  return { ...spec, containers: [{ ...spec.containers[0], ...rest }] };
};

async function refusesAll(context: CheckContext, specs: Readonly<Record<string, object>>): Promise<void> {
  for (const [where, spec] of Object.entries(specs))
    expectRefusal(
      context,
      await put(context, JSON.stringify(spec)),
      `a specification with ${where}`,
      [400, 422],
      "invalid",
    );
}

async function takes(context: CheckContext, body: string, what: string): Promise<Machine> {
  const reply = await put(context, body);
  const took = reply.status === 200 || reply.status === 201;
  context.expect(took, `${what} to be taken with 200 or 201`, `HTTP ${reply.status} came: ${reply.body.slice(0, 200)}`);
  return JSON.parse(reply.body) as Machine;
}

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
/** As callers, and what stands between, may send them. */
const TRACES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  "a traceparent": { traceparent: `00-${TRACE}-01`, tracestate: "vendor=opaque,other@tenant=1" },
  "a traceparent of a later version": { traceparent: `cc-${TRACE}-01-what-is-not-known-yet` },
  "a traceparent that is none": { traceparent: "00-not-a-trace" },
  "a tracestate that is none, without a traceparent": { tracestate: "=,=;;" },
  "a traceparent of 2000 characters": { traceparent: `cc-${TRACE}-01-${"f".repeat(2000)}` },
};

export const HTTP_REQUEST_CHECKS: readonly Omit<Check, "needsHttp">[] = [
  {
    name: "http/trace-headers-change-nothing",
    why: "They come from whatever calls the client, too: one that is not understood must not keep a machine from being made.",
    async run(context: CheckContext) {
      const body = JSON.stringify(context.spec(FOREVER));
      for (const [what, headers] of Object.entries(TRACES)) {
        const path = `/v1/machines/${context.id()}`;
        const made = await context.http!.request("PUT", path, { headers: { ...JSON_BODY, ...headers }, body });
        const isMade = made.status === 200 || made.status === 201;
        context.expect(isMade, `a PUT with ${what} to be taken with 200 or 201`, `HTTP ${made.status} came`);
        const { status } = await context.http!.request("GET", path, { headers });
        context.expect(status === 200, `a GET with ${what} to answer 200`, `HTTP ${status} came`);
      }
    },
  },
  {
    name: "http/unknown-fields-anywhere-are-refused",
    why: "A field that is ignored, however deep, runs something else than what was asked for.",
    run: (context: CheckContext) =>
      refusesAll(context, {
        "an unknown field in env": withMain(context, { env: [{ name: "A", value: "b", ...EXTRA }] }),
        "an unknown field in resources": withMain(context, { resources: { ...EXTRA } }),
        "an unknown field in resources.limits": withMain(context, { resources: { limits: { ...EXTRA } } }),
        "an unknown field in ports": withMain(context, { ports: [{ port: 80, protocol: "tcp", ...EXTRA }] }),
        "an unknown field in stop": withMain(context, { stop: { ...EXTRA } }),
      }),
  },
  {
    name: "http/unknown-fields-of-the-machine's-parts-are-refused",
    why: "What a machine has beside its containers is asked for as much.",
    run: (context: CheckContext) =>
      refusesAll(context, {
        "an unknown field in backoff": {
          ...context.spec(FOREVER),
          backoff: { initial_ms: 1, max_ms: 2, ...EXTRA },
        },
        "an unknown field in the machine's resources": { ...context.spec(FOREVER), resources: { requests: EXTRA } },
      }),
  },
  {
    name: "http/unknown-fields-of-a-stop-are-refused",
    why: "A stop that means something else than its client did loses data.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const reply = await post(context, id, { grace_seconds: 30, ...EXTRA });
      expectRefusal(context, reply, "a stop with an unknown field", [400, 422], "invalid");
    },
  },
  {
    name: "http/unknown-fields-of-a-patch-are-refused",
    why: "A change that is dropped silently is one that its client takes for made.",
    skip: (context) =>
      PATCHES.some((capability) => context.has(capability)) ? undefined : "the backend takes no patches",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const body = JSON.stringify(EXTRA);
      const reply = await context.http!.request("PATCH", `/v1/machines/${id}`, { headers: JSON_BODY, body });
      expectRefusal(context, reply, "a patch with an unknown field", [400, 422], "invalid");
    },
  },
  {
    name: "http/a-stop-without-its-grace-is-refused",
    why: "How long a workload has is the client's to say; a guess is too short for somebody.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      expectRefusal(context, await post(context, id, {}), "a stop without grace_seconds", [400, 422], "invalid");
    },
  },
  {
    name: "http/a-negative-grace-is-refused",
    why: "It means nothing, and to take it for 0 would kill.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const reply = await post(context, id, { grace_seconds: -1 });
      expectRefusal(context, reply, "a stop with a grace below 0", [400, 422], "invalid");
    },
  },
  {
    name: "http/missing-fields-are-refused",
    why: "What is required has no default that is right for everybody.",
    run(context: CheckContext) {
      const { restart_policy: _policy, ...withoutPolicy } = context.spec(FOREVER);
      const { labels: _labels, ...withoutLabels } = context.spec(FOREVER);
      return refusesAll(context, { "no restart_policy": withoutPolicy, "no labels": withoutLabels });
    },
  },
  {
    name: "http/a-machine-without-containers-is-refused",
    why: "It would run nothing, and never be over.",
    run: (context: CheckContext) =>
      refusesAll(context, { "no containers": { ...context.spec(FOREVER), containers: [] } }),
  },
  {
    name: "http/wrong-types-are-refused",
    why: "A guess at what was meant is a wrong one for somebody.",
    run: (context: CheckContext) =>
      refusesAll(context, {
        "a command that is one string": withMain(context, { command: "sleep 3600" }),
        "a grace period that is text": { ...context.spec(FOREVER), termination_grace_s: "30" },
      }),
  },
  {
    name: "http/two-containers-of-one-name-are-refused",
    why: "Whose log, exit code and command it is would be anybody's guess.",
    needs: ["multi_container"],
    run(context: CheckContext) {
      const main = context.container(FOREVER);
      return refusesAll(context, {
        "two containers of one name": { ...context.spec(FOREVER), containers: [main, main] },
      });
    },
  },
  {
    name: "http/a-body-that-is-no-object-is-refused",
    why: "It is the client's fault, and repeating it would not help.",
    async run(context: CheckContext) {
      for (const body of ["[]", '"text"', "null"])
        expectRefusal(context, await put(context, body), `the body ${body}`, [400, 422], "invalid");
    },
  },
  {
    name: "http/an-id-of-another-form-is-refused",
    why: "Ids become file names and host names.",
    async run(context: CheckContext) {
      const body = JSON.stringify(context.spec(FOREVER));
      const reply = await context.http!.request("PUT", "/v1/machines/Not_An_Id", { headers: JSON_BODY, body });
      expectRefusal(context, reply, "a create with the id Not_An_Id", [400, 422], "invalid");
    },
  },
  ...(["exec", "attach"] as const).map((capability): Omit<Check, "needsHttp"> => ({
    name: `http/${capability}-without-the-subprotocol-is-refused`,
    needs: [capability],
    why: "Two sides that do not speak the same take input for output, and an end for none.",
    async run(context: CheckContext) {
      const { id } = await context.running("", {
        containers: [context.container(FOREVER, { stdin: capability === "attach" })],
      });
      const query = capability === "exec" ? "command=true&stdout=true" : "stdout=true";
      for (const offered of [{}, { "sec-websocket-protocol": "conformance.example" }]) {
        const path = `/v1/machines/${id}/containers/main/${capability}?${query}`;
        const reply = await context.http!.request("GET", path, { headers: { ...UPGRADE, ...offered } });
        expectRefusal(context, reply, `a WebSocket with ${what(offered)}`, [400], "invalid");
      }
    },
  })),
  {
    name: "http/key-order-does-not-matter",
    why: "A newer client may write the same specification in another order; it is the same all the same.",
    async run(context: CheckContext) {
      const path = `/v1/machines/${context.id()}`;
      const spec = context.spec(FOREVER);
      const reversed = Object.fromEntries(Object.entries(spec).toReversed()) as unknown as MachineSpec;
      const ask = (body: unknown) =>
        context.http!.request("PUT", path, { headers: JSON_BODY, body: JSON.stringify(body) });
      const first = await ask(spec);
      const second = await ask({
        ...reversed,
        containers: [Object.fromEntries(Object.entries(spec.containers[0]!).toReversed())],
      });
      context.expect(
        second.status === 200 || second.status === 201,
        `the same specification with its keys in another order to be the same (HTTP ${first.status} at first)`,
        `HTTP ${second.status} came`,
      );
    },
  },
  {
    name: "http/a-large-specification-is-taken",
    why: "ConfigMaps and Secrets are up to a mebibyte, and come with the specification.",
    async run(context: CheckContext) {
      const env = Array.from({ length: 300 }, (_, at) => ({ name: `LARGE_${at}`, value: "x".repeat(1000) }));
      await takes(context, JSON.stringify(withMain(context, { env })), "a specification of 300 KB");
    },
  },
  {
    name: "http/x-fields-anywhere-are-taken",
    why: "They let a client say more to a backend that knows them, wherever it belongs.",
    async run(context: CheckContext) {
      const env = [{ name: "A", value: "b", "x-more": 1 }];
      await takes(
        context,
        JSON.stringify(withMain(context, { env, "x-hint": { a: 1 } })),
        "x- fields inside a container",
      );
    },
  },
  {
    name: "http/text-is-utf-8",
    why: "Names and values of users are in all languages.",
    async run(context: CheckContext) {
      const labels = { ...context.labels, word: "größe 漢字 🚀" };
      const machine = await takes(context, JSON.stringify(context.spec(FOREVER, { labels })), "a label in UTF-8");
      context.expect(
        machine.labels["word"] === labels.word,
        `the label ${labels.word} back`,
        `it is ${JSON.stringify(machine.labels["word"])}`,
      );
    },
  },
  {
    name: "http/a-limit-of-0-is-refused",
    why: "Pages with nothing on them never end.",
    async run(context: CheckContext) {
      const reply = await context.http!.request("GET", "/v1/machines?limit=0");
      expectRefusal(context, reply, "a list with limit 0", [400, 422], "invalid");
    },
  },
  {
    name: "http/a-parameter-that-is-no-number-is-refused",
    why: "To take it for absent would wait, or answer, otherwise than asked.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const reply = await context.http!.request("GET", `/v1/machines/${id}?since_version=soon&timeout=1`);
      expectRefusal(context, reply, "since_version=soon", [400, 422], "invalid");
    },
  },
  {
    name: "http/unknown-methods-are-not-absence",
    why: "`not_found` for a route that the backend lacks would be taken as proof that a machine is absent.",
    async run(context: CheckContext) {
      const reply = await context.http!.request("POST", "/v1/machines");
      expectRefusal(context, reply, "POST /v1/machines", [501, 405, 404], "unsupported");
    },
  },
  {
    name: "http/a-wrong-token-is-refused",
    why: "A token that is not looked at is none.",
    skip: (context) => (context.http?.hasCredentials === true ? undefined : "no credentials are in use"),
    async run(context: CheckContext) {
      const headers = { authorization: "Bearer conformance-wrong" };
      const reply = await context.http!.request("GET", "/v1/machines", { anonymous: true, headers });
      expectRefusal(context, reply, "a call with a wrong token", [401, 403], "unauthorized");
    },
  },
  {
    name: "http/strangers-learn-nothing",
    why: "`not_found` would be proof of absence, and the wrong one for an agent whose token has expired.",
    skip: (context) => (context.http?.hasCredentials === true ? undefined : "no credentials are in use"),
    async run(context: CheckContext) {
      const reply = await context.http!.request("GET", `/v1/machines/${context.id()}`, { anonymous: true });
      expectRefusal(context, reply, "a get of an absent machine without credentials", [401, 403], "unauthorized");
    },
  },
];
