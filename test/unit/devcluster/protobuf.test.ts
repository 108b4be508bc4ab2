import { describe, expect, test } from "vitest";
import { readProtobuf } from "../../../src/devcluster/kubectl/protobuf.ts";
import { requestModel } from "../../../src/devcluster/auth/reviews.ts";

/** A field: length-delimited for bytes, text and messages, a varint for numbers. */
function field(number: number, value: Buffer | string | number): Buffer {
  if (typeof value === "number") return Buffer.concat([varint(number << 3), varint(value)]);
  const bytes = Buffer.from(value);
  return Buffer.concat([varint((number << 3) | 2), varint(bytes.length), bytes]);
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  for (; rest >= 128n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return Buffer.from([...bytes, Number(rest)]);
}

const message = (...fields: Buffer[]) => Buffer.concat(fields);

const envelope = (apiVersion: string, kind: string, object: Buffer) =>
  Buffer.concat([Buffer.from("k8s\0"), field(1, message(field(1, apiVersion), field(2, kind))), field(2, object)]);

const read = (apiVersion: string, kind: string, object: Buffer) =>
  readProtobuf(envelope(apiVersion, kind, object), requestModel);

describe("readProtobuf", () => {
  test("reads metadata, maps and bytes", () => {
    const labels = field(11, message(field(1, "app"), field(2, "web")));
    const secret = message(
      field(1, message(field(1, "s"), labels)),
      field(2, message(field(1, "k"), field(2, Buffer.from([1, 2])))),
      field(3, "Opaque"),
    );
    expect(read("v1", "Secret", secret)).toEqual({
      apiVersion: "v1",
      kind: "Secret",
      metadata: { name: "s", labels: { app: "web" } },
      data: { k: "AQI=" },
      type: "Opaque",
    });
  });

  test("reads lists of messages, quantities, negative numbers and messages that JSON inlines", () => {
    const requests = field(2, message(field(1, "cpu"), field(2, message(field(1, "500m")))));
    const probe = message(
      field(1, message(field(3, message(field(1, message(field(1, 1), field(3, "web"))))))),
      field(2, 5),
    );
    const container = message(field(1, "a"), field(3, "sh"), field(3, "-c"), field(8, requests), field(10, probe));
    const spec = message(
      field(2, container),
      field(4, -1),
      field(1, message(field(1, "v"), field(2, message(field(2, Buffer.alloc(0)))))),
    );
    expect(read("v1", "Pod", field(2, spec)).spec).toEqual({
      containers: [
        {
          name: "a",
          command: ["sh", "-c"],
          resources: { requests: { cpu: "500m" } },
          livenessProbe: { tcpSocket: { port: "web" }, initialDelaySeconds: 5 },
        },
      ],
      terminationGracePeriodSeconds: -1,
      volumes: [{ name: "v", emptyDir: {} }],
    });
  });

  test("reads times, with microseconds where the kind keeps them", () => {
    const at = message(field(1, 1_767_225_600), field(2, 123_456_000));
    expect(read("coordination.k8s.io/v1", "Lease", field(2, field(4, at))).spec).toEqual({
      renewTime: "2026-01-01T00:00:00.123456Z",
    });
    expect(read("v1", "Event", field(6, at)).firstTimestamp).toBe("2026-01-01T00:00:00Z");
    expect(read("v1", "Event", field(6, Buffer.alloc(0))).firstTimestamp).toBeNull();
  });

  test.for([
    ["no magic", Buffer.from("nonsense")],
    ["a length beyond the end", Buffer.concat([Buffer.from("k8s\0"), Buffer.from([0x0a, 0x7f])])],
    ["a number that never ends", Buffer.concat([Buffer.from("k8s\0"), Buffer.alloc(12, 0xff)])],
    ["a kind that nobody knows", envelope("v1", "Nonsense", Buffer.alloc(0))],
  ] as const)("refuses %s with 400", ([, bytes]) => {
    expect(() => readProtobuf(bytes, requestModel)).toThrow(
      expect.objectContaining({ body: expect.objectContaining({ code: 400 }) }),
    );
  });
});
