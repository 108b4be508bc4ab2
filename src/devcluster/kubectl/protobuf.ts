/**
 * Reads the protobuf form of API objects, which `kubectl create` and other clients built on client-go's typed
 * clientsets send whatever the server would prefer. Only reading: answers are JSON, which every client accepts.
 */
import { rfc3339 } from "../../util/clock.ts";
import type { Json } from "../objects/object.ts";
import { fieldsOf, type Field, type FieldType } from "../objects/schema.ts";
import { badRequest } from "../objects/errors.ts";

/** What precedes every object of `application/vnd.kubernetes.protobuf`. */
const MAGIC = Buffer.from("k8s\0");

type WireValue = { bytes: Buffer } | { number: bigint };
type Message = Map<number, WireValue[]>;

/** @throws ApiStatusError 400 for bytes that are not such an object */
export function readProtobuf(body: Buffer, modelOf: (apiVersion: string, kind: string) => string | undefined): Json {
  if (!body.subarray(0, 4).equals(MAGIC))
    throw badRequest("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]");
  const envelope = readMessage(body.subarray(4));
  const typeMeta = readMessage(bytesOf(envelope, 1));
  const apiVersion = bytesOf(typeMeta, 1).toString();
  const kind = bytesOf(typeMeta, 2).toString();
  const model = modelOf(apiVersion, kind);
  if (model === undefined) throw badRequest(`no kind "${kind}" is registered for version "${apiVersion}"`);
  return { apiVersion, kind, ...readObject(model, readMessage(bytesOf(envelope, 2))) };
}

function readObject(model: string, message: Message): Json {
  const out: Record<string, Json> = {};
  for (const [name, field] of fieldsOf(model)) {
    const values = valuesAt(message, field.numbers);
    if (values && values.length > 0) out[name] = readField(field, values);
  }
  return out;
}

/** Follows `numbers` into inlined messages. */
function valuesAt(message: Message, numbers: readonly number[]): WireValue[] | undefined {
  const [first, ...rest] = numbers;
  if (first === undefined) return undefined;
  const values = message.get(first);
  if (rest.length === 0 || !values) return values;
  const inner = values.at(-1)!;
  return "bytes" in inner ? valuesAt(readMessage(inner.bytes), rest) : undefined;
}

function readField(field: Field, values: readonly WireValue[]): Json {
  const { type, isQuantity } = field;
  if (type.is === "array") return values.map((value) => readValue(type.of, value, isQuantity));
  if (type.is !== "map") return readValue(type, values.at(-1)!, isQuantity);
  return Object.fromEntries(
    values.map((value) => {
      const entry = readMessage(contentOf(value));
      const item = entry.get(2)?.at(-1);
      return [bytesOf(entry, 1).toString(), item ? readValue(type.of, item, isQuantity) : ""];
    }),
  );
}

function readValue(type: FieldType, value: WireValue, isQuantity: boolean): Json {
  switch (type.is) {
    case "string":
      return isQuantity ? bytesOf(readMessage(contentOf(value)), 1).toString() : contentOf(value).toString();
    case "bytes":
      return contentOf(value).toString("base64");
    case "boolean":
      return numberOf(value) !== 0n;
    case "int":
      return Number(BigInt.asIntN(64, numberOf(value)));
    case "double": {
      const bits = Buffer.alloc(8);
      bits.writeBigUInt64LE(numberOf(value));
      return bits.readDoubleLE();
    }
    case "time":
    case "microTime":
      return readTime(type.is, readMessage(contentOf(value)));
    case "intOrString":
      return readIntOrString(readMessage(contentOf(value)));
    case "object":
      return readObject(type.model, readMessage(contentOf(value)));
    case "array":
    case "map":
    case "any":
      // Lists of lists, maps of lists and untyped JSON do not occur in what clients send to this server.
      return null;
  }
}

function readTime(precision: "time" | "microTime", message: Message): string | null {
  const seconds = message.get(1)?.at(-1);
  // An empty message is Go's zero time, which JSON writes as null.
  if (!seconds) return null;
  const text = rfc3339(Number(BigInt.asIntN(64, numberOf(seconds))) * 1000);
  const nanos = message.get(2)?.at(-1);
  const micros = nanos ? Number(numberOf(nanos) / 1000n) : 0;
  return precision === "time" ? text : text.replace("Z", `.${String(micros).padStart(6, "0")}Z`);
}

function readIntOrString(message: Message): string | number {
  const isString = message.get(1)?.at(-1);
  if (isString && numberOf(isString) === 1n) return bytesOf(message, 3).toString();
  const int = message.get(2)?.at(-1);
  return int ? Number(BigInt.asIntN(64, numberOf(int))) : 0;
}

function readMessage(bytes: Buffer): Message {
  const message: Message = new Map();
  let at = 0;
  const varint = (): bigint => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = bytes[at++];
      if (byte === undefined) throw badRequest("unexpected EOF in a protobuf message");
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw badRequest("a protobuf number is longer than 64 bits");
  };
  const take = (length: number): Buffer => {
    if (length > bytes.length - at) throw badRequest("unexpected EOF in a protobuf message");
    at += length;
    return bytes.subarray(at - length, at);
  };
  while (at < bytes.length) {
    const tag = varint();
    const wireType = Number(tag & 7n);
    let value: WireValue;
    if (wireType === 0) value = { number: varint() };
    else if (wireType === 1) value = { number: take(8).readBigUInt64LE() };
    else if (wireType === 2) value = { bytes: take(Number(varint())) };
    else if (wireType === 5) value = { number: BigInt(take(4).readUInt32LE()) };
    else throw badRequest(`protobuf wire type ${wireType} is not known`);
    const number = Number(tag >> 3n);
    message.set(number, [...(message.get(number) ?? []), value]);
  }
  return message;
}

function contentOf(value: WireValue): Buffer {
  if ("bytes" in value) return value.bytes;
  throw badRequest("a protobuf field has a number where a message belongs");
}

function numberOf(value: WireValue): bigint {
  if ("number" in value) return value.number;
  throw badRequest("a protobuf field has a message where a number belongs");
}

const bytesOf = (message: Message, number: number): Buffer => {
  const value = message.get(number)?.at(-1);
  return value ? contentOf(value) : Buffer.alloc(0);
};
