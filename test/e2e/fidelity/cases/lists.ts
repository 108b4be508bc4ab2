/** Lists: selectors, pages, versions. */
import { expect } from "vitest";
import type { Json } from "../api.ts";
import { configMap, expectStatus, leasesIn, mapsIn, must, pod, podsIn, type FidelityCase } from "../support.ts";

export const listsCases: readonly FidelityCase[] = [
  {
    name: "a list has a revision, is sorted by name, and its items have no kind",
    async run(api, ns) {
      for (const name of ["b", "a", "c"])
        await must(api.request("POST", mapsIn(ns), configMap(name, {}, { labels: { mine: "yes" } })), 201);
      const list = await must(api.request("GET", `${mapsIn(ns)}?labelSelector=mine`), 200);
      expect(list).toMatchObject({ kind: "ConfigMapList", apiVersion: "v1" });
      expect(list.items.map((item: Json) => item.metadata.name)).toEqual(["a", "b", "c"]);
      expect(list.items[0]).not.toHaveProperty("kind");
      expect(Number(list.metadata.resourceVersion)).toBeGreaterThanOrEqual(
        Number(list.items[2].metadata.resourceVersion),
      );
    },
  },
  {
    name: "label selectors know equality, sets and existence",
    async run(api, ns) {
      for (const [name, labels] of [
        ["m1", { e: "prod", t: "web" }],
        ["m2", { e: "test" }],
        ["m3", { t: "web" }],
      ] as const)
        await must(api.request("POST", mapsIn(ns), configMap(name, {}, { labels: { ...labels, mine: "yes" } })), 201);
      const select = async (selector: string) =>
        (
          await must(api.request("GET", `${mapsIn(ns)}?labelSelector=${encodeURIComponent(`mine,${selector}`)}`), 200)
        ).items.map((item: Json) => item.metadata.name as string);
      expect(await select("e=prod")).toEqual(["m1"]);
      expect(await select("e!=prod")).toEqual(["m2", "m3"]);
      expect(await select("e in (prod,test)")).toEqual(["m1", "m2"]);
      expect(await select("e notin (prod)")).toEqual(["m2", "m3"]);
      expect(await select("!e")).toEqual(["m3"]);
      expect(await select("e,t=web")).toEqual(["m1"]);
    },
  },
  {
    name: "field selectors select pods by node and phase, and an unknown field is 400",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("bound", { nodeName: "nowhere" })), 201);
      await must(api.request("POST", podsIn(ns), pod("free")), 201);
      const select = async (selector: string) =>
        (await must(api.request("GET", `${podsIn(ns)}?fieldSelector=${encodeURIComponent(selector)}`), 200)).items.map(
          (item: Json) => item.metadata.name as string,
        );
      expect(await select("spec.nodeName=nowhere")).toEqual(["bound"]);
      expect(await select("spec.nodeName=,status.phase=Pending")).toEqual(["free"]);
      expect(await select("metadata.name!=free")).toEqual(["bound"]);
      expectStatus(await api.request("GET", `${podsIn(ns)}?fieldSelector=spec.nope%3D1`), {
        code: 400,
        reason: "BadRequest",
        message: /^field label not supported: spec\.nope$/,
      });
    },
  },
  {
    name: "a paged list is consistent: a page sees the state of the first page",
    async run(api, ns) {
      for (const name of ["a", "b", "c"]) await must(api.request("POST", leasesIn(ns), { metadata: { name } }), 201);
      const first = await must(api.request("GET", `${leasesIn(ns)}?limit=2`), 200);
      expect(first.items.map((item: Json) => item.metadata.name)).toEqual(["a", "b"]);
      expect(first.metadata.remainingItemCount).toBe(1);
      await must(api.request("POST", leasesIn(ns), { metadata: { name: "d" } }), 201);
      await must(api.request("DELETE", leasesIn(ns, "c")), 200);
      const second = await must(
        api.request("GET", `${leasesIn(ns)}?limit=2&continue=${encodeURIComponent(first.metadata.continue)}`),
        200,
      );
      expect(second.items.map((item: Json) => item.metadata.name)).toEqual(["c"]);
      expect(second.metadata.resourceVersion).toBe(first.metadata.resourceVersion);
      expect(second.metadata).not.toHaveProperty("continue");
    },
  },
  {
    name: "a list at an exact revision shows the past",
    async run(api, ns) {
      await must(api.request("POST", leasesIn(ns), { metadata: { name: "a" } }), 201);
      const then = await must(api.request("GET", leasesIn(ns)), 200);
      await must(api.request("DELETE", leasesIn(ns, "a")), 200);
      const past = await must(
        api.request(
          "GET",
          `${leasesIn(ns)}?resourceVersion=${then.metadata.resourceVersion}&resourceVersionMatch=Exact`,
        ),
        200,
      );
      expect(past.items.map((item: Json) => item.metadata.name)).toEqual(["a"]);
      expect((await must(api.request("GET", leasesIn(ns)), 200)).items).toEqual([]);
    },
  },
  {
    name: "a revision from the future is 504 with ResourceVersionTooLarge",
    async run(api, ns) {
      const answer = await api.request("GET", `${leasesIn(ns)}?resourceVersion=999999999999`);
      expectStatus(answer, {
        code: 504,
        reason: "Timeout",
        message: /Too large resource version: 999999999999, current: \d+$/,
      });
      expect(answer.body.details.causes).toContainEqual({
        reason: "ResourceVersionTooLarge",
        message: "Too large resource version",
      });
      expect(answer.body.details.retryAfterSeconds).toBe(1);
    },
  },
];
