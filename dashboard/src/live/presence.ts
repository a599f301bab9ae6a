/**
 * Locks by which each end of a port knows whether the other one is still there. A tab that crashes or is discarded sends no
 * message, but the browser frees its locks. Browsers have locks in secure contexts only, so that neither end notices anything
 * over plain HTTP to another host than localhost.
 */

const locks = (globalThis.navigator as { locks?: LockManager }).locks;

/** Holds a lock with a new name until this tab or worker ends or `signal` aborts, and calls `held` with the name. */
export function holdLock(held: (name: string) => void, signal: AbortSignal): void {
  if (!locks) return;
  const name = `skep-${crypto.randomUUID()}`;
  const untilAborted = (): Promise<void> =>
    new Promise((resolve) => {
      signal.addEventListener('abort', () => resolve());
      held(name);
    });
  locks.request(name, { signal }, untilAborted).catch(() => {});
}

/** Calls `gone` once whoever holds the lock has ended, unless `signal` aborts before. */
export function whenGone(name: string, gone: () => void, signal: AbortSignal): void {
  locks?.request(name, { signal }, gone).catch(() => {});
}
