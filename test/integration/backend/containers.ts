/** What every engine that runs images in isolation must do, besides the suite for all engines. */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { cgroupVersion } from "../../../providers/local/bundle/cgroup.ts";
import { run } from "../../../providers/local/host/command.ts";
import { busyboxImage, startRegistry, type TestRegistry } from "../../support/registry.ts";
import { text, type Bench } from "./suite.ts";

export interface ContainerImages {
  registry: TestRegistry;
  /** Plain busybox. */
  image: string;
  /** With an entrypoint, a user and a working directory of its own. */
  app: string;
}

export async function pushImages(): Promise<ContainerImages> {
  const registry = await startRegistry();
  await registry.push("t/busybox:1", await busyboxImage());
  await registry.push(
    "t/app:1",
    await busyboxImage(
      [
        { path: "srv/www/index.html", content: "from the image" },
        { path: "srv/page", type: "symlink", link: "/srv/www/index.html" },
      ],
      {
        Entrypoint: ["/bin/sh", "-c"],
        Cmd: ["echo image cmd $FROM_IMAGE; pwd; id"],
        Env: ["FROM_IMAGE=yes"],
        User: "app",
        WorkingDir: "/srv/www",
      },
    ),
  );
  return { registry, image: `${registry.host}/t/busybox:1`, app: `${registry.host}/t/app:1` };
}

