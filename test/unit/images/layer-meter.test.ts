import { gzipSync, zstdCompressSync } from "node:zlib";
import { expect, test } from "vitest";
import { metered, UnpackBudget } from "../../../providers/local/images/layer-meter.ts";
import { makeTar, type TarEntry } from "../../support/registry.ts";

async function* pieces(content: Buffer, size = 1000): AsyncGenerator<Buffer> {
  for (let at = 0; at < content.length; at += size) yield await Promise.resolve(content.subarray(at, at + size));
}

async function pass(content: Buffer, limits: { bytes?: number; inodes?: number } = {}, size?: number) {
  const budget = new UnpackBudget({ bytes: limits.bytes ?? 1e9, inodes: limits.inodes ?? 1e6 });
  const passed: Buffer[] = [];
  for await (const piece of metered(pieces(content, size), budget)) passed.push(piece);
  return Buffer.concat(passed);
}

const zeros = (bytes: number): TarEntry => ({ path: "zeros", content: Buffer.alloc(bytes) });
const files = (count: number): TarEntry[] => Array.from({ length: count }, (_, index) => ({ path: `f${index}` }));
const forms: [string, (tar: Buffer) => Buffer][] = [
  ["as it is", (tar) => tar],
  ["by gzip", (tar) => gzipSync(tar)],
  ["by zstd", (tar) => zstdCompressSync(tar)],
  ["by gzip, in two members", (tar) => Buffer.concat([gzipSync(tar.subarray(0, 700)), gzipSync(tar.subarray(700))])],
  [
    "by zstd, in two frames",
    (tar) => Buffer.concat([zstdCompressSync(tar.subarray(0, 700)), zstdCompressSync(tar.subarray(700))]),
  ],
  [
    "by zstd, after a frame that is skipped",
    (tar) => Buffer.concat([Buffer.from("502a4d1804000000abababab", "hex"), zstdCompressSync(tar)]),
  ],
];
/** A header alone, whose content is no part of it. */
const header = (type: string, change: (block: Buffer) => void = () => {}): Buffer => {
  const block = makeTar([{ path: "f" }]).subarray(0, 512);
  block.write(type, 156, "latin1");
  change(block);
  return block;
};
const sizeOf = (bytes: number) => (block: Buffer) => void block.write(`${bytes.toString(8).padStart(11, "0")}\0`, 124);
const extended = (record: string): Buffer => {
  const content = Buffer.alloc(512);
  content.write(record);
  return Buffer.concat([header("x", sizeOf(record.length)), content]);
};

test.each(forms)("a layer packed %s passes unchanged while it keeps to the limits", async (_form, pack) => {
  const layer = pack(makeTar([...files(20), zeros(5000)]));
  for (const size of [1, 7, 511, 100_000]) expect(await pass(layer, { inodes: 21 }, size)).toEqual(layer);
});

test.each(forms)("a layer packed %s is stopped when it comes to more bytes", async (_form, pack) => {
  await expect(pass(pack(makeTar([zeros(3_000_000)])), { bytes: 2_000_000 })).rejects.toThrow("2000000 bytes");
});

test.each(forms)("a layer packed %s is stopped when it comes to more files", async (_form, pack) => {
  await expect(pass(pack(makeTar(files(50))), { inodes: 49 })).rejects.toThrow("49 files");
});

test("files within the content of a file are no files", async () => {
  const inner = makeTar(files(50));
  await expect(pass(makeTar([{ path: "inner.tar", content: inner }]), { inodes: 1 })).resolves.toBeDefined();
});

test("a file with holes counts as large as it becomes", async () => {
  const old = header("S", (block) => void block.write("77777777777\0", 483));
  const fresh = Buffer.concat([extended("36 GNU.sparse.realsize=999999999999\n"), header("0")]);
  for (const layer of [old, fresh])
    await expect(pass(Buffer.concat([layer, Buffer.alloc(1024)]))).rejects.toThrow("bytes that this host accepts");
});

test("blocks that say more of a file's holes are no files", async () => {
  const more = Buffer.alloc(512, 1);
  const last = Buffer.alloc(512, 1);
  last[504] = 0;
  const layer = Buffer.concat([header("S", (block) => (block[482] = 1)), more, last, makeTar(files(1))]);
  await expect(pass(layer, { inodes: 2 })).resolves.toBeDefined();
  await expect(pass(layer, { inodes: 1 })).rejects.toThrow("1 files");
});

test("files that are hidden behind a size which an extended header replaces are seen", async () => {
  const layer = Buffer.concat([extended("9 size=0\n"), header("0", sizeOf(1 << 30)), makeTar(files(5))]);
  await expect(pass(layer, { inodes: 5 })).rejects.toThrow("5 files");
});

test("files that are hidden behind the size of a link are seen", async () => {
  const layer = Buffer.concat([header("2", sizeOf(1 << 30)), makeTar(files(5))]);
  await expect(pass(layer, { inodes: 5 })).rejects.toThrow("5 files");
});

test.each([
  ["an old entry that may be a folder", header("\0", (block) => [sizeOf(512)(block), block.write("d/\0")])],
  ["a size that is no number", header("0", (block) => void block.write("12 34\0", 124))],
  ["a negative size", header("0", (block) => block.fill(0xff, 124, 136))],
  ["an extended header that cannot be read", extended("99 size=0\n")],
  ["entries after the end", Buffer.concat([Buffer.alloc(512), header("0")])],
  ["no gzip after its first bytes", Buffer.from("1f8b0102030405", "hex")],
])("a layer with %s is refused", async (_what, layer) => {
  await expect(pass(layer)).rejects.toThrow("layer");
});
