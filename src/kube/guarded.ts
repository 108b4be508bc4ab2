import type { Kube } from "./kube.ts";

/**
 * The API server for a caller that may lose the right to change anything: `guard` is asked before each request that is
 * not a read, when it is made and again right before it is sent, because it may have waited in between, or the whole
 * process was paused.
 *
 * @param guard throws when nothing may be changed any more; the request fails with what it throws
 */
export function guardedKube(kube: Kube, guard: () => void): Kube {
  return {
    async request(request) {
      if (request.method === "GET") return await kube.request(request);
      guard();
      return await kube.request({ ...request, guard });
    },
    watch: (request) => kube.watch(request),
  };
}
