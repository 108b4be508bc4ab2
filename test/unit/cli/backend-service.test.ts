import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { installService, removeService } from "../../../src/cli/backend-service.ts";

let root: string;
let printed: string[];
let called: string[];
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "vmlet-service-"));
  mkdirSync(join(root, "run/systemd/system"), { recursive: true });
  printed = [];
  called = [];
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const CONFIG = "/etc/vmlet/backend.yaml";
const UNIT = "/etc/systemd/system/vmlet-backend.service";
const DROP_IN = `${UNIT}.d/10-vmlet.conf`;
const options = (more: { dryRun?: boolean; program?: string[] } = {}) => ({
  config: CONFIG,
  dryRun: false,
  program: ["/usr/bin/node", "/opt/vmlet/main.js"],
  root,
  print: (line: string) => void printed.push(line),
  systemctl: (args: readonly string[]) => void called.push(args.join(" ")),
  ...more,
});
const read = (path: string) => readFileSync(join(root, path), "utf8");

describe("install", () => {
  test("has the service restarted without its machines, in control groups of its own, and never out of memory first", () => {
    installService(options());
    const lines = read(UNIT).split("\n");
    for (const line of [
      "KillMode=process",
      "Delegate=yes",
      "OOMScoreAdjust=-999",
      "TasksMax=infinity",
      "Restart=always",
    ])
      expect(lines).toContain(line);
    expect(lines.some((line) => /^LimitNOFILE=\d{6,}$/.test(line))).toBe(true);
    expect(called).toEqual(["daemon-reload", "enable vmlet-backend.service", "restart vmlet-backend.service"]);
  });

  test("gives the backend the time that its machines have when the host goes down", () => {
    mkdirSync(join(root, "etc/vmlet"), { recursive: true });
    const text = "apiVersion: vmlet.dev/v1\nkind: BackendConfig\nstateDir: /s\nlisten: { socket: /s/api }\n";
    writeFileSync(join(root, CONFIG), `${text}shutdown: { graceSeconds: 300 }\n`);
    installService(options());
    expect(read(DROP_IN)).toContain("TimeoutStopSec=315");
    expect(read(CONFIG)).toContain("graceSeconds: 300");
  });

  test("writes a configuration where there is none, for its owner alone, that the backend takes", () => {
    installService(options());
    expect(read(CONFIG)).toContain("socket: /run/vmlet/backend.sock");
    installService(options());
    expect(printed).toContain(`unchanged: ${CONFIG}`);
  });

  test("changes nothing when it is repeated, and starts what is stopped", () => {
    installService(options());
    called = [];
    installService(options());
    expect(called).toEqual(["enable vmlet-backend.service", "start vmlet-backend.service"]);
    expect(printed).toContain(`unchanged: ${UNIT}`);
  });

  test("replaces the command of a program that has moved", () => {
    installService(options());
    installService(options({ program: ["/opt/new/vmlet"] }));
    expect(read(DROP_IN)).toContain('ExecStart="/opt/new/vmlet" "backend" "--config" "/etc/vmlet/backend.yaml"');
    expect(printed).toContain(`replaced: ${DROP_IN}`);
  });

  test("writes paths so that systemd reads them as they are", () => {
    installService(options({ program: ['/opt/100% "a\\b" $HOME/node'] }));
    expect(read(DROP_IN)).toContain('ExecStart="/opt/100%% \\"a\\\\b\\" $$HOME/node" "backend"');
  });

  test("does nothing when it is only asked, and says what it would do", () => {
    installService(options({ dryRun: true }));
    expect(existsSync(join(root, UNIT))).toBe(false);
    expect(existsSync(join(root, CONFIG))).toBe(false);
    expect(called).toEqual([]);
    expect(printed).toContain(`would write: ${UNIT}`);
    expect(printed).toContain("  KillMode=process");
    expect(printed).toContain("would run: systemctl daemon-reload");
  });

  test("says what to do on a host without systemd", () => {
    rmSync(join(root, "run"), { recursive: true });
    expect(() => installService(options())).toThrow(/not run by systemd.*SIGPWR/);
    expect(existsSync(join(root, UNIT))).toBe(false);
  });

  test("refuses a configuration that the backend would refuse", () => {
    mkdirSync(join(root, "etc/vmlet"), { recursive: true });
    writeFileSync(join(root, CONFIG), "kind: BackendConfig\n");
    expect(() => installService(options())).toThrow("apiVersion");
    expect(existsSync(join(root, UNIT))).toBe(false);
  });
});

describe("remove", () => {
  test("stops the service and takes away what install wrote, but not the configuration", () => {
    installService(options());
    called = [];
    removeService(options());
    expect([UNIT, `${UNIT}.d`, CONFIG].map((path) => existsSync(join(root, path)))).toEqual([false, false, true]);
    expect(called).toEqual(["disable --now vmlet-backend.service", "daemon-reload"]);
  });

  test("succeeds when there is nothing to take away", () => {
    removeService(options());
    expect(called).toEqual([]);
    expect(printed).toEqual(["there is no vmlet-backend.service"]);
  });
});