/** @param options.fileSubPaths whether a file of an image can be mounted, or only a folder */
export function containerTests(
  bench: () => Bench,
  { registry, app }: ContainerImages,
  { fileSubPaths = true }: { fileSubPaths?: boolean } = {},
): void {
  /** What a script in a container of its own prints. */
  const output = async (script: string, more: object = {}, machine: object = {}) => {
    const id = await bench().create({ containers: [bench().shell("a", script, more)], ...machine });
    const ended = await bench().terminated(id, "a");
    const lines = await bench().log(id, "a");
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    return { ended, lines, id };
  };

  test("an image's entrypoint, cmd, env, user and working directory apply", async () => {
    const id = await bench().create({ containers: [{ name: "a", image: app }] });
    await bench().terminated(id, "a");
    expect(await bench().log(id, "a")).toEqual([
      "image cmd yes",
      "/srv/www",
      expect.stringMatching(/^uid=1000\(app\) gid=1000\(app\) groups=(?=.*2000\(extra\))/),
    ]);
    expect((await bench().container(id, "a")).user).toEqual({
      uid: 1000,
      gid: 1000,
      supplemental_groups: [1000, 2000],
    });
  });

  test("strictly, the groups that an image has its user in are not its container's", async () => {
    const strict = { fs_group: 4000, supplemental_groups: [5000], supplemental_groups_policy: "strict" as const };
    const id = await bench().create({ security: strict, containers: [{ name: "a", image: app, args: ["id -G"] }] });
    await bench().terminated(id, "a");
    expect((await bench().log(id, "a"))[0]!.split(" ").toSorted()).toEqual(["1000", "4000", "5000"]);
    const { uid, gid, supplemental_groups: groups } = (await bench().container(id, "a")).user!;
    expect({ uid, gid, groups: groups.toSorted((a, b) => a - b) }).toEqual({
      uid: 1000,
      gid: 1000,
      groups: [1000, 4000, 5000],
    });
  });

  test("what comes to a machine in a second has the limit that it asks for, until it goes", async () => {
    // No other test has this rate.
    const limits = async () => (await run("tc", ["qdisc", "show"])).stdout.toString().split("rate 1234Kbit").length - 1;
    const before = await limits();
    const id = await bench().create({
      bandwidth: { ingress_bits_per_second: 1_234_000, egress_bits_per_second: 10_000_000 },
      containers: [bench().shell("a", "sleep 1000")],
    });
    await bench().reaches(id, "running");
    expect(await limits()).toBe(before + 1);
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    await bench().reaches(id, "deleted");
    expect(await limits()).toBe(before);
  });

  test("args replace the image's cmd and keep its entrypoint", async () => {
    const id = await bench().create({ containers: [{ name: "a", image: app, args: ["echo only args"] }] });
    await bench().terminated(id, "a");
    expect(await bench().log(id, "a")).toEqual(["only args"]);
  });

  test("an image that does not exist leaves the container waiting, with the reason", async () => {
    const id = await bench().create({
      containers: [{ name: "a", image: `${registry.host}/t/none:1`, command: ["true"] }],
    });
    await bench().until(async () => {
      const { state, reason, message } = await bench().container(id, "a");
      expect({ state, reason }).toEqual({ state: "waiting", reason: "ImagePullBackOff" });
      expect(message).toContain("not found");
    });
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("containers of a machine share network, hostname and /dev/shm, and have their own processes and root", async () => {
    const id = await bench().create({
      hostname: "web-0",
      containers: [
        bench().shell("a", "echo shared > /dev/shm/f; echo mine > /own; nc -l -p 8080 -e echo hello; sleep 100"),
        bench().shell("b", "while ! nc 127.0.0.1 8080; do sleep 0.1; done; hostname; cat /dev/shm/f; ls /own; echo $$"),
      ],
    });
    await bench().terminated(id, "b");
    expect(await bench().log(id, "b", { stream: "stdout" })).toEqual(["hello", "web-0", "shared", "1"]);
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("/etc/hosts, resolv.conf and hostname are the machine's", async () => {
    const { lines } = await output(
      "cat /etc/hostname; tail -4 /etc/hosts; cat /etc/resolv.conf; hostname",
      {},
      {
        hostname: "db-0",
        domain: "db.ns.svc.cluster.local",
        hosts: [{ ip: "10.1.2.3", names: ["foo", "bar"] }],
        dns: { nameservers: ["10.96.0.10"], searches: ["a.b"], options: ["ndots:5"] },
      },
    );
    expect(lines).toEqual([
      "db-0",
      expect.stringMatching(/^10\.\d+\.\d+\.\d+\tdb-0\.db\.ns\.svc\.cluster\.local\tdb-0$/),
      "",
      "# Entries added by HostAliases.",
      "10.1.2.3\tfoo\tbar",
      "nameserver 10.96.0.10",
      "search a.b",
      "options ndots:5",
      "db-0",
    ]);
  });

  test("an empty_dir is shared, writable for every user, and outlives restarts", async () => {
    const id = await bench().create({
      restart_policy: "on_failure",
      volumes: [
        { name: "v", type: "empty_dir", medium: "disk" },
        { name: "m", type: "empty_dir", medium: "memory" },
      ],
      containers: [
        bench().shell("a", "test -f /m/x && cat /v/x && exit 0; echo kept > /v/x; touch /m/x; exit 1", {
          security: { user: 1234 },
          mounts: [
            { volume: "v", path: "/v" },
            { volume: "m", path: "/m" },
          ],
        }),
      ],
    });
    await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["kept"]));
  });

  test("an empty_dir in memory has the sticky bit, with fs_group too, and so has a folder that a sub_path makes in it", async () => {
    const { lines } = await output(
      "stat -c '%g %a' /m /sub",
      {
        mounts: [
          { volume: "m", path: "/m" },
          { volume: "m", path: "/sub", sub_path: "made" },
        ],
      },
      { security: { fs_group: 4000 }, volumes: [{ name: "m", type: "empty_dir", medium: "memory" }] },
    );
    expect(lines).toEqual(["4000 3777", "4000 3777"]);
  });

  test("fs_group owns empty_dirs and files", async () => {
    const { lines } = await output(
      "stat -c '%g %a' /v; stat -L -c '%g %a' /f/k; id -G; cat /f/k",
      {
        security: { user: 1000, group: 3000 },
        mounts: [
          { volume: "v", path: "/v" },
          { volume: "f", path: "/f" },
        ],
      },
      {
        security: { fs_group: 4000, supplemental_groups: [5000] },
        volumes: [
          { name: "v", type: "empty_dir", medium: "disk" },
          {
            name: "f",
            type: "files",
            version: "1",
            files: [{ path: "k", mode: 0o400, content_b64: Buffer.from("secret\n").toString("base64") }],
          },
        ],
      },
    );
    expect(lines).toEqual(["4000 2777", "4000 440", expect.stringMatching(/^3000 (?=.*4000)(?=.*5000)/), "secret"]);
  });

  test.each([
    ["QUIT", "QUIT"],
    ["SIGRTMIN+3", "37"],
  ])("stop signal %s reaches the container", async (signal, trapped) => {
    const id = await bench().create({
      containers: [
        bench().shell("a", `trap 'exit 41' ${trapped}; echo ready; while :; do sleep 0.1; done`, { stop: { signal } }),
      ],
    });
    await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["ready"]));
    await bench().provider.stopPod(id, { graceSeconds: 1000, signal: bench().signal });
    expect((await bench().terminated(id, "a")).exit_code).toBe(41);
  });

  test("a machine is deleted however deep the folders are that a container has made", async () => {
    const name = "d".repeat(200);
    const dig = `i=0; while [ $i -lt 25 ]; do mkdir ${name} && cd -P ${name} || exit 1; i=$((i + 1)); done`;
    const id = await bench().create({
      volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
      containers: [
        bench().shell("a", `(cd /v; ${dig}) && (cd /; ${dig}) && exec sleep 1000`, {
          mounts: [{ volume: "v", path: "/v" }],
        }),
      ],
    });
    await bench().until(async () => {
      const streams = await bench().exec(id, "a", ["ps"]);
      expect(await text(streams.stdout)).toContain("sleep 1000");
    });
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    await bench().reaches(id, "deleted");
  });

  test("files are replaced at once in a running container; a sub_path keeps what it had", async () => {
    const file = (content: string) => [
      { path: "k", mode: 0o644, content_b64: Buffer.from(content).toString("base64") },
    ];
    const id = await bench().create({
      volumes: [{ name: "f", type: "files", version: "1", files: file("one\n") }],
      containers: [
        bench().shell("a", "while [ $(cat /f/k) = one ]; do sleep 0.05; done; cat /f/k /sub", {
          mounts: [
            { volume: "f", path: "/f" },
            { volume: "f", path: "/sub", sub_path: "k" },
          ],
        }),
      ],
    });
    await bench().reaches(id, "running");
    await bench().provider.updatePod(
      id,
      { files: [{ volume: "f", version: "2", files: file("two\n") }] },
      { signal: bench().signal },
    );
    await bench().terminated(id, "a");
    expect(await bench().log(id, "a")).toEqual(["two", "one"]);
  });

  test("a file whose name begins with a dot is there, is replaced, and goes", async () => {
    const files = (path: string, content: string) => [
      { path, mode: 0o644, content_b64: Buffer.from(content).toString("base64") },
    ];
    const script = `cat /sub
      until [ "$(cat /f/.k)" = two ]; do sleep 0.05; done; cat /f/.k
      while [ -L /f/.k ]; do sleep 0.05; done; cat /f/other`;
    const id = await bench().create({
      volumes: [{ name: "f", type: "files", version: "1", files: files(".k", "one\n") }],
      containers: [
        bench().shell("a", script, {
          mounts: [
            { volume: "f", path: "/f" },
            { volume: "f", path: "/sub", sub_path: ".k" },
          ],
        }),
      ],
    });
    const update = async (version: string, path: string, content: string) => {
      const change = { volume: "f", version, files: files(path, content) };
      await bench().provider.updatePod(id, { files: [change] }, { signal: bench().signal });
    };
    await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["one"]));
    await update("2", ".k", "two\n");
    await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["one", "two"]));
    await update("3", "other", "three\n");
    await bench().terminated(id, "a");
    expect(await bench().log(id, "a")).toEqual(["one", "two", "three"]);
  });

  test("a sub_path follows links that stay in its volume, or in its image", async () => {
    const page = fileSubPaths ? "/page" : "/page/index.html";
    const { lines } = await output(
      `cat /s/f ${page}`,
      {
        mounts: [
          { volume: "v", path: "/s", sub_path: "sub" },
          { volume: "i", path: "/page", sub_path: fileSubPaths ? "srv/page" : "srv/www" },
        ],
      },
      {
        volumes: [
          { name: "v", type: "empty_dir", medium: "disk" },
          { name: "i", type: "image", image: app },
        ],
        init_containers: [
          bench().shell("i", "mkdir /v/real; echo from the volume > /v/real/f; ln -s real /v/sub", {
            mounts: [{ volume: "v", path: "/v" }],
          }),
        ],
      },
    );
    expect(lines).toEqual(["from the volume", "from the image"]);
  });

  test("a sub_path that a container turned into a link to outside does not lead there", async () => {
    const id = await bench().create({
      volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
      init_containers: [bench().shell("evil", "ln -s / /v/sub", { mounts: [{ volume: "v", path: "/v" }] })],
      containers: [bench().shell("a", "ls /s", { mounts: [{ volume: "v", path: "/s", sub_path: "sub" }] })],
    });
    // Either the container is not started, or the link is followed inside the volume (a VM's own kernel does).
    await bench().until(async () => {
      const { state, reason } = await bench().container(id, "a");
      expect(state === "terminated" || (state === "waiting" && /^CreateContainer\w*Error$/.test(reason ?? ""))).toBe(
        true,
      );
    });
    if ((await bench().container(id, "a")).state === "terminated") expect(await bench().log(id, "a")).toEqual(["sub"]);
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("an image is mounted as a read-only volume", async () => {
    const { lines } = await output(
      "cat /i/srv/www/index.html; echo; touch /i/x 2>&1 || echo read-only",
      { mounts: [{ volume: "i", path: "/i" }] },
      { volumes: [{ name: "i", type: "image", image: app }] },
    );
    expect(lines).toEqual(["from the image", "touch: /i/x: Read-only file system", "read-only"]);
  });

  test("the termination message file is the status's message", async () => {
    const { ended } = await output("echo bye > /dev/termination-log; exit 3", {
      termination_message: { path: "/dev/termination-log", policy: "file" },
    });
    expect(ended).toMatchObject({ exit_code: 3, message: "bye\n" });
  });

  test("of a termination message that is too long, the end is kept", async () => {
    const { ended } = await output("(yes | head -c 5000; echo end) > /dev/termination-log; exit 3", {
      termination_message: { path: "/dev/termination-log", policy: "file" },
    });
    expect([ended.message?.length, ended.message?.endsWith("y\nend\n")]).toEqual([4096, true]);
  });

  test("the memory limit kills, and the status says OOMKilled", async () => {
    const { ended } = await output("x=a; while :; do x=$x$x; done", {
      resources: { limits: { memory_bytes: 32 * 1024 * 1024 } },
    });
    expect(ended).toMatchObject({ exit_code: 137, reason: "OOMKilled" });
  });

  test("with control groups of version 2, a container that has lost a process for want of memory ends as a whole", async (context) => {
    context.skip(bench().options.name !== "vm" && cgroupVersion() !== 2, "this host's control groups are of version 1");
    const { ended } = await output("(x=a; while :; do x=$x$x; done) & sleep 1000", {
      resources: { limits: { memory_bytes: 32 * 1024 * 1024 } },
    });
    expect(ended).toMatchObject({ exit_code: 137, reason: "OOMKilled" });
  });

  test("when memory runs out, a container that asks for nothing goes first", async () => {
    expect((await output("cat /proc/self/oom_score_adj")).lines).toEqual(["1000"]);
  });

  test.each([
    ["the default capabilities", {}, "00000000a80425fb"],
    [
      "dropped and added ones",
      { capabilities_drop: ["ALL"], capabilities_add: ["NET_BIND_SERVICE"] },
      "0000000000000400",
    ],
    ["none for another user", { user: 1000 }, "0000000000000000"],
  ])("a container has %s", async (_title, security, effective) => {
    expect((await output("grep CapEff /proc/self/status | cut -f2", { security })).lines).toEqual([effective]);
  });

  test.each([
    ["by default", {}, ["Seccomp:\t2", "NoNewPrivs:\t0"]],
    ["unconfined", { seccomp: "unconfined" }, ["Seccomp:\t0", "NoNewPrivs:\t0"]],
    ["without escalation", { allow_privilege_escalation: false }, ["Seccomp:\t2", "NoNewPrivs:\t1"]],
  ])("seccomp and no_new_privs %s", async (_title, security, expected) => {
    expect((await output("grep -e ^Seccomp: -e ^NoNewPrivs /proc/self/status", { security })).lines.toSorted()).toEqual(
      expected.toSorted(),
    );
  });

  test("a read-only root cannot be written, its volumes can", async () => {
    const { lines } = await output(
      "touch /x 2>/dev/null || echo refused; touch /v/x && echo written",
      { security: { read_only_root: true }, mounts: [{ volume: "v", path: "/v" }] },
      { volumes: [{ name: "v", type: "empty_dir", medium: "disk" }] },
    );
    expect(lines).toEqual(["refused", "written"]);
  });

  test("the host's secrets in /proc and /sys are masked, kernel parameters cannot be written", async () => {
    const { lines } = await output(
      "cat /proc/keys | wc -c; ls /sys/firmware | wc -l; echo 1 > /proc/sys/kernel/panic || echo refused",
    );
    expect(lines.toSorted()).toEqual([
      "0",
      "0",
      "refused",
      "sh: can't create /proc/sys/kernel/panic: Read-only file system",
    ]);
  });

  test("a privileged container has every capability and no filter", async () => {
    const { lines } = await output(
      "grep -e ^Seccomp: /proc/self/status; touch /sys/fs/cgroup/x 2>/dev/null; mount -t tmpfs x /tmp && echo mounted",
      { security: { privileged: true } },
    );
    expect(lines).toEqual(["Seccomp:\t0", "mounted"]);
  });

  test("run_as_non_root refuses an image that runs as root", async () => {
    const id = await bench().create({
      containers: [bench().shell("a", "true", { security: { run_as_non_root: true } })],
    });
    await bench().until(async () =>
      expect(await bench().container(id, "a")).toMatchObject({
        state: "waiting",
        reason: "CreateContainerConfigError",
        message: expect.stringContaining("image will run as root"),
      }),
    );
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("sysctls of the machine apply to its containers alone", async () => {
    const before = readFileSync("/proc/sys/net/ipv4/tcp_fin_timeout", "utf8");
    const { lines } = await output(
      "cat /proc/sys/net/ipv4/tcp_fin_timeout /proc/sys/net/ipv4/ip_unprivileged_port_start",
      {},
      { security: { sysctls: [{ name: "net.ipv4.tcp_fin_timeout", value: "17" }] } },
    );
    expect(lines).toEqual(["17", "0"]);
    expect(readFileSync("/proc/sys/net/ipv4/tcp_fin_timeout", "utf8")).toBe(before);
  });

  test("port-forward reaches a server that listens on the machine's loopback only", async () => {
    const id = await bench().create({ containers: [bench().shell("a", "httpd -f -p 127.0.0.1:8081 -h /etc")] });
    await bench().reaches(id, "running");
    await bench().until(async () => {
      const stream = await bench().provider.portForward(id, 8081, { signal: bench().signal });
      stream.end("GET /group HTTP/1.0\r\n\r\n");
      expect(await text(stream)).toContain("extra:x:2000");
    });
    await expect(bench().provider.portForward(id, 8082, { signal: bench().signal })).rejects.toThrow("ECONNREFUSED");
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("port-forward passes the client's end on, and brings what is said after it", async () => {
    const server = "nc -ll -p 8083 -e sh -c 'cat; sleep 2; echo over'";
    const id = await bench().create({ containers: [bench().shell("a", server)] });
    await bench().reaches(id, "running");
    await bench().until(async () => {
      const stream = await bench().provider.portForward(id, 8083, { signal: bench().signal });
      stream.end("all\n");
      expect(await text(stream)).toBe("all\nover\n");
    });
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("exec runs with the container's user, environment and limits of privilege", async () => {
    const id = await bench().create({
      containers: [
        bench().shell("a", "sleep 1000", {
          env: [{ name: "X", value: "y" }],
          security: { user: 1000, allow_privilege_escalation: false },
        }),
      ],
    });
    await bench().reaches(id, "running");
    const streams = await bench().exec(id, "a", ["sh", "-c", "id -u; echo $X; grep NoNewPrivs /proc/self/status"]);
    expect(await text(streams.stdout)).toBe("1000\ny\nNoNewPrivs:\t1\n");
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("exec of a command that does not exist says so", async () => {
    const id = await bench().create({ containers: [bench().shell("a", "sleep 1000")] });
    await bench().reaches(id, "running");
    const streams = await bench().exec(id, "a", ["/no/such"]);
    await expect(streams.exit).rejects.toMatchObject({
      code: "invalid",
      message: expect.stringContaining("/no/such"),
    });
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("stats show a container's memory, processor time, disk and the machine's traffic", async () => {
    const id = await bench().create({
      containers: [bench().shell("a", "dd if=/dev/zero of=/f bs=1M count=5 2>/dev/null; while :; do :; done")],
    });
    await bench().reaches(id, "running");
    await bench().until(async () => {
      const [sample] = await bench()
        .provider.getStats({ labels: {}, signal: bench().signal })
        .then((all) => all.filter((one) => one.id === id));
      expect(sample!.containers[0]!.cpu_usage_ns_total).toBeGreaterThan(50_000_000);
      expect(sample!.containers[0]!.memory_working_set_bytes).toBeGreaterThan(0);
      expect(sample!.network).toBeDefined();
    });
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("a container that writes more than its local storage limit ends its machine", async () => {
    const id = await bench().create({
      containers: [
        bench().shell("a", "head -c 3000000 /dev/zero > /big; sleep 1000", {
          resources: { limits: { ephemeral_bytes: 1 << 20 } },
        }),
      ],
    });
    expect(await bench().reaches(id, "failed")).toMatchObject({
      reason: "Evicted",
      message: "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
    });
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });
}
