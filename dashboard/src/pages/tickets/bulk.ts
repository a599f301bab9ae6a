import { api, unwrap, type Schema } from '../../api/client';
import { messageOf } from '../../api/error';
import type { operations } from '../../api/schema';
import { counted } from '../../components/counted';

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

export const actions: readonly BulkAction[] = [
  {
    label: 'Try again',
    question: (count) => `Make ${counted(count, 'failed ticket')} pending again?`,
    applies: ({ status }) => status === 'failed',
    run: (ticket) => change(ticket, { status: 'pending' }),
  },
  {
    label: 'Take back',
    question: (count) => `Take ${counted(count, 'ticket')} from ${count === 1 ? 'its holder' : 'their holders'}?`,
    danger: true,
    applies: ({ status }) => status === 'in_progress',
    run: (ticket) => change(ticket, { status: 'pending' }),
  },
  {
    label: 'Mark as failed',
    question: (count) => `Mark ${counted(count, 'pending ticket')} as failed?`,
    danger: true,
    applies: ({ status }) => status === 'pending',
    run: (ticket) => change(ticket, { status: 'failed' }),
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
    run: (ticket) => change(ticket, { labels: [...ticket.labels, label] }),
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
