import { streamEvents } from '../api/stream';
import { onEvent, type SkepEvent } from './events.svelte';

const WINDOW_MS = 15 * 60_000;
const MAX_EVENTS = 2_000;
/** The stream of past events goes on with new ones: it is past once nothing arrives for this long. */
const QUIET_MS = 400;
/** How long past events are read at most. The events of a busy account may come faster than the page wants to wait. */
const MAX_READ_MS = 5_000;

/**
 * The account's last 2,000 events, oldest first: those of the 15 minutes before the page was opened, and each new one. Must
 * be made while a component is.
 */
export class RecentEvents {
  list = $state.raw<SkepEvent[]>([]);

  constructor() {
    $effect(() => {
      const abort = new AbortController();
      const end = onEvent(['*'], (event) => this.#add([event]));
      void readPast(abort.signal).then((past) => this.#add(past));
      return () => {
        abort.abort();
        end();
      };
    });
  }

  /** The events of a type, oldest first. */
  of(type: string): SkepEvent[] {
    return this.list.filter((event) => event.type === type);
  }

  #add(events: readonly SkepEvent[]): void {
    // An event that happens while the past is read arrives twice.
    const known = new Set(this.list.map(({ id }) => id));
    const added = events.filter(({ id }) => !known.has(id));
    if (added.length === 0) return;
    this.list = [...this.list, ...added].sort((a, b) => a.at.localeCompare(b.at)).slice(-MAX_EVENTS);
  }
}

async function readPast(leaving: AbortSignal): Promise<SkepEvent[]> {
  const events: SkepEvent[] = [];
  const quiet = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const wait = (): void => {
    clearTimeout(timer);
    timer = setTimeout(() => quiet.abort(), QUIET_MS);
  };
  const since = new Date(Date.now() - WINDOW_MS).toISOString();
  try {
    await streamEvents(`/api/events?since=${encodeURIComponent(since)}`, {
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
