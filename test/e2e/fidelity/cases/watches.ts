/** Watches: where they begin, what they send, how they end. */
import { expect } from "vitest";
import { MERGE, configMap, leasesIn, mapsIn, must, pod, podsIn, type FidelityCase } from "../support.ts";

export const watchesCases: readonly FidelityCase[] = [
  {
    name: "a watch from a revision sends what came after it, in order",
    async run(api, ns) {
      const start = await must(api.request("GET", mapsIn(ns)), 200);
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const watch = await api.watch(
        `${mapsIn(ns)}?watch=true&resourceVersion=${start.metadata.resourceVersion}&fieldSelector=metadata.name%3Dm`,
      );
      await must(api.request("PATCH", mapsIn(ns, "m"), { data: { a: "1" } }, MERGE), 200);
      await must(api.request("DELETE", mapsIn(ns, "m")), 200);
      const events = [await watch.nextChange(), await watch.nextChange(), await watch.nextChange()];
      expect(events.map((event) => event.type)).toEqual(["ADDED", "MODIFIED", "DELETED"]);
      expect(events[2]!.object).toMatchObject({ kind: "ConfigMap", apiVersion: "v1", data: { a: "1" } });
      const revisions = events.map((event) => Number(event.object.metadata.resourceVersion));
      expect(revisions).toEqual(revisions.toSorted((a, b) => a - b));
      watch.close();
    },
  },
  {
    name: "a watch without a revision starts with what there is",
    async run(api, ns) {
      for (const name of ["a", "b"]) await must(api.request("POST", leasesIn(ns), { metadata: { name } }), 201);
      for (const query of ["", "&resourceVersion=0"]) {
        const watch = await api.watch(`${leasesIn(ns)}?watch=true${query}`);
        const events = [await watch.nextChange(), await watch.nextChange()];
        expect(events.map((event) => [event.type, event.object.metadata.name])).toEqual([
          ["ADDED", "a"],
          ["ADDED", "b"],
        ]);
        watch.close();
      }
    },
  },
  {
    name: "an object that leaves the selector is DELETED for the watcher, in its last matching state",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), configMap("m", {}, { labels: { in: "yes" } })), 201);
      const watch = await api.watch(
        `${mapsIn(ns)}?watch=true&resourceVersion=${created.metadata.resourceVersion}&labelSelector=in%3Dyes`,
      );
      const left = await must(
        api.request("PATCH", mapsIn(ns, "m"), { metadata: { labels: { in: "no" } } }, MERGE),
        200,
      );
      const gone = await watch.nextChange();
      expect(gone.type).toBe("DELETED");
      expect(gone.object.metadata).toMatchObject({
        resourceVersion: left.metadata.resourceVersion,
        labels: { in: "yes" },
      });
      await must(api.request("PATCH", mapsIn(ns, "m"), { metadata: { labels: { in: "yes" } } }, MERGE), 200);
      expect((await watch.nextChange()).type).toBe("ADDED");
      watch.close();
    },
  },
  {
    name: "a pod that is bound enters the watch of its node",
    async run(api, ns) {
      const node = `node-${ns}`;
      const created = await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const watch = await api.watch(
        `/api/v1/pods?watch=true&resourceVersion=${created.metadata.resourceVersion}&fieldSelector=spec.nodeName%3D${node}`,
      );
      await must(
        api.request("POST", `${podsIn(ns, "p")}/binding`, {
          metadata: { name: "p" },
          target: { kind: "Node", name: node },
        }),
        201,
      );
      const event = await watch.nextChange();
      expect([event.type, event.object.metadata.name, event.object.spec.nodeName]).toEqual(["ADDED", "p", node]);
      watch.close();
    },
  },
  {
    name: "timeoutSeconds ends a watch cleanly",
    async run(api, ns) {
      const watch = await api.watch(`${mapsIn(ns)}?watch=true&resourceVersion=0&timeoutSeconds=1`);
      await watch.ended(10_000);
    },
  },
  {
    name: "sendInitialEvents ends the initial events with a bookmark",
    async run(api, ns) {
      await must(api.request("POST", leasesIn(ns), { metadata: { name: "a" } }), 201);
      const watch = await api.watch(
        `${leasesIn(ns)}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan`,
      );
      expect((await watch.next()).type).toBe("ADDED");
      const bookmark = await watch.next();
      expect(bookmark.type).toBe("BOOKMARK");
      expect(bookmark.object.metadata.annotations).toEqual({ "k8s.io/initial-events-end": "true" });
      watch.close();
    },
  },
];
