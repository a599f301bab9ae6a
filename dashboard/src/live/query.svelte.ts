import { untrack } from 'svelte';

import { onEvent, onOpening, type SkepEvent } from './events.svelte';

/** Reloads by events are at least this far apart. */
const RELOAD_MS = 1_000;

interface QueryOptions {
  /** The types of events after which the data is read again. */
  on?: readonly string[];
  /** Which of these events concern the data; default: all. */
  when?: (event: SkepEvent) => boolean;
  /** Reads again after this time too, for figures without events. */
  everyMs?: number;
}

/**
 * Data of the API in a component: read when the component is made, and again after events, after their stream was opened,
 * and when reactive values that `load` reads before its first `await` change. Must be made while a component is.
 *
 * While it is read, further events only mark it as out of date: it is read once more afterwards. Nothing is read while the tab
 * is hidden, but as soon as it is shown again.
 */
export class Query<T> {
  data = $state.raw<T | undefined>(undefined);
  error = $state.raw<unknown>(null);
  /** Whether the first answer is still missing. */
  loading = $state(true);

  readonly #load: (signal: AbortSignal) => Promise<T>;
  #abort: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | null = null;
  /** The reading that is under way. */
  #reading: Promise<void> | null = null;
  #outOfDate = false;

  constructor(load: (signal: AbortSignal) => Promise<T>, { on = [], when = () => true, everyMs }: QueryOptions = {}) {
    this.#load = load;
    // `load` reads its inputs in this effect, which runs again when one of them changes.
    $effect(() => {
      void this.#restart();
      return () => {
        if (this.#timer) clearTimeout(this.#timer);
        this.#timer = null;
        this.#abort?.abort();
      };
    });
    $effect(() => untrack(() => this.#follow(on, when, everyMs)));
  }

  /** Reads the data now, or once more after the reading that is under way. */
  async reload(): Promise<void> {
    if (!this.#reading) return this.#restart();
    this.#outOfDate = true;
    await this.#reading;
  }

  /** Reads the data now. A reading that is under way is for other inputs, and is dropped. */
  #restart(): Promise<void> {
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    const reading = this.#read(abort.signal).then(() => {
      if (this.#reading === reading) this.#reading = null;
    });
    this.#reading = reading;
    return reading;
  }

  async #read(signal: AbortSignal): Promise<void> {
    do {
      this.#outOfDate = false;
      try {
        const data = await this.#load(signal);
        if (signal.aborted) return;
        this.data = data;
        this.error = null;
      } catch (error) {
        if (signal.aborted) return;
        this.error = error;
      }
      this.loading = false;
    } while (this.#outOfDate && !document.hidden);
  }

  #follow(on: readonly string[], when: (event: SkepEvent) => boolean, everyMs: number | undefined): () => void {
    const shown = (): void => {
      if (!document.hidden && this.#outOfDate) void this.reload();
    };
    document.addEventListener('visibilitychange', shown);
    const every = everyMs ? setInterval(() => document.hidden || this.#reading || void this.reload(), everyMs) : null;
    const ends = [
      onEvent(on, (event) => when(event) && this.#later()),
      onOpening(() => this.#now()),
      () => document.removeEventListener('visibilitychange', shown),
      () => clearInterval(every ?? undefined),
    ];
    return () => ends.forEach((end) => end());
  }

  #later(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#now();
    }, RELOAD_MS);
  }

  #now(): void {
    if (document.hidden) this.#outOfDate = true;
    else void this.reload();
  }
}
