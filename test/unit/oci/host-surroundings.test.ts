/** What other programs have made of this host, and what is done about it: resolvers, Docker's rules, control groups. */
import { describe, expect, test } from "vitest";
import { delegateControllers, missingControllers } from "../../../providers/local/bundle/delegation.ts";
import { checkResolvConf, hostResolvConf } from "../../../providers/local/bundle/host-resolv.ts";
import { checkForwarding } from "../../../providers/local/network/forward-policy.ts";

describe("name servers of a host", () => {
  const host = (files: Record<string, string>) => (path: string) => Promise.resolve(files[path]);
  const STUB = "nameserver 127.0.0.53\noptions edns0\n";
  const REAL = "nameserver 192.0.2.1\n";
  const RESOLVED = "/run/systemd/resolve/resolv.conf";

  test("are those that systemd-resolved asks, where the host has its stub", async () => {
    const read = host({ "/etc/resolv.conf": STUB, [RESOLVED]: REAL });
    expect(await hostResolvConf(read)).toBe(REAL);
    expect(await checkResolvConf(read)).toEqual([]);
  });
  test.each([REAL, `${STUB}${REAL}`, ""])("stay as they are otherwise: %j", async (text) => {
    const read = host({ "/etc/resolv.conf": text, [RESOLVED]: "nameserver 192.0.2.9\n" });
    expect(await hostResolvConf(read)).toBe(text);
    expect(await checkResolvConf(read)).toEqual([]);
  });
  test.each([{ "/etc/resolv.conf": STUB }, { "/etc/resolv.conf": "nameserver ::1\n", [RESOLVED]: STUB }])(
    "that machines cannot reach are told by the check: %j",
    async (files) => {
      expect(await checkResolvConf(host(files))).toEqual([
        { fatal: false, problem: expect.stringContaining("loopback"), cure: expect.any(String) },
      ]);
    },
  );
});

describe("a host that forwards nothing by default", () => {
  const chain =
    (policy: string, more = "") =>
    () =>
      Promise.resolve(
        `table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy ${policy};\n${more}\t}\n}\n`,
      );
  test("is told by the check, with what to do", async () =>
    expect(await checkForwarding({}, chain("drop"))).toEqual([
      {
        fatal: false,
        problem: expect.stringContaining("Docker"),
        cure: expect.stringContaining("-i vmlet0 -j ACCEPT"),
      },
    ]));
  test("of IPv6 is told where machines have that: by it they do not even reach each other", async () => {
    const list = (family: string) => (family === "ip6" ? chain("drop")() : chain("accept")());
    expect(await checkForwarding({}, list)).toEqual([]);
    for (const network of [{ cidr: "10.9.0.0/16,fd00::/64" }, { cidr: "node", podCidrs: ["10.9.0.0/16", "fd00::/48"] }])
      expect(await checkForwarding(network, list)).toEqual([
        {
          fatal: false,
          problem: expect.stringContaining("each other by IPv6"),
          cure: expect.stringMatching(/^ip6tables/),
        },
      ]);
  });
  test("is well when its owner lets the bridge through, when it forwards, and when there are no such rules", async () => {
    expect(await checkForwarding({}, chain("drop", '\t\tiifname "vmlet0" accept\n'))).toEqual([]);
    expect(await checkForwarding({}, chain("accept"))).toEqual([]);
    expect(await checkForwarding({}, () => Promise.reject(new Error("no such table")))).toEqual([]);
  });
});

describe("controllers of cgroup v2", () => {
  /** A tree as the kernel keeps it: no controllers for groups below one that has processes. */
  class Tree {
    readonly procs: Record<string, string[]> = { "/t": ["1", "7", "9"], "/t/vmlet.init": [], "/t/other": ["4"] };
    readonly enabled: string[] = [];
    readonly gone = new Set<string>();
    late: string[] = [];

    read = (path: string) => Promise.resolve((this.procs[path.replace(/\/cgroup.procs$/, "")] ?? []).join("\n"));
    makeDir = () => Promise.resolve();
    write = (path: string, text: string) => {
      const dir = path.slice(0, path.lastIndexOf("/"));
      const fail = (code: string) => Promise.reject(Object.assign(new Error(code), { code }));
      if (path.endsWith("cgroup.subtree_control")) {
        if (this.procs[dir]!.length > 0) return fail("EBUSY");
        this.enabled.push(dir);
        return Promise.resolve();
      }
      for (const pids of Object.values(this.procs)) if (pids.includes(text)) pids.splice(pids.indexOf(text), 1);
      if (this.gone.has(text)) return fail("ESRCH");
      this.procs[dir]!.push(text);
      this.procs["/t"]!.push(...this.late.splice(0));
      return Promise.resolve();
    };
  }

  test("are given to machines in a container, after all that runs at the top of its tree has moved", async () => {
    const tree = new Tree();
    tree.gone.add("9");
    tree.late = ["11"];
    await delegateControllers("/t", "/t", tree);
    expect(tree.enabled).toEqual(["/t"]);
    expect(tree.procs["/t/vmlet.init"]!.toSorted()).toEqual(["1", "11", "7"]);
  });
  test("move nobody else's processes below the top", async () => {
    const tree = new Tree();
    await expect(delegateControllers("/t/other", "/t", tree)).rejects.toMatchObject({ code: "EBUSY" });
    expect(tree.procs["/t/other"]).toEqual(["4"]);
  });
  test("that the host lacks are named", async () => {
    const files = {
      read: () => Promise.resolve("cpuset memory io\n"),
      write: () => Promise.resolve(),
      makeDir: () => Promise.resolve(),
    };
    expect(await missingControllers("/t", files)).toEqual(["cpu", "pids"]);
  });
});
