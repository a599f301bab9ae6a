import { setTimeout as pause } from 'node:timers/promises';

/** Waits until `probe` returns something. Fails after a minute with what was awaited. */
export async function eventually<T>(what: string, probe: () => Promise<T | undefined> | T | undefined): Promise<T> {
  for (const deadline = Date.now() + 60_000; Date.now() < deadline; ) {
    const found = await probe();
    if (found !== undefined && found !== false) return found;
    await pause(50);
  }
  throw new Error(`${what} did not happen within a minute`);
}
