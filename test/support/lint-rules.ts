/**
 * Lint rules of our own, as a plugin of oxlint.
 *
 * What the sources match was written by a tenant, a guest or a backend, so every regular expression has to be done in
 * linear time: it is written down as a literal, and none of these takes longer. And a class is short enough to be read.
 */
import { analyse } from "scslre";

/** The parts of ESTree and of ESLint's interface that are used here. */
interface Node {
  type: string;
  name?: string;
  value?: unknown;
  key?: Node;
  object?: Node;
  computed?: boolean;
  properties?: readonly { key?: Node; value?: Node }[];
  regex?: { pattern: string; flags: string };
  callee?: Node;
  property?: Node;
  params?: readonly Node[];
  source?: Node;
  specifiers?: readonly Node[];
  imported?: Node;
  arguments?: readonly Node[];
  loc?: { start: { line: number }; end: { line: number } };
  argument?: Node;
}

interface Context {
  options?: readonly unknown[];
  report(problem: { node: Node; message: string }): void;
}

/** Why matching with this may take longer than in proportion to the text; undefined when it does not. */
export function superLinear(pattern: string, flags = ""): string | undefined {
  const { reports } = analyse({ source: pattern, flags });
  const worst = reports.find(({ exponential }) => exponential) ?? reports[0];
  if (worst === undefined) return undefined;
  const time = worst.exponential ? "exponential" : "quadratic";
  return `takes ${time} time on a text of many ${JSON.stringify(worst.character.pick)}`;
}

/** Regular expressions are linear in the length of any text. */
const linearRegexp = {
  create: (context: Context) => ({
    Literal(node: Node): void {
      const problem = node.regex && superLinear(node.regex.pattern, node.regex.flags);
      if (problem)
        context.report({ node, message: `${problem}: use a loop, or make it unambiguous (see util/text.ts)` });
    },
  }),
};

/** What a pattern says is not for others to choose. */
const noVariableRegexp = {
  create: (context: Context) => {
    const check = (node: Node) => {
      if (node.callee?.name === "RegExp")
        context.report({ node, message: "write a literal, or match without a pattern" });
    };
    return {
      NewExpression: check,
      CallExpression(node: Node): void {
        check(node);
        // A string becomes a pattern here.
        const takesPattern = ["match", "matchAll", "search"].includes(node.callee?.property?.name ?? "");
        const [pattern] = node.arguments ?? [];
        const isText = pattern?.type === "TemplateLiteral" || typeof pattern?.value === "string";
        if (takesPattern && isText) context.report({ node, message: "give a literal pattern, not a string" });
      },
    };
  },
};

/** A class of more lines than `max` has more than one trade. */
const maxClassLines = {
  meta: { schema: [{ type: "object" }] },
  create: (context: Context) => {
    const { max } = context.options![0] as { max: number };
    const check = (node: Node): void => {
      const lines = node.loc!.end.line - node.loc!.start.line + 1;
      if (lines > max) context.report({ node, message: `has ${lines} lines, more than ${max}: give it fewer trades` });
    };
    return { ClassDeclaration: check, ClassExpression: check };
  },
};

const LOG_METHODS = ["debug", "info", "warn", "error"];

/** What is wrong with the message of a log line; undefined when nothing is. */
function messageFault(message: Node | undefined): string | undefined {
  if (message?.type === "TemplateLiteral" || message?.type === "BinaryExpression")
    return "the message of a log line is constant: put what differs into fields";
  if (typeof message?.value === "string" && !/^[A-Z]/.test(message.value))
    return "the message of a log line begins with a capital letter";
  return undefined;
}

/** What is wrong with a field of a log line; undefined when nothing is. */
function fieldFault(name: string | undefined, value: Node): string | undefined {
  if (name === "error" || name === "thrown") return "an error is logged as `err`";
  const isPart = ["message", "stack"].includes(value.property?.name ?? "");
  if (name === "err" && (isPart || value.type === "CallExpression" || value.type === "TemplateLiteral"))
    return "what was thrown is logged whole, `err: thrown`: the logger takes from it what may be told";
  return undefined;
}

/** One voice: a constant sentence, the data as fields, and what was thrown as `err`. */
const logCall = {
  create: (context: Context) => ({
    CallExpression(node: Node): void {
      const { callee } = node;
      const logger = callee?.object?.property?.name ?? callee?.object?.name;
      if (logger !== "logger" && logger !== "#logger") return;
      if (!LOG_METHODS.includes(callee?.property?.name ?? "") && callee?.computed !== true) return;
      const [fields, message] = node.arguments ?? [];
      const faults = (fields?.properties ?? []).map(({ key, value }) => value && fieldFault(key?.name, value));
      for (const fault of [messageFault(message), ...faults])
        if (fault !== undefined) context.report({ node, message: fault });
    },
  }),
};

/**
 * Tests wait for conditions: a pause is too short on a busy machine and too long on any other. e2e/harness/wait.ts has what
 * waits, and `passTime` for where time itself is tried.
 */
const noSleep = {
  create: (context: Context) => {
    const message = "wait for a condition (e2e/harness/wait.ts), or give it a clock";
    const isTimer = (node?: Node) => node?.callee?.name === "setTimeout";
    /** What the callbacks of promises under construction may call, innermost last. */
    const executors: (readonly string[])[] = [];
    const isExecutor = (node: Node) => node.callee?.name === "Promise" && node.arguments?.[0]?.params !== undefined;
    return {
      ImportDeclaration(node: Node): void {
        if (node.source?.value !== "node:timers/promises") return;
        for (const each of node.specifiers ?? [])
          if (each.imported?.name === "setTimeout") context.report({ node: each, message });
      },
      NewExpression(node: Node): void {
        if (isExecutor(node)) executors.push(node.arguments![0]!.params!.map(({ name = "" }) => name));
      },
      "NewExpression:exit"(node: Node): void {
        if (isExecutor(node)) executors.pop();
      },
      CallExpression(node: Node): void {
        const [called] = node.arguments ?? [];
        if (isTimer(node) && called?.name !== undefined && executors.at(-1)?.includes(called.name))
          context.report({ node, message });
      },
      AwaitExpression({ argument }: Node): void {
        const { object, property } = argument?.callee ?? {};
        const isSleep = object?.name === "systemClock" && property?.name === "sleep";
        // With a signal it is for others to end.
        if (isSleep && argument!.arguments!.length === 1) context.report({ node: argument!, message });
      },
    };
  },
};

/** One word for one thing. */
const testNotIt = {
  create: (context: Context) => ({
    ImportDeclaration(node: Node): void {
      if (node.source?.value !== "vitest") return;
      for (const each of node.specifiers ?? [])
        if (each.imported?.name === "it") context.report({ node: each, message: "it is written test here" });
    },
  }),
};

/** Who listens to an AbortSignal gives its listener back: a signal may live as long as the process. */
const abortListener = {
  create: (context: Context) => ({
    CallExpression(node: Node): void {
      const [event] = node.arguments ?? [];
      if (node.callee?.property?.name === "addEventListener" && event?.value === "abort")
        context.report({
          node,
          message: "take onAbort or another helper of util/abort.ts: it gives the listener back",
        });
    },
  }),
};

export default {
  meta: { name: "vmlet" },
  rules: {
    "linear-regexp": linearRegexp,
    "no-sleep": noSleep,
    "no-variable-regexp": noVariableRegexp,
    "test-not-it": testNotIt,
    "max-class-lines": maxClassLines,
    "log-call": logCall,
    "abort-listener": abortListener,
  },
};
