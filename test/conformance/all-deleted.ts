import { expect, vi } from "vitest";
import type { Provider } from "../../src/provider/provider.ts";

/** Waits until a backend has no machine any more, so that closing it leaves nothing behind: the kit only asks for the deletes. */
export async function allDeleted(provider: Provider): Promise<void> {
  const signal = AbortSignal.timeout(60_000);
  await vi.waitFor(async () => expect((await provider.getPods({ labels: {}, signal })).items).toEqual([]), {
    timeout: 60_000,
    interval: 50,
  });
}
