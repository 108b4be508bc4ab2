/** What a container runtime takes by itself for what engine cri asks of it: the same calls, by nobody else and with nothing around them. */
import { CriClient } from "../../providers/local/engines/cri/client.ts";
import { SecurityProfile_ProfileType } from "../../providers/local/engines/cri/api.gen.js";

interface PlainFigures {
  /** RunPodSandbox, CreateContainer, StartContainer. */
  runningMs: number[];
  /** ExecSync. */
  execMs: number[];
  /** StopPodSandbox, which kills, and RemovePodSandbox. */
  deleteMs: number[];
}

/**
 * @param image known to the runtime
 * @param atOnce how many sandboxes are made at the same time
 */
export async function plainCri(
  socket: string,
  image: string,
  command: string[],
  atOnce: number,
): Promise<PlainFigures> {
  const client = new CriClient(socket);
  const { runtime } = client;
  const securityContext = { seccomp: { profileType: SecurityProfile_ProfileType.RuntimeDefault } };
  const timed = async <T>(work: () => Promise<T>): Promise<[number, T]> => {
    const start = performance.now();
    const result = await work();
    return [performance.now() - start, result];
  };
  const run = async (index: number) => {
    const name = `plain-${index}`;
    const sandboxConfig = {
      metadata: { name, uid: name, namespace: "bench", attempt: 0 },
      hostname: name,
      logDirectory: "/tmp",
      linux: { securityContext },
    };
    const { podSandboxId } = await runtime.runPodSandbox({ config: sandboxConfig }, client.within());
    const config = {
      metadata: { name: "a", attempt: 0 },
      image: { image },
      command,
      linux: { securityContext },
    };
    const request = { podSandboxId, config, sandboxConfig };
    const { containerId } = await runtime.createContainer(request, client.within());
    await runtime.startContainer({ containerId }, client.within());
    return { podSandboxId, containerId };
  };
  try {
    const begun = await Promise.all(Array.from({ length: atOnce }, (_, index) => timed(() => run(index))));
    const execMs: number[] = [];
    for (const [, { containerId }] of begun.slice(0, 10)) {
      const [ms] = await timed(() => runtime.execSync({ containerId, cmd: ["true"] }, client.within()));
      execMs.push(ms);
    }
    const ended = await Promise.all(
      begun.map(([, { podSandboxId }]) =>
        timed(async () => {
          await runtime.stopPodSandbox({ podSandboxId }, client.within());
          await runtime.removePodSandbox({ podSandboxId }, client.within());
        }),
      ),
    );
    return { runningMs: begun.map(([ms]) => ms), execMs, deleteMs: ended.map(([ms]) => ms) };
  } finally {
    client.close();
  }
}
