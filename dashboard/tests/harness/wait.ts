import { setTimeout as pause } from 'node:timers/promises';

const A_MINUTE_MS = 60_000;

/** Waits until `probe` returns something. Fails after a minute, or after `limitMs`, with what was awaited. */
export async function eventually<T>(what: string, probe: () => Promise<T | undefined> | T | undefined, limitMs = A_MINUTE_MS): Promise<T> {
  for (const deadline = Date.now() + limitMs; Date.now() < deadline; ) {
    const found = await probe();
    if (found !== undefined && found !== false) return found;
    await pause(50);
  }
  throw new Error(`${what} did not happen within ${limitMs / 1_000} s`);
}
