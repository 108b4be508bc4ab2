/**
 * Everything between agents and servers. A request waits here until the schedule decides what becomes of it: it may be refused
 * before it arrives, arrive and lose its reply, arrive long after its sender gave up or died, or be answered late.
 */
import { pick } from "./seeded.ts";
import type { Agent } from "./agent/agent.ts";
import { Violation } from "./violation.ts";
import type { World } from "./world/world.ts";

export interface Request {
  agent: Agent;
  /** Such as `be.create`. */
  name: string;
  /** Of the pod that it is about; undefined for lists. */
  uid: string | undefined;
  /** True when it changes something, so that it matters whether it arrives. */
  changes: boolean;
  /** What the server does and answers. @throws the server's error */
  exec: () => unknown;
  resolve: (value: unknown) => void;
  reject: (error: Error) => void;
  /** What the client makes of no answer, or of one that is not the server's own. */
  fault: (kind: Fault) => Error;
}

/** `proxied`: something in between answers 404, 429 or 504 for the server. */
export type Fault = "unavailable" | "proxied";

/** Requests arrive within this time or never: clients, proxies and kernels give up. */
const LATEST_MS = 120_000;

export class Network {
  readonly #world: World;
  /** Requests that nobody has answered, each agent's in order. */
  readonly waiting: Request[] = [];
  readonly #late: { request: Request; until: number }[] = [];
  readonly #replies: { request: Request; answer: Answer }[] = [];
  violation: Violation | undefined;
  /** Nothing fails or lies any more. */
  isFair = false;
  /** How many requests changed something, of all and by pod. */
  readonly sent = new Map<string, number>();

  constructor(world: World) {
    this.#world = world;
  }

  /** By agent and pod: creates that were not refused by the backend itself. */
  readonly #creates = new Map<Agent, Map<string, number>>();

  /** UIDs of the pods for which this agent has asked for a machine, and may have got it, or get it yet. */
  createsOf(agent: Agent): string[] {
    return [...(this.#creates.get(agent) ?? [])].flatMap(([uid, count]) => (count > 0 ? [uid] : []));
  }

  #countCreate({ agent, name, uid }: Pick<Request, "agent" | "name" | "uid">, count: 1 | -1): void {
    if (name !== "be.create") return;
    const asked = this.#creates.get(agent) ?? new Map<string, number>();
    this.#creates.set(agent, asked.set(uid!, (asked.get(uid!) ?? 0) + count));
  }

  #reply(request: Request, answer: Answer): void {
    if ("error" in answer) this.#countCreate(request, -1);
    reply(request, answer);
  }

  /** Resolves or rejects as the schedule decides; never when the agent is killed before. */
  send<T>(request: Omit<Request, "resolve" | "reject">): Promise<T> {
    this.#countCreate(request, 1);
    const key = `${request.uid ?? ""} ${request.name}`;
    this.sent.set(key, (this.sent.get(key) ?? 0) + 1);
    return new Promise<T>((resolve, reject) => {
      this.waiting.push({ ...request, resolve: resolve as (value: unknown) => void, reject });
    });
  }

  of(agent: Agent): Request[] {
    return this.waiting.filter((request) => request.agent === agent);
  }

  /** Takes out the request and lets chance decide about it. `crash` is called when it takes the agent's process with it. */
  decide(request: Request, faultRate: number, crash: (agent: Agent) => void): void {
    const { random, scenario } = this.#world;
    this.#take(request);
    const x = random() / faultRate;
    if (x < 0.3) return this.#fail(request, "unavailable");
    if (x < 0.4) {
      this.trace(request, "crash before");
      return crash(request.agent);
    }
    if (x < 0.65 && request.changes) {
      this.#arriveLate(request);
      return this.#fail(request, "unavailable");
    }
    if (scenario.proxies && random() < 0.2) {
      // Half of them passed the request on before.
      if (random() < 0.5) this.#execute(request);
      return this.#fail(request, "proxied");
    }
    const answer = this.#execute(request);
    if (x < 0.9) return this.#fail(request, "unavailable");
    if (x < 1) {
      this.trace(request, "crash after");
      return crash(request.agent);
    }
    if (random() < 0.1) this.#replies.push({ request, answer });
    else this.#reply(request, answer);
  }

  /** Carries out the request and answers it, as is usual. */
  serve(request: Request): void {
    this.#take(request);
    this.#reply(request, this.#execute(request));
  }

  /** Every request waits in vain. */
  refuseAll(): void {
    for (const request of this.waiting.splice(0)) this.#fail(request, "unavailable");
  }

  /** What the dead agent had sent is on its way, or was not sent yet. */
  kill(agent: Agent): void {
    for (const request of this.of(agent)) {
      this.#take(request);
      if (request.changes && this.#world.random() < 0.3) this.#arriveLate(request);
    }
    for (let i = this.#replies.length - 1; i >= 0; i--)
      if (this.#replies[i]!.request.agent === agent) this.#replies.splice(i, 1);
  }

  get hasLate(): boolean {
    return this.#late.length > 0;
  }

  /** One of the requests that were given up arrives after all. */
  landOne(): void {
    if (this.#late.length > 0) this.#land(pick(this.#world.random, this.#late));
  }

  /** One of the answers that were on their way comes. */
  answerOne(): void {
    if (this.#replies.length === 0) return;
    const late = pick(this.#world.random, this.#replies);
    this.#replies.splice(this.#replies.indexOf(late), 1);
    this.trace(late.request, "answer comes late");
    this.#reply(late.request, late.answer);
  }

  answerAll(): void {
    while (this.#replies.length > 0) this.answerOne();
  }

  /** Lands what has been under way for as long as anything may be. */
  landOverdue(): void {
    for (const late of this.#late.filter(({ until }) => until <= this.#world.now)) this.#land(late);
  }

  #land(late: { request: Request; until: number }): void {
    this.#late.splice(this.#late.indexOf(late), 1);
    this.trace(late.request, "lands late");
    this.#execute(late.request);
  }

  #arriveLate(request: Request): void {
    this.#late.push({ request, until: this.#world.now + LATEST_MS });
  }

  #take(request: Request): void {
    const index = this.waiting.indexOf(request);
    if (index >= 0) this.waiting.splice(index, 1);
  }

  #fail(request: Request, kind: Fault): void {
    this.trace(request, kind);
    request.reject(request.fault(kind));
  }

  #execute(request: Request): Answer {
    try {
      const value = request.exec();
      this.trace(request, "done");
      return { value };
    } catch (thrown) {
      if (thrown instanceof Violation) this.violation ??= thrown;
      this.trace(request, (thrown as Error).message);
      return { error: thrown as Error };
    }
  }

  trace({ agent, name, uid }: Request, what: string): void {
    this.#world.trace?.(`${agent.name}: ${name} ${uid ?? ""}: ${what}`);
  }
}

type Answer = { value: unknown } | { error: Error };

function reply(request: Request, answer: Answer): void {
  if ("error" in answer) request.reject(answer.error);
  else request.resolve(answer.value);
}
