/** `vmlet backend install` and `remove`: the reference backend as a service of systemd. */
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { Command } from "commander";
import { loadBackendConfig, parseBackendConfig, type BackendConfig } from "../../providers/local/config.ts";
import { ConfigError } from "../config/load.ts";

const UNIT = "vmlet-backend.service";
/** Where units of the host's owner are. */
const UNIT_DIR = "/etc/systemd/system";
/** It is there exactly where systemd is process 1 (sd_booted). */
const BOOTED = "/run/systemd/system";
/** Beyond the machines' grace: for the backend's own end. */
const STOP_MARGIN_SECONDS = 15;

const UNIT_TEXT = `# Made by vmlet backend install, and made again by it: put changes into a drop-in (systemctl edit ${UNIT}).
[Unit]
Description=Machines of this host, by vmlet's Machine API
Documentation=https://github.com/vmlet/vmlet
Wants=network-online.target
# What is started before is stopped after: while machines end with the host, they have their network.
After=network-online.target nftables.service containerd.service crio.service

[Service]
Type=exec
Restart=always
RestartSec=2
# A configuration that is wrong does not get better.
RestartPreventExitStatus=2
# A restart of the service stops no machine: only the backend itself is signalled, and its control groups are its own.
KillMode=process
Delegate=yes
OOMScoreAdjust=-999
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=0
TasksMax=infinity
RuntimeDirectory=vmlet
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes

[Install]
WantedBy=multi-user.target
`;

const CONFIG_TEXT = `# CONFIGURATION.md has every field.
apiVersion: vmlet.dev/v1
kind: BackendConfig
stateDir: /var/lib/vmlet
listen: { socket: /run/vmlet/backend.sock } # the agent's url: unix:///run/vmlet/backend.sock
engine: { type: oci } # process, oci, cri or vm
`;

interface ServiceOptions {
  /** The backend's configuration file. */
  config: string;
  /** Say what would be done, and do nothing. */
  dryRun: boolean;
  /** How this program is started. */
  program: readonly string[];
  /** Of the host's file system; for tests another folder. */
  root?: string | undefined;
  print(line: string): void;
  systemctl(args: readonly string[]): void;
}

/** @param config path of the configuration file, once arguments are parsed */
export function backendServiceCommands(config: () => string): Command[] {
  const options = ({ dryRun = false }: { dryRun?: boolean }): ServiceOptions => ({
    config: resolve(config()),
    dryRun,
    program: [process.execPath, ...process.execArgv, realpathSync(process.argv[1]!)],
    print: (line) => console.log(line),
    systemctl: (args) => void execFileSync("systemctl", args, { stdio: "inherit" }),
  });
  const dryRun = ["--dry-run", "say what would be done, and do nothing"] as const;
  return [
    new Command("install")
      .description("have systemd run the backend: writes a unit, and a configuration file where there is none")
      .option(...dryRun)
      .action((given: { dryRun?: boolean }) => installService(options(given))),
    new Command("remove")
      .description("take the backend's unit away again; machines, state and configuration stay")
      .option(...dryRun)
      .action((given: { dryRun?: boolean }) => removeService(options(given))),
  ];
}

/**
 * Writes what is missing or different, and starts the service.
 * @throws ConfigError where there is no systemd
 * @internal
 */
export function installService(options: ServiceOptions): void {
  requireSystemd(options);
  const { config: path, print } = options;
  const isThere = existsSync(inRoot(options, path));
  const config = isThere ? loadBackendConfig(inRoot(options, path)) : parseBackendConfig(CONFIG_TEXT, path);
  if (isThere) print(`unchanged: ${path}`);
  else put(options, path, CONFIG_TEXT, 0o600);
  const written = [
    put(options, join(UNIT_DIR, UNIT), UNIT_TEXT),
    put(options, join(UNIT_DIR, `${UNIT}.d`, "10-vmlet.conf"), dropIn(options, config)),
  ];
  if (written.includes(true)) call(options, ["daemon-reload"]);
  call(options, ["enable", UNIT]);
  // One that runs is started again when its unit is another; its machines run on.
  call(options, [written.includes(true) ? "restart" : "start", UNIT]);
}

/**
 * Stops the service and takes its unit away.
 * @throws ConfigError where there is no systemd
 * @internal
 */
export function removeService(options: ServiceOptions): void {
  requireSystemd(options);
  const { print, dryRun, config } = options;
  const paths = [join(UNIT_DIR, UNIT), join(UNIT_DIR, `${UNIT}.d`)].filter((path) => existsSync(inRoot(options, path)));
  if (paths.length === 0) return print(`there is no ${UNIT}`);
  call(options, ["disable", "--now", UNIT]);
  for (const path of paths) {
    print(`${dryRun ? "would remove" : "removed"}: ${path}`);
    if (!dryRun) rmSync(inRoot(options, path), { recursive: true });
  }
  call(options, ["daemon-reload"]);
  print(
    `left as they are: ${config}, the backend's state, and machines that run: delete them by the Machine API first`,
  );
}

/** What depends on this program's place and on the configuration. */
function dropIn({ program, config: path }: ServiceOptions, { shutdown }: BackendConfig): string {
  const command = [...program, "backend", "--config", path].map(quoted).join(" ");
  return [
    "# Made by vmlet backend install: run it again when the program has moved or shutdown.graceSeconds has changed.",
    "[Service]",
    `ExecStart=${command}`,
    `TimeoutStopSec=${shutdown.graceSeconds + STOP_MARGIN_SECONDS}`,
    "",
  ].join("\n");
}

/** One word of a command line, as systemd reads it (systemd.service, systemd.syntax). */
function quoted(word: string): string {
  return `"${word.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("%", "%%").replaceAll("$", "$$$$")}"`;
}

function inRoot({ root = "/" }: ServiceOptions, path: string): string {
  return join(root, path);
}

function requireSystemd(options: ServiceOptions): void {
  if (options.dryRun || existsSync(inRoot(options, BOOTED))) return;
  throw new ConfigError(
    `this host is not run by systemd (there is no ${BOOTED}): have its own init run "vmlet backend --config ${options.config}", ` +
      "send SIGTERM to the backend alone to restart it, and SIGPWR before the host goes down",
  );
}

/** @returns whether the file was another, or not there */
function put(options: ServiceOptions, path: string, text: string, mode = 0o644): boolean {
  const { dryRun, print } = options;
  const place = inRoot(options, path);
  const before = existsSync(place) ? readFileSync(place, "utf8") : undefined;
  if (before === text) {
    print(`unchanged: ${path}`);
    return false;
  }
  print(`${dryRun ? "would write" : before === undefined ? "wrote" : "replaced"}: ${path}`);
  if (dryRun) for (const line of text.trimEnd().split("\n")) print(`  ${line}`);
  else {
    mkdirSync(dirname(place), { recursive: true });
    writeFileSync(place, text, { mode });
  }
  return true;
}

function call({ dryRun, print, systemctl }: ServiceOptions, args: readonly string[]): void {
  if (!dryRun) systemctl(args);
  print(`${dryRun ? "would run" : "ran"}: systemctl ${args.join(" ")}`);
}
