import { StreamHub } from './hub';
import { holdLock, whenGone } from './presence';
import type { FromWorker, StreamMessage, ToWorker } from './protocol';

type Listener = (message: StreamMessage) => void;

const listeners = new Map<string, Set<Listener>>();

function receive(message: StreamMessage): void {
  for (const listener of listeners.get(message.path) ?? []) listener(message);
}

/** A port to the shared worker, which follows what has listeners. */
class Connection {
  readonly #port: MessagePort;
  readonly #ended = new AbortController();

  /** `onlost` is called when the worker has ended. */
  constructor(onlost: () => void) {
    const { port } = new SharedWorker(new URL('./shared-worker.ts', import.meta.url), { type: 'module', name: 'skep' });
    this.#port = port;
    port.onmessage = ({ data }: MessageEvent<FromWorker>) => {
      if (data.kind !== 'holds') return receive(data);
      const lost = (): void => {
        this.#ended.abort();
        onlost();
      };
      whenGone(data.lock, lost, this.#ended.signal);
    };
    holdLock((lock) => this.send({ kind: 'holds', lock }), this.#ended.signal);
    for (const path of listeners.keys()) this.send({ kind: 'follow', path });
  }

  send(message: ToWorker): void {
    this.#port.postMessage(message);
  }

  end(): void {
    this.send({ kind: 'close' });
    this.#ended.abort();
  }
}

const send = typeof SharedWorker === 'undefined' ? withoutWorker() : byWorker();

function byWorker(): (message: ToWorker) => void {
  let connection = connect();
  function connect(): Connection {
    // The worker runs in the process of one of the tabs, and ends when that one crashes.
    return new Connection(() => (connection = connect()));
  }
  // A page that the browser keeps for "back" must not hold streams open.
  window.addEventListener('pagehide', () => connection.end());
  window.addEventListener('pageshow', ({ persisted }) => {
    if (persisted) connection = connect();
  });
  return (message) => connection.send(message);
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
