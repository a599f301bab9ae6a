import { api, unwrap, type Schema } from '../../api/client';

/**
 * Moves a ticket to a state. Only a ticket that is shown in progress is taken from its holder: one that an agent has claimed since it
 * was read has another version.
 */
export function moveTicket({ id, status, version }: Pick<Schema<'Ticket'>, 'id' | 'status' | 'version'>, to: 'pending' | 'failed'): Promise<unknown> {
  const headers = status === 'in_progress' ? {} : { 'If-Match': `"${version}"` };
  return unwrap(api.PATCH('/api/tickets/{id}', { params: { path: { id } }, headers, body: { status: to } }));
}
