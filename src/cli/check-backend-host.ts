/** What `vmlet backend` needs of this host beside its engine: files, the state directory, and where it listens. */
import { accessSync, closeSync, constants, existsSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import type { BackendConfig } from "../../providers/local/config.ts";
import { lockFile } from "../../providers/local/host/lock.ts";
import { tlsFaults, tokenFaults } from "../config/used-files.ts";
import { toError } from "../util/errors.ts";
import { portFault } from "./ports.ts";
import type { Report } from "./report.ts";

export async function checkBackendHost(config: BackendConfig, report: Report): Promise<void> {
  const { listen, stateDir, tls, tokenFile, clients = [] } = config;
  const before = report.faults;
  const faults = [
    ...tokenFaults("tokenFile", tokenFile),
    ...clients.flatMap((client, index) => tokenFaults(`clients[${index}].tokenFile`, client.tokenFile)),
    ...(tls === undefined ? [] : tlsFaults("tls", { ...tls, ca: { field: "clientCaFile", path: tls.clientCaFile } })),
  ];
  for (const { field, problem, cure } of faults) report.fault(`${field}: ${problem}`, cure);
  const folder = folderFault(stateDir);
  if (folder !== undefined) report.fault(`stateDir: ${folder}`, "choose a folder that this user may write to");
  if (await isRunning(stateDir)) report.note(`a backend runs with ${stateDir} already, and has what it listens on`);
  else if ("socket" in listen) {
    const fault = existsSync(dirname(listen.socket)) ? folderFault(dirname(listen.socket)) : "its folder is not there";
    if (fault !== undefined)
      report.fault(`listen.socket: ${fault}`, `make the folder: install -d -m 700 ${dirname(listen.socket)}`);
  } else {
    const fault = await portFault(listen);
    if (fault !== undefined)
      report.fault(`listen.port: ${fault}`, `set another, or end what has it (ss -ltnp 'sport = :${listen.port}')`);
  }
  if (report.faults === before) report.ok("files, state directory and what it listens on can be used");
}

/** Whether a folder, or the nearest above it that is there, can be written to. */
function folderFault(path: string): string | undefined {
  try {
    if (!existsSync(path) && path !== dirname(path)) return folderFault(dirname(path));
    if (!statSync(path).isDirectory()) return `${path} is not a folder`;
    accessSync(path, constants.W_OK | constants.X_OK);
    return undefined;
  } catch (thrown) {
    return toError(thrown).message;
  }
}

/** A backend holds the lock of its state directory. */
async function isRunning(stateDir: string): Promise<boolean> {
  const path = join(stateDir, "lock");
  if (!existsSync(path)) return false;
  try {
    closeSync(await lockFile(path, "in use"));
    return false;
  } catch (thrown) {
    return toError(thrown).message === "in use";
  }
}
