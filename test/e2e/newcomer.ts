/**
 * The first ten minutes: `npm start`, what it prints typed as it stands, every example, and what everybody tries next,
 * with a real kubectl.
 */
import { execFile, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readdir, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify, stripVTControlCharacters } from "node:util";
import { spawn as spawnPty } from "@lydell/node-pty";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { kubectlBinary } from "./harness/binaries.ts";
import { must, NotYet, waitFor } from "./harness/wait.ts";

const repository = join(import.meta.dirname, "../..");
const examples = join(repository, "examples");
/** Loaded machines are slow; what is waited for has its own end. */
const PATIENCE = { timeoutMs: 120_000 };

export interface Newcomer {
  /** Typed after `npm start --`. */
  flags: readonly string[];
  /** Variables of `npm start` alone. */
  surroundings: () => Promise<NodeJS.ProcessEnv>;
  /** In what it prints. */
  toldOfMachines: string;
  /** In the description of a pod of image nginx. */
  toldOfWeb: string;
  /** What more is to be gone at the end. */
  isClean?: () => Promise<void>;
}

/** All that a newcomer types, as tests in their order. */
export function newcomerSuite({ flags, surroundings, toldOfMachines, toldOfWeb, isClean }: Newcomer): void {
  let dir: string;
  let dev: ChildProcess;
  let said = "";
  let environment: NodeJS.ProcessEnv;

  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), "vmlet-newcomer-"));
    await symlink(await kubectlBinary(), join(dir, "kubectl"));
    environment = { ...process.env, PATH: `${dir}:${process.env["PATH"]}`, KUBECONFIG: join(dir, "state/kubeconfig") };
    dev = spawn("npm", ["start", "--", ...flags, "--port", "0", "--state-dir", join(dir, "state")], {
      cwd: repository,
      env: { ...process.env, ...(await surroundings()) },
      stdio: ["ignore", "pipe", "inherit"],
      detached: true,
    });
    dev.stdout!.on("data", (chunk: Buffer) => (said += chunk.toString()));
    await waitFor({ what: "npm start", ...PATIENCE }, () => must(said.includes("Ctrl-C stops everything."), said));
  });

  afterAll(async () => {
    const isUp = () => dev.exitCode === null && dev.signalCode === null;
    if (isUp()) {
      // Killed at once it would leave its machines, and the port that one of them listens on.
      process.kill(-dev.pid!, "SIGINT");
      await waitFor({ what: "the end of npm start" }, () => must(!isUp(), "it runs")).catch(() => {});
      if (isUp()) process.kill(-dev.pid!, "SIGKILL");
    }
    await rm(dir, { recursive: true, force: true });
  });

  /** What somebody types into a shell, in a clone. @returns both outputs together */
  async function type(command: string, options: { input?: string } = {}): Promise<string> {
    const shell = promisify(execFile)("sh", ["-c", `${command} 2>&1`], { cwd: repository, env: environment });
    shell.child.stdin?.end(options.input ?? "");
    return (await shell).stdout;
  }

  /** A command that does not end by itself: typed, and its output as it grows. It ends with the test. */
  function typeAndLeave(command: string): () => string {
    const shell = spawn("sh", ["-c", `exec ${command} 2>&1`], { cwd: repository, env: environment });
    let output = "";
    shell.stdout.on("data", (chunk: Buffer) => (output += chunk.toString()));
    onTestFinished(() => void shell.kill());
    return () => output;
  }

  const phases = async (selector: string): Promise<string[]> =>
    (await type(`kubectl get pods -l ${selector} -o jsonpath='{.items[*].status.phase}'`)).split(" ").filter(Boolean);

  /** The commands that `npm start` prints. */
  const printed = (): string[] => [...said.matchAll(/^ {2}((?:kubectl|export) .*)$/gm)].map(([, command]) => command!);

  describe("what npm start prints", () => {
    test("says what machines are, and why", () => {
      expect(said).toContain(toldOfMachines);
    });

    test("names the kubeconfig, and nothing that is not tried here", () => {
      expect(printed()).toEqual([
        `export KUBECONFIG=${environment["KUBECONFIG"]}`,
        "kubectl get nodes",
        "kubectl apply -f examples/burst.yaml",
        "kubectl get pods --watch",
        "kubectl logs burst-00",
        "kubectl run web --image=nginx && kubectl port-forward web 8080:80",
        "kubectl run -it --rm box --image=busybox -- sh",
        "kubectl apply -f examples/hard.yaml && kubectl rollout status deployment/hard",
      ]);
    });

    test("kubectl get nodes: one node, Ready", async () => {
      expect(await type("kubectl get nodes")).toMatch(/^vmlet-dev +Ready /m);
    });

    test("a burst: watched until its pods have completed, and its logs", async () => {
      await type("kubectl apply -f examples/burst.yaml");
      const watched = typeAndLeave("kubectl get pods --watch");
      await waitFor({ what: "ten pods that succeed", ...PATIENCE }, async () =>
        expect(await phases("app=burst")).toEqual(Array(10).fill("Succeeded")),
      );
      await waitFor({ what: "the watch" }, () => expect(watched()).toMatch(/^burst-00 +0\/1 +Completed /m));
      expect(await type("kubectl logs burst-00")).toBe("hello from burst-00 on vmlet-dev\ndone\n");
      expect(await type("kubectl delete -f examples/burst.yaml")).toContain('"burst-00" deleted');
    });

    test("a web server by its image's name, and a port of it", async () => {
      await type("kubectl run web --image=nginx && kubectl wait --for=condition=Ready pod/web --timeout=60s");
      // A program that has just begun may not listen yet, and kubectl ends at the first connection that is refused.
      await waitFor({ what: "an answer", ...PATIENCE }, async () => {
        const forwarded = typeAndLeave("kubectl port-forward web :80");
        const port = await waitFor({ what: "the forwarded port" }, () => {
          const found = /127\.0\.0\.1:(\d+) ->/.exec(forwarded());
          if (found === null) throw new NotYet(forwarded());
          return found[1]!;
        });
        expect((await fetch(`http://127.0.0.1:${port}/`)).status).toBe(200);
      });
      await waitFor({ what: "the events" }, async () =>
        expect(await type("kubectl describe pod web")).toContain(toldOfWeb),
      );
      expect(await type("kubectl get events --field-selector type=Warning")).toContain("No resources found");
      await type("kubectl delete pod web");
    });

    test("a shell on a terminal, gone when it ends", async () => {
      const terminal = spawnPty("kubectl", ["run", "-it", "--rm", "box", "--image=busybox", "--", "sh"], {
        cwd: repository,
        env: environment,
      });
      let shown = "";
      terminal.onData((data) => (shown += data));
      const ended = new Promise((resolve) => terminal.onExit(resolve));
      await waitFor({ what: "kubectl's advice", ...PATIENCE }, () => expect(shown).toContain("try pressing enter"));
      terminal.write("\r");
      await waitFor({ what: "a prompt", ...PATIENCE }, () => expect(stripVTControlCharacters(shown)).toMatch(/[$#] $/));
      terminal.write("echo answer $((6 * 7))\rexit\r");
      await ended;
      expect(shown).toContain("answer 42");
      expect(shown).toContain('pod "box" deleted');
    });
  });

  describe("every example is applied as it stands", () => {
    /** How it is seen that an example does what it is for. */
    const outcomes: Record<string, () => Promise<void>> = {
      "burst.yaml": async () => expect(await phases("app=burst")).toEqual(Array(10).fill("Succeeded")),
      "hard.yaml": () => rolledOut("deployment/hard"),
      "overflow.yaml": () => rolledOut("deployment/overflow"),
      "prefer-no-schedule.yaml": () => rolledOut("deployment/prefer-no-schedule"),
      "statefulset.yaml": async () => {
        await rolledOut("statefulset/stateful");
        const starts = Number(/start number (\d+)/.exec(await type("kubectl logs stateful-1"))?.[1]);
        await type("kubectl delete pod stateful-1 --timeout=60s");
        await rolledOut("statefulset/stateful");
        must((await type("kubectl logs stateful-1")).includes(`start number ${starts + 1}\n`), "another volume");
      },
      "job-burst.yaml": async () => {
        await type("kubectl wait --for=condition=Complete job/job-burst --timeout=10s");
      },
      "hpa.yaml": async () => {
        expect(await type("kubectl get hpa overflow -o jsonpath='{.status.conditions[*].type}'")).toContain(
          "AbleToScale",
        );
      },
      "daemonset-exclusion.yaml": async () => {
        // There is no node for it here.
        expect(await type("kubectl get daemonsets -o jsonpath='{.items[*].status.desiredNumberScheduled}'")).toBe("0");
      },
    };
    const rolledOut = async (workload: string) => {
      expect(await type(`kubectl rollout status ${workload} --timeout=10s`)).toMatch(
        /rolled out|roll out complete|rolling update complete/,
      );
    };

    test("and each has its case", async () => {
      const files = (await readdir(examples)).filter((name) => name.endsWith(".yaml"));
      expect(files.toSorted()).toEqual(Object.keys(outcomes).toSorted());
    });

    test.for(Object.keys(outcomes))("%s", { timeout: 300_000 }, async (file) => {
      await type(`kubectl apply -f examples/${file}`);
      await waitFor({ what: `${file} to do what it is for`, ...PATIENCE }, outcomes[file]!);
      await type(`kubectl delete -f examples/${file} --timeout=60s`);
      await type("kubectl delete pvc --all --timeout=60s");
    });
  });

  describe("what everybody types next", () => {
    test("create deployment, scale, expose, a request to the Service, a rollout and its undoing", async () => {
      await type("kubectl create deployment shop --image=nginx --replicas=2");
      await type("kubectl rollout status deployment/shop --timeout=60s && kubectl scale deployment/shop --replicas=3");
      await waitFor({ what: "three replicas", ...PATIENCE }, async () =>
        expect(await type("kubectl get deployment shop -o jsonpath='{.status.readyReplicas}'")).toBe("3"),
      );
      // Ports below 1024 are the administrator's.
      await type("kubectl expose deployment shop --port=8080 --target-port=80");
      const address = await type("kubectl get service shop -o jsonpath='{.spec.clusterIP}'");
      await waitFor({ what: "the Service to answer" }, async () =>
        expect((await fetch(`http://${address}:8080/`)).status).toBe(200),
      );
      await type(
        "kubectl set image deployment/shop nginx=httpd && kubectl rollout status deployment/shop --timeout=60s",
      );
      expect(await type("kubectl rollout undo deployment/shop")).toContain("rolled back");
      expect(await type("kubectl rollout status deployment/shop --timeout=60s")).toContain("successfully rolled out");
      await type("kubectl delete service,deployment shop");
    });

    test("exec, logs and cp into a pod of one's own", async () => {
      await type("kubectl run mine --image=busybox --command -- sh -c 'echo begun; sleep 1000'");
      await type("kubectl wait --for=condition=Ready pod/mine --timeout=60s");
      expect(await type("kubectl exec -i mine -- cat", { input: "through\n" })).toBe("through\n");
      expect(await type("kubectl logs mine")).toBe("begun\n");
      expect(await type("kubectl top node --no-headers=true || kubectl get nodes")).toContain("vmlet-dev");
      await type("kubectl delete pod mine --grace-period=1");
    });

    test("create job, autoscale, explain", async () => {
      await type("kubectl create job once --image=busybox -- echo done");
      await type("kubectl wait --for=condition=Complete job/once --timeout=60s");
      expect(await type("kubectl logs job/once")).toBe("done\n");
      expect(await type("kubectl explain pod.spec.nodeSelector")).toContain("DESCRIPTION");
      await type(
        "kubectl create deployment scaled --image=nginx && kubectl autoscale deployment scaled --max=3 --cpu=80%",
      );
      await type("kubectl delete hpa,deployment scaled; kubectl delete job once");
    });
  });

  test("Ctrl-C ends it, and nothing of it is left", async () => {
    await type("kubectl run left --image=busybox --command -- sleep 4242");
    await type("kubectl wait --for=condition=Ready pod/left --timeout=60s");
    const ended = once(dev, "exit");
    process.kill(-dev.pid!, "SIGINT");
    // npm ends by the signal, once what it runs has ended.
    expect(await ended).toEqual([null, "SIGINT"]);
    expect(await readdir(join(dir, "state"))).toEqual(["kubeconfig"]);
    expect(await type("pgrep -f 'sleep 4242' | grep -v $$ || true")).toBe("");
    await isClean?.();
  });
}
