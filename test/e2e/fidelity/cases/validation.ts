/** What objects the server does not take, and in which words. */
import { expect } from "vitest";
import { configMap, expectStatus, mapsIn, pod, podsIn, type FidelityCase } from "../support.ts";

export const validationCases: readonly FidelityCase[] = [
  {
    name: "a pod without a name, containers or image is 422 and every cause is listed",
    async run(api, ns) {
      const unnamed = await api.request("POST", podsIn(ns), { metadata: {}, spec: { containers: [] } });
      expectStatus(unnamed, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "" is invalid: [metadata.name: Required value: name or generateName is required, spec.containers: Required value]',
      });
      expect(unnamed.body.details.causes).toEqual([
        {
          reason: "FieldValueRequired",
          message: "Required value: name or generateName is required",
          field: "metadata.name",
        },
        { reason: "FieldValueRequired", message: "Required value", field: "spec.containers" },
      ]);
      const imageless = await api.request("POST", podsIn(ns), pod("p", { containers: [{ name: "a" }] }));
      expectStatus(imageless, {
        code: 422,
        reason: "Invalid",
        message: 'Pod "p" is invalid: spec.containers[0].image: Required value',
      });
    },
  },
  {
    name: "a name that is no DNS subdomain is 422 with the rule",
    async run(api, ns) {
      const answer = await api.request("POST", podsIn(ns), pod("Bad_Name"));
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message:
          "Pod \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
      });
    },
  },
  {
    name: "two containers of one name are 422",
    async run(api, ns) {
      const answer = await api.request(
        "POST",
        podsIn(ns),
        pod("p", {
          containers: [
            { name: "a", image: "i" },
            { name: "a", image: "i" },
          ],
        }),
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: 'Pod "p" is invalid: spec.containers[1].name: Duplicate value: "a"',
      });
    },
  },
  {
    name: "a mount of a volume that is not there is 422",
    async run(api, ns) {
      const answer = await api.request(
        "POST",
        podsIn(ns),
        pod("p", { containers: [{ name: "a", image: "i", volumeMounts: [{ name: "v", mountPath: "/v" }] }] }),
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: 'Pod "p" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "v"',
      });
    },
  },
  {
    name: "requests above limits are 422",
    async run(api, ns) {
      const answer = await api.request(
        "POST",
        podsIn(ns),
        pod("p", {
          containers: [{ name: "a", image: "i", resources: { limits: { cpu: "1" }, requests: { cpu: "2" } } }],
        }),
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "p" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
      });
    },
  },
  {
    name: "an unknown restart policy is 422 with the supported ones",
    async run(api, ns) {
      const answer = await api.request("POST", podsIn(ns), pod("p", { restartPolicy: "Maybe" }));
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "p" is invalid: spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"',
      });
    },
  },
  {
    name: "an unknown field is dropped with a warning, or refused when validation is strict",
    async run(api, ns) {
      const body = { ...configMap("m"), bogus: 1 };
      const warned = await api.request("POST", mapsIn(ns), body);
      expect(warned.status).toBe(201);
      expect(warned.headers["warning"]).toContain('299 - "unknown field \\"bogus\\""');
      expect(warned.body).not.toHaveProperty("bogus");
      const strict = await api.request("POST", `${mapsIn(ns)}?fieldValidation=Strict`, {
        ...configMap("m2"),
        bogus: 1,
      });
      expectStatus(strict, {
        code: 400,
        reason: "BadRequest",
        message: /strict decoding error: unknown field "bogus"$/,
      });
    },
  },
  {
    name: "a field of the wrong type is 400",
    async run(api, ns) {
      const answer = await api.request("POST", podsIn(ns), pod("p", { terminationGracePeriodSeconds: "soon" }));
      expectStatus(answer, {
        code: 400,
        reason: "BadRequest",
        message:
          /^Pod in version "v1" cannot be handled as a Pod: .*cannot unmarshal string into Go struct field .*spec\.terminationGracePeriodSeconds/,
      });
    },
  },
  {
    name: "a dry run answers as the real thing and stores nothing",
    async run(api, ns) {
      const answer = await api.request("POST", `${mapsIn(ns)}?dryRun=All`, configMap("m"));
      expect(answer.status).toBe(201);
      expect(answer.body.metadata).not.toHaveProperty("resourceVersion");
      expect((await api.request("GET", mapsIn(ns, "m"))).status).toBe(404);
    },
  },
];
