import { open } from "node:fs/promises";

/** What the file has is on the disk: a rename may outlive a power cut that the content would not. */
export async function flushFile(path: string): Promise<void> {
  const file = await open(path);
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}
