import { confirm } from '../../components/confirm.svelte';

/** Asks before a ticket is taken from its holder. */
export function confirmRelease(): Promise<boolean> {
  const text = 'Its holder loses it: what it still reports is refused. Another agent can claim the ticket.';
  return confirm('Take the ticket back?', { text, action: 'Take it back', danger: true });
}
