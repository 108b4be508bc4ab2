/** What `vmlet check` and `vmlet backend check` found, for people and for programs. */
import { Option, type Command } from "commander";

interface Finding {
  /** What was looked at, such as `Node burst-0: API server`. */
  section: string;
  level: "ok" | "note" | "fault";
  text: string;
  cure?: string | undefined;
}

export interface ReportOptions {
  output?: "text" | "json" | undefined;
  /** Faults only. */
  quiet?: boolean | undefined;
}

/** The flags of a command that reports. */
export function withReportOptions(command: Command): Command {
  return command
    .addOption(new Option("-o, --output <format>", "how to tell what was found").choices(["text", "json"]))
    .option("-q, --quiet", "tell faults only");
}

/** Tells people findings as it goes; a program gets all at the end. */
export class Report {
  readonly findings: Finding[] = [];
  readonly #print: (text: string) => void;
  readonly #options: ReportOptions;
  #section = "";
  #isTitled = true;

  constructor(options: ReportOptions = {}, print: (text: string) => void = console.log) {
    this.#options = options;
    this.#print = print;
  }

  get isForPrograms(): boolean {
    return this.#options.output === "json";
  }

  get faults(): number {
    return this.findings.filter(({ level }) => level === "fault").length;
  }

  /** What follows is about this. */
  section(title: string): void {
    this.#section = title;
    this.#isTitled = false;
  }

  ok(text: string): void {
    this.#add({ level: "ok", text });
  }

  note(text: string): void {
    this.#add({ level: "note", text });
  }

  fault(text: string, cure?: string): void {
    this.#add({ level: "fault", text, cure });
  }

  /** @param done the last line when there is no fault @returns the exit status */
  end(done: string, more: object = {}): number {
    const { faults, findings } = this;
    if (this.isForPrograms) this.#print(JSON.stringify({ faults, findings, ...more }, undefined, 2));
    else if (faults > 0) this.#print(`\nFaults to fix: ${faults}.`);
    else if (this.#options.quiet !== true) this.#print(`\n${done}`);
    return faults === 0 ? 0 : 2;
  }

  #add(finding: Omit<Finding, "section">): void {
    this.findings.push({ section: this.#section, ...finding });
    const { quiet } = this.#options;
    const { level, text, cure } = finding;
    if (this.isForPrograms || (quiet === true && level !== "fault")) return;
    if (!this.#isTitled) this.#print(`${this.findings.length === 1 ? "" : "\n"}${this.#section}`);
    this.#isTitled = true;
    this.#print(`  ${level === "fault" ? "FAULT" : level.padEnd(5)}   ${text}`);
    if (cure !== undefined) this.#print(`          ${cure}`);
  }
}
