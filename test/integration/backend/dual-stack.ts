/** Machines of two families, on a real engine: a backend of its own process. */
import { expect, test } from "vitest";
import { inRanges } from "../../../src/util/cidr.ts";
import { waitFor } from "../../e2e/harness/wait.ts";
import { type ContainerEngine, engineOnThisHost } from "../../support/engines.ts";
import { secondRange, testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { OWN, withOwnBackend } from "./own-backend.ts";

const { signal } = new AbortController();
const SERVE = "mkdir /tmp/www && echo served > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www";

export async function dualStack(type: ContainerEngine): Promise<void> {
  const missing = [...(await engineOnThisHost(type)).missing, ...[missingForImages() ?? []].flat()];
  const what = `machines have an address of each family of their Node's and are reached by both, on engine ${type}`;
  if (missing.length > 0) leaveOut(what, missing);
  else test(what, () => hasBothFamilies(type));
}

async function hasBothFamilies(type: ContainerEngine): Promise<void> {
  const { bridge, cidr = "" } = testNetwork("");
  const ranges = [cidr, secondRange(cidr)];
  const network = { bridge, cidr: "node", podCidrs: [cidr, "fd00:99::/32"] };
  await withOwnBackend(type, { network }, async ({ provider, restart, create, addressesOf }) => {
    expect(await provider.podRanges.put({ labels: OWN, ranges }, { signal })).toMatchObject({ ranges, state: "ready" });
    await create("one", { command: ["sh", "-c", SERVE] });
    const one = await addressesOf("one");
    expect(one.map((address, at) => inRanges([ranges[at]!])(address))).toEqual([true, true]);
    const served = async () => {
      for (const host of [one[0]!, `[${one[1]}]`])
        await waitFor({ what: `an answer of ${host}`, timeoutMs: 30_000 }, async () => {
          expect(await (await fetch(`http://${host}:8080/`)).text()).toBe("served\n");
        });
    };
    await served();

    const heard = one.map(
      (address) => `printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 10 ${address} 8080 | grep -q served`,
    );
    const told = "grep -q ^fd00:99: /etc/hosts && grep -q ^fd000099 /proc/net/if_inet6";
    await create("two", { command: ["sh", "-c", [...heard, told].join(" && ")] });
    await waitFor({ what: "machine two to have called the other one", timeoutMs: 120_000 }, async () => {
      expect((await provider.getPod("two", { signal })).containers[0]).toMatchObject({ state: "terminated" });
    });
    expect((await provider.getPod("two", { signal })).containers[0]).toMatchObject({ terminated: { exit_code: 0 } });

    await restart();
    expect(await addressesOf("one")).toEqual(one);
    await served();
  });
}
