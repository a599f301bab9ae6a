import type { Schema } from '../../api/client';

/** The state of a ticket as a reader wants it: a pending ticket is ready, blocked or waiting. */
export function shownState(ticket: Pick<Schema<'Ticket'>, 'status' | 'ready' | 'blocked_by'>): string {
  if (ticket.status !== 'pending') return ticket.status;
  if (ticket.ready) return 'ready';
  return ticket.blocked_by.length > 0 ? 'blocked' : 'waiting';
}
