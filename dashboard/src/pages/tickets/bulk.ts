import { api, unwrap, type Schema } from '../../api/client';
import { messageOf } from '../../api/error';
import type { operations } from '../../api/schema';
import { counted } from '../../components/counted';
import { moveTicket } from './move';

type Summary = Schema<'TicketSummary'>;
type Change = NonNullable<operations['change_ticket']['requestBody']>['content']['application/json'];

/** What can be done to several tickets at once. */
export interface BulkAction {
  label: string;
  /** The question before it, for this number of tickets. */
  question: (count: number) => string;
  danger?: boolean;
  applies: (ticket: Summary) => boolean;
  run: (ticket: Summary) => Promise<unknown>;
}

/** Requests that are under way at the same time. */
const AT_ONCE = 4;

function change(ticket: Summary, body: Change): Promise<unknown> {
  return unwrap(api.PATCH('/api/tickets/{id}', { params: { path: { id: ticket.id } }, body }));
}

/** Adds a label to those that the ticket has now: a change replaces all of them, and those of the list may be old. */
async function addLabel({ id }: Summary, label: string): Promise<void> {
  const params = { path: { id } };
  const { labels = [], version } = await unwrap(api.GET('/api/tickets/{id}', { params }));
  if (labels.includes(label)) return;
  const headers = { 'If-Match': `"${version}"` };
  await unwrap(api.PATCH('/api/tickets/{id}', { params, headers, body: { labels: [...labels, label] } }));
}

export const actions: readonly BulkAction[] = [
  {
    label: 'Try again',
    question: (count) => `Make ${counted(count, 'failed ticket')} pending again?`,
    applies: ({ status }) => status === 'failed',
    run: (ticket) => moveTicket(ticket, 'pending'),
  },
  {
    label: 'Take back',
    question: (count) => `Take ${counted(count, 'ticket')} from ${count === 1 ? 'its holder' : 'their holders'}?`,
    danger: true,
    applies: ({ status }) => status === 'in_progress',
    run: (ticket) => moveTicket(ticket, 'pending'),
  },
  {
    label: 'Mark as failed',
    question: (count) => `Mark ${counted(count, 'pending ticket')} as failed?`,
    danger: true,
    applies: ({ status }) => status === 'pending',
    run: (ticket) => moveTicket(ticket, 'failed'),
  },
  {
    label: 'Delete',
    question: (count) => `Delete ${counted(count, 'ticket')}?`,
    danger: true,
    applies: () => true,
    run: ({ id }) => unwrap(api.DELETE('/api/tickets/{id}', { params: { path: { id } } })),
  },
];

export function withPriority(priority: Schema<'Priority'>): BulkAction {
  return {
    label: `Priority ${priority}`,
    question: (count) => `Give ${counted(count, 'ticket')} the priority ${priority}?`,
    applies: (ticket) => ticket.priority !== priority,
    run: (ticket) => change(ticket, { priority }),
  };
}

export function withLabel(label: string): BulkAction {
  return {
    label: `Add the label ${label}`,
    question: (count) => `Add the label ${label} to ${counted(count, 'ticket')}?`,
    applies: ({ labels }) => !labels.includes(label),
    run: (ticket) => addLabel(ticket, label),
  };
}

/** A ticket that an action failed for. */
export interface Failed {
  ticket: Summary;
  message: string;
}

/** Runs an action for each ticket. One failure does not stop the others. */
export async function runForAll(action: BulkAction, tickets: readonly Summary[]): Promise<Failed[]> {
  const left = [...tickets];
  const failed: Failed[] = [];
  const work = async (): Promise<void> => {
    for (let ticket = left.shift(); ticket; ticket = left.shift()) {
      try {
        await action.run(ticket);
      } catch (error) {
        failed.push({ ticket, message: messageOf(error) });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return failed;
}
