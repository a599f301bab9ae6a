import { streamEvents } from '../api/stream';
import { ApiError } from '../api/error';
import type { StreamMessage, StreamState } from './protocol';

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8_000;

type Listener = (message: StreamMessage) => void;

/** One stream of the server for any number of listeners. It is opened again after each end, except a refusal. */
class SharedStream {
  readonly listeners = new Set<Listener>();
  #abort = new AbortController();
  #last: StreamMessage | null = null;
  #lastEventId = '';

  constructor(readonly path: string) {
    void this.#run(this.#abort.signal);
  }

  add(listener: Listener): void {
    this.listeners.add(listener);
    if (this.#last) listener(this.#last);
  }

  reopen(): void {
    this.end();
    this.#abort = new AbortController();
    this.#lastEventId = '';
    void this.#run(this.#abort.signal);
  }

  end(): void {
    this.#abort.abort();
  }

  async #run(signal: AbortSignal): Promise<void> {
    let retry = FIRST_RETRY_MS;
    while (!signal.aborted) {
      let openSince = Infinity;
      try {
        await streamEvents(this.path, {
          signal,
          headers: this.#lastEventId ? { 'Last-Event-ID': this.#lastEventId } : {},
          onOpen: () => {
            openSince = performance.now();
            this.#report('live');
          },
          onEvent: ({ id, event, data }) => {
            if (id) this.#lastEventId = id;
            this.#send({ kind: 'event', path: this.path, type: event ?? 'message', data });
          },
        });
        if (signal.aborted) return;
        this.#report('waiting');
      } catch (error) {
        if (signal.aborted) return;
        // The server refuses what another attempt does not change; an overloaded or restarting one is asked again.
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
          this.#report('refused', error);
          return;
        }
        this.#report('waiting');
      }
      // Each opening makes all pages read their data: a stream that never lasts is opened less often too.
      if (performance.now() - openSince > LAST_RETRY_MS) retry = FIRST_RETRY_MS;
      await pause(retry, signal);
      retry = Math.min(retry * 2, LAST_RETRY_MS);
    }
  }

  #report(state: StreamState, error?: ApiError): void {
    const { status = 0, code = '', message = '' } = error ?? {};
    this.#last = { kind: 'state', path: this.path, state, status, code, message };
    this.#send(this.#last);
  }

  #send(message: StreamMessage): void {
    for (const listener of this.listeners) listener(message);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done);
  });
}

/** The streams that are open for all listeners of this browser, at most one for each path. */
export class StreamHub {
  readonly #streams = new Map<string, SharedStream>();

  follow(path: string, listener: Listener): void {
    let stream = this.#streams.get(path);
    if (!stream) {
      stream = new SharedStream(path);
      this.#streams.set(path, stream);
    }
    stream.add(listener);
  }

  leave(path: string, listener: Listener): void {
    const stream = this.#streams.get(path);
    if (!stream?.listeners.delete(listener) || stream.listeners.size > 0) return;
    stream.end();
    this.#streams.delete(path);
  }

  leaveAll(listener: Listener): void {
    for (const path of [...this.#streams.keys()]) this.leave(path, listener);
  }

  reopen(): void {
    for (const stream of this.#streams.values()) stream.reopen();
  }
}
