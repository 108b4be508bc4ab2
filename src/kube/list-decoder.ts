/**
 * Reads a list item by item while it arrives, so that one giant item is left out and neither memory nor the whole list
 * is lost to it.
 */
import { KubeApiError, ReplyTooLargeError } from "./errors.ts";

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const [OPEN_BRACE, CLOSE_BRACE, OPEN_BRACKET, CLOSE_BRACKET] = [0x7b, 0x7d, 0x5b, 0x5d];
/** Of an item that is left out, so much is kept to tell whose it is. */
const HEAD_BYTES = 1024;
/**
 * How the API server begins an object: metadata first, and in it the names. Anything else is not quoted: it may be a
 * Secret's.
 */
const NAMES =
  /^\{(?:"kind":"\w+","apiVersion":"[\w./]+",)?"metadata":\{"name":"([\da-z.-]+)"(?:,"generateName":"[\da-z.-]+")?(?:,"namespace":"([\da-z-]+)")?/;

/**
 * An item of a list that was larger than any legal object. Names are absent when they do not stand at its beginning.
 */
export interface SkippedItem {
  readonly namespace: string | undefined;
  readonly name: string | undefined;
  readonly bytes: number;
}

interface DecodeListOptions {
  /** Longest item taken; a longer one is left out and told. */
  maxItemBytes: number;
  /** What is taken of the whole reply, without what is left out. */
  maxBytes: number;
  /** Begins the message of an error: method and path. */
  what: string;
  onSkipped: (item: SkippedItem) => void;
}

/**
 * Parses a list's JSON as it comes, one item at a time: neither the text of the whole list is ever held nor does its
 * parsing hold up everything else, and one item that is too large costs no other its place. `items` are the objects in
 * the reply's field of that name; anything else than objects in it is dropped.
 *
 * @throws ReplyTooLargeError when more than `maxBytes` would have to be held; KubeApiError `Malformed` for what is not
 *   JSON
 */
export async function decodeList(chunks: AsyncIterable<Buffer>, options: DecodeListOptions): Promise<unknown> {
  const splitter = new ItemSplitter(options);
  for await (const chunk of chunks) splitter.push(chunk);
  return splitter.end();
}

class ItemSplitter {
  readonly #options: DecodeListOptions;
  readonly #items: unknown[] = [];
  /** The reply without its items. */
  readonly #envelope: Buffer[] = [];
  /** Bytes of the item that is being read; only its head once it is too large. */
  #item: Buffer[] = [];
  #itemBytes = 0;
  #heldBytes = 0;
  #depth = 0;
  #inString = false;
  #escaped = false;
  /** The last string of the reply itself, cut off; `items` when the next bracket opens them. */
  #word = "";
  #inItems = false;

  constructor(options: DecodeListOptions) {
    this.#options = options;
  }

  push(chunk: Buffer): void {
    // Where the part of the chunk begins that is to be kept: for the envelope outside of the items, for an item within
    // one.
    let from = 0;
    for (let at = 0; at < chunk.length; at++) {
      const byte = chunk[at]!;
      if (this.#inString) {
        this.#string(byte);
        continue;
      }
      switch (byte) {
        case QUOTE:
          this.#inString = true;
          if (this.#depth === 1) this.#word = "";
          break;
        case OPEN_BRACE:
        case OPEN_BRACKET:
          if (this.#depth === 1 && byte === OPEN_BRACKET && this.#word === "items") {
            this.#inItems = true;
            this.#keep(chunk.subarray(from, at + 1));
            from = chunk.length;
          } else if (this.#inItems && this.#depth === 2) from = at;
          this.#depth++;
          break;
        case CLOSE_BRACE:
        case CLOSE_BRACKET:
          this.#depth--;
          if (!this.#inItems) break;
          if (this.#depth === 2) {
            this.#take(chunk.subarray(from, at + 1));
            if (byte === CLOSE_BRACE) this.#finishItem();
            this.#item = [];
            this.#itemBytes = 0;
            from = chunk.length;
          } else if (this.#depth === 1) {
            this.#inItems = false;
            from = at;
          }
          break;
        default:
      }
    }
    const rest = chunk.subarray(from);
    if (!this.#inItems) this.#keep(rest);
    else if (this.#depth > 2) this.#take(rest);
  }

  /** The list, with all items that were taken. */
  end(): unknown {
    const text = Buffer.concat(this.#envelope).toString("utf8");
    if (text === "") return undefined;
    const list = this.#parse(text) as { items?: unknown[] } | null;
    if (Array.isArray(list?.items)) list.items = this.#items;
    return list;
  }

  #string(byte: number): void {
    if (this.#escaped) this.#escaped = false;
    else if (byte === BACKSLASH) this.#escaped = true;
    else if (byte === QUOTE) this.#inString = false;
    else if (this.#depth === 1 && this.#word.length < 8) this.#word += String.fromCharCode(byte);
  }

  #keep(bytes: Buffer): void {
    this.#hold(bytes.length);
    this.#envelope.push(bytes);
  }

  #take(bytes: Buffer): void {
    const { maxItemBytes } = this.#options;
    this.#itemBytes += bytes.length;
    if (this.#itemBytes <= maxItemBytes) {
      this.#hold(bytes.length);
      this.#item.push(bytes);
    } else if (this.#itemBytes - bytes.length <= maxItemBytes) {
      this.#heldBytes -= this.#itemBytes - bytes.length;
      this.#item = [Buffer.concat([...this.#item, bytes]).subarray(0, HEAD_BYTES)];
    }
  }

  #finishItem(): void {
    const bytes = Buffer.concat(this.#item);
    if (this.#itemBytes <= this.#options.maxItemBytes) {
      this.#items.push(this.#parse(bytes.toString("utf8")));
      return;
    }
    const [, name, namespace] = NAMES.exec(bytes.toString("utf8")) ?? [];
    this.#options.onSkipped({ namespace, name, bytes: this.#itemBytes });
  }

  #hold(bytes: number): void {
    this.#heldBytes += bytes;
    const { maxBytes, what } = this.#options;
    if (this.#heldBytes > maxBytes) throw new ReplyTooLargeError(`${what}: the reply has more than ${maxBytes} bytes`);
  }

  #parse(text: string): unknown {
    try {
      return JSON.parse(text);
    } catch (thrown) {
      throw new KubeApiError(`${this.#options.what}: the reply is not JSON`, {
        status: 0,
        reason: "Malformed",
        cause: thrown,
      });
    }
  }
}
