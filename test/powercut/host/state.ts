/** What can be told of an emulated host in which something that was waited for has not come. */
import { readFile } from "node:fs/promises";
import { inspect } from "node:util";
import { Qmp } from "../../../providers/local/engines/vm/qmp.ts";
import { passTime } from "../../e2e/harness/wait.ts";

const SHELL_MS = 90_000;
const QMP_MS = 10_000;
const REGISTERS = /^(?:CPU#\d+|RIP=\S+|HLT=\d).*$/gm;

/** Busy, waiting for something, or gone: processes, what the backend's threads wait for, its report of itself. */
const LOOK = `
  heading() { echo; echo "--- $*"; }
  heading up for, load, pressure; cat /proc/uptime /proc/loadavg; head /proc/pressure/* 2>/dev/null
  heading memory, disk; free -m; df -k /var/lib/vmlet /run
  heading processes; ps -o pid,ppid,stat,time,args | cut -c1-200
  backend=$(cat /run/backend.pid)
  heading threads of the backend, process $backend
  for task in /proc/$backend/task/*; do echo "$(cat $task/comm) $(cut -d' ' -f3 $task/stat) $(cat $task/wchan) $(cat $task/syscall)"; done
  heading what waits without being interruptible
  for task in /proc/[0-9]*/task/*; do
    [ "$(cut -d' ' -f3 $task/stat 2>/dev/null)" = D ] && { echo "$task $(cat $task/comm)"; cat $task/stack; }
  done
  heading connections; netstat -tn
  heading network; ip -o address; ip route
  heading files of the backend; ls -l /proc/$backend/fd | wc -l
  heading scripts that were asked for and have not ended; head -n 20 /run/script-* 2>/dev/null
  heading the kernel; dmesg | tail -n 40
  heading the backend of itself
  kill -USR2 $backend
  for try in 1 2 3 4 5 6 7 8 9 10; do ls /run/report* >/dev/null 2>&1 && break; sleep 1; done
  sleep 1
  cat /run/report* 2>/dev/null | sed -n '/"javascriptStack"/,/^  }/p'
  cat /run/report* 2>/dev/null | sed -n '/"libuv"/,/^  ]/p' | grep -E '"type"|"is_active"|Endpoint|"port"|firesIn' | tr -d ' \\n' | cut -c1-6000
  rm -f /run/report*`;

interface Sources {
  /** A shell of the host. */
  shell: (script: string, options: { timeoutMs: number }) => Promise<string>;
  /** QEMU's control socket. */
  qmpSocket: string;
  /** Of QEMU. */
  pid: number | undefined;
  console: () => Promise<string>;
}

export async function hostState({ shell, qmpSocket, pid, console }: Sources): Promise<string> {
  if (pid === undefined) return `The host is off. Its console:\n${await console()}`;
  const own = `This machine's load: ${await readFile("/proc/loadavg", "utf8")}`;
  const inside = await shell(LOOK, { timeoutMs: SHELL_MS }).catch((thrown: unknown) => new Error(inspect(thrown)));
  if (typeof inside === "string") return `${own}${inside}\n\nIts console:\n${await console()}`;
  return `${own}Its shell does not answer: ${inside.message}\n${await outside(qmpSocket, pid)}\nIts console:\n${await console()}`;
}

/** Of a host that says nothing: whether its processors run, where, and its kernel's last words, for which it dies. */
async function outside(socket: string, pid: number): Promise<string> {
  const said: string[] = [];
  try {
    using qmp = await Qmp.open(socket, AbortSignal.timeout(QMP_MS));
    for (const look of [1, 2, 3]) {
      const registers = await qmp.execute("human-monitor-command", { "command-line": "info registers -a" });
      const places = String(registers).replaceAll("\r", "").match(REGISTERS) ?? [];
      const times = (await readFile(`/proc/${pid}/stat`, "latin1")).split(") ")[1]!.split(" ").slice(11, 13);
      said.push(`look ${look}: ticks ${times.join("+")}, ${places.join(" ")}`);
      await passTime(1_000, "Whether processors get on is seen by looking again.");
    }
    said.push(JSON.stringify(await qmp.execute("query-status")));
    await qmp.execute("inject-nmi");
    await passTime(10_000, "The kernel says where it was, on its console.");
  } catch (thrown) {
    said.push(inspect(thrown));
  }
  return said.join("\n");
}
