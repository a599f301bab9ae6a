import { streamEvents } from '../api/stream';
import { clock } from '../components/clock.svelte';
import { onEvent, onOpening, type SkepEvent } from './events.svelte';

const MAX_EVENTS = 2_000;

/**
 * The account's events of the last `minutes`, at most 2,000, oldest first: those before the page was opened, and each new one.
 * Must be made while a component is.
 */
export class RecentEvents {
  /** Whether the events before the page was opened are still missing. */
  loading = $state(true);
  #all = $state.raw<SkepEvent[]>([]);
  readonly #windowMs: number;
  readonly list = $derived.by(() => {
    const begin = clock.now - this.#windowMs;
    return this.#all.filter(({ at }) => Date.parse(at) >= begin);
  });

  constructor(minutes: number, type = '*') {
    this.#windowMs = minutes * 60_000;
    $effect(() => {
      let abort = new AbortController();
      const read = async (): Promise<void> => {
        // One reading at a time, also where the stream of new events is opened again and again.
        abort.abort();
        abort = new AbortController();
        const { signal } = abort;
        const past = await readPast(this.#windowMs, type, signal);
        if (signal.aborted) return;
        this.#add(past);
        this.loading = false;
      };
      const ends = [onEvent([type], (event) => this.#add([event])), onOpening(() => void read()), () => abort.abort()];
      void read();
      return () => ends.forEach((end) => end());
    });
  }

  #add(events: readonly SkepEvent[]): void {
    // An event that happens while the past is read arrives twice.
    const known = new Set(this.#all.map(({ id }) => id));
    const added = events.filter(({ id }) => !known.has(id));
    if (added.length === 0) return;
    this.#all = [...this.#all, ...added].sort((a, b) => a.at.localeCompare(b.at)).slice(-MAX_EVENTS);
  }
}

async function readPast(windowMs: number, type: string, signal: AbortSignal): Promise<SkepEvent[]> {
  const events: SkepEvent[] = [];
  const since = new Date(Date.now() - windowMs).toISOString();
  const query = new URLSearchParams({ since, follow: 'false', ...(type !== '*' && { types: type }) });
  try {
    await streamEvents(`/api/events?${query}`, {
      signal,
      onEvent: ({ event = '', data }) => {
        if (event === 'error' || event === 'stream.gap') return;
        events.push(JSON.parse(data) as SkepEvent);
        if (events.length > MAX_EVENTS) events.shift();
      },
    });
  } catch {
    // The page's own stream shows the same refusal.
  }
  return events;
}
