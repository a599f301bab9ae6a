import { onEvent, onReturn } from './events.svelte';

/** Reloads by events are at least this far apart. */
const RELOAD_MS = 1_000;

interface QueryOptions {
  /** The types of events after which the data is read again. */
  on?: readonly string[];
  /** Reads again after this time too, for figures without events. */
  everyMs?: number;
}

/**
 * Data of the API in a component: read when the component is made, and again after events, after the stream came back,
 * and when reactive values that `load` reads before its first `await` change. Must be made while a component is.
 */
export class Query<T> {
  data = $state.raw<T | undefined>(undefined);
  error = $state.raw<unknown>(null);
  /** Whether the first answer is still missing. */
  loading = $state(true);

  readonly #load: (signal: AbortSignal) => Promise<T>;
  #abort: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | null = null;

  constructor(load: (signal: AbortSignal) => Promise<T>, { on = [], everyMs }: QueryOptions = {}) {
    this.#load = load;
    $effect(() => {
      void this.reload();
      const ends = [onEvent(on, () => this.#later()), onReturn(() => void this.reload())];
      const every = everyMs ? setInterval(() => document.hidden || void this.reload(), everyMs) : null;
      return () => {
        for (const end of ends) end();
        if (every) clearInterval(every);
        if (this.#timer) clearTimeout(this.#timer);
        this.#timer = null;
        this.#abort?.abort();
      };
    });
  }

  /** Reads the data now. A reading that is under way is dropped. */
  async reload(): Promise<void> {
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    try {
      const data = await this.#load(abort.signal);
      if (abort.signal.aborted) return;
      this.data = data;
      this.error = null;
    } catch (error) {
      if (abort.signal.aborted) return;
      this.error = error;
    }
    this.loading = false;
  }

  #later(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      void this.reload();
    }, RELOAD_MS);
  }
}
