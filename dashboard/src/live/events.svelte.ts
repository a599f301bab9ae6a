import { ApiError, noticeSessionEnd, type Schema } from '../api/client';
import type { StreamState } from './protocol';
import { followShared } from './shared';

export type VmEvent = Schema<'VmEvent'>;
export type TicketEvent = Schema<'TicketEvent'>;
/** An event of the account. */
export type SkepEvent = TicketEvent | VmEvent | Schema<'TemplateEvent'> | Schema<'KeyEvent'>;

export function isTicketEvent(event: SkepEvent): event is TicketEvent {
  return event.type.startsWith('ticket.');
}

export function isVmEvent(event: SkepEvent): event is VmEvent {
  return event.type.startsWith('vm.');
}

/** The id of the ticket that the event is about; null for events of other things. */
export function ticketOf(event: SkepEvent): string | null {
  if (!isTicketEvent(event)) return null;
  return typeof event.ticket === 'string' ? event.ticket : event.ticket.id;
}

type Handler = (event: SkepEvent) => void;

interface Subscription {
  types: readonly string[];
  handler: Handler;
}

const subscriptions = new Set<Subscription>();
const openings = new Set<() => void>();

/** The state of the stream, for the page to show. */
export const connection: { state: StreamState } = $state({ state: 'waiting' });

let end: (() => void) | null = null;

/** Opens the stream of the account's events. */
export function openEvents(): void {
  end ??= followShared('/api/events', (message) => {
    if (message.kind === 'event') return dispatch(message.type, message.data);
    connection.state = message.state;
    // The worker that asked knows nothing of this page's session.
    if (message.state === 'refused') noticeSessionEnd(new ApiError(message.status, message.code, message.message));
    if (message.state !== 'live') return;
    // What changed before the stream was open may be missing in it and in what was read before that.
    for (const reload of openings) reload();
  });
}

export function closeEvents(): void {
  end?.();
  end = null;
}

function dispatch(type: string, data: string): void {
  // The reason why the server ends the stream, which is opened again or refused then.
  if (type === 'error') return;
  if (type === 'stream.gap') {
    for (const reload of openings) reload();
    return;
  }
  const event = JSON.parse(data) as SkepEvent;
  for (const { types, handler } of subscriptions) {
    if (types.some((wanted) => matches(wanted, type))) handler(event);
  }
}

/** Whether `wanted`, such as `ticket.*` or `vm.ended`, covers `type`. */
function matches(wanted: string, type: string): boolean {
  return wanted.endsWith('*') ? type.startsWith(wanted.slice(0, -1)) : wanted === type;
}

/**
 * Calls `handler` for each event of these types (`vm.booted`, `ticket.*`).
 *
 * @returns what ends it
 */
export function onEvent(types: readonly string[], handler: Handler): () => void {
  const subscription = { types, handler };
  subscriptions.add(subscription);
  return () => subscriptions.delete(subscription);
}

/** Calls `reload` whenever the stream was opened, and where events are missing in it. */
export function onOpening(reload: () => void): () => void {
  openings.add(reload);
  return () => openings.delete(reload);
}
