import { streamEvents } from '../api/stream';
import { clock } from '../components/clock.svelte';
import { onEvent, type SkepEvent } from './events.svelte';

const MAX_EVENTS = 2_000;
/** The stream of past events goes on with new ones: it is past once nothing arrives for this long. */
const QUIET_MS = 400;
/** How long past events are read at most. The events of a busy account may come faster than the page wants to wait. */
const MAX_READ_MS = 5_000;

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
      const abort = new AbortController();
      const end = onEvent([type], (event) => this.#add([event]));
      void readPast(this.#windowMs, type, abort.signal).then((past) => {
        this.#add(past);
        this.loading = false;
      });
      return () => {
        abort.abort();
        end();
      };
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

async function readPast(windowMs: number, type: string, leaving: AbortSignal): Promise<SkepEvent[]> {
  const events: SkepEvent[] = [];
  const quiet = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const wait = (): void => {
    clearTimeout(timer);
    timer = setTimeout(() => quiet.abort(), QUIET_MS);
  };
  const query = new URLSearchParams({ since: new Date(Date.now() - windowMs).toISOString(), ...(type !== '*' && { types: type }) });
  try {
    await streamEvents(`/api/events?${query}`, {
      signal: AbortSignal.any([leaving, quiet.signal, AbortSignal.timeout(MAX_READ_MS)]),
      onOpen: wait,
      onEvent: ({ event = '', data }) => {
        wait();
        if (event === 'error' || event === 'stream.gap') return;
        events.push(JSON.parse(data) as SkepEvent);
        if (events.length > MAX_EVENTS) events.shift();
      },
    });
  } catch {
    // The page's own stream shows the same refusal.
  } finally {
    clearTimeout(timer);
  }
  return leaving.aborted ? [] : events;
}
