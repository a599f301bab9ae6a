import { StreamHub } from './hub';
import type { FromWorker, ToWorker } from './protocol';

type Listener = (message: FromWorker) => void;

const listeners = new Map<string, Set<Listener>>();

function receive(message: FromWorker): void {
  for (const listener of listeners.get(message.path) ?? []) listener(message);
}

const send = typeof SharedWorker === 'undefined' ? withoutWorker() : byWorker();

function byWorker(): (message: ToWorker) => void {
  const { port } = new SharedWorker(new URL('./shared-worker.ts', import.meta.url), { type: 'module', name: 'skep' });
  port.onmessage = ({ data }: MessageEvent<FromWorker>) => receive(data);
  // A page that the browser keeps for "back" must not hold streams open.
  window.addEventListener('pagehide', () => port.postMessage({ kind: 'close' } satisfies ToWorker));
  window.addEventListener('pageshow', ({ persisted }) => {
    if (persisted) for (const path of listeners.keys()) port.postMessage({ kind: 'follow', path } satisfies ToWorker);
  });
  return (message) => port.postMessage(message);
}

/** For browsers without shared workers: this tab has streams of its own. */
function withoutWorker(): (message: ToWorker) => void {
  const hub = new StreamHub();
  return (message) => {
    if (message.kind === 'follow') hub.follow(message.path, receive);
    if (message.kind === 'leave') hub.leave(message.path, receive);
    if (message.kind === 'reopen') hub.reopen();
  };
}

/**
 * Follows a stream of server-sent events, which all tabs share. A listener that joins an open stream misses what was
 * sent before.
 *
 * @returns what ends it
 */
export function followShared(path: string, listener: Listener): () => void {
  const present = listeners.get(path);
  if (present) present.add(listener);
  else listeners.set(path, new Set([listener]));
  send({ kind: 'follow', path });
  return () => {
    const left = listeners.get(path);
    if (!left?.delete(listener) || left.size > 0) return;
    listeners.delete(path);
    send({ kind: 'leave', path });
  };
}

/** Opens all streams again, with the session that the browser has now. */
export function reopenShared(): void {
  send({ kind: 'reopen' });
}
