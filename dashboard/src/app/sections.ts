import type { Scope } from '../session/session.svelte';

export interface Section {
  label: string;
  href: string;
  scope?: Scope;
}

/** The entries of the navigation, in groups. */
export const sections: readonly { label: string; entries: readonly Section[] }[] = [
  { label: '', entries: [{ label: 'Overview', href: '/ui/' }] },
  {
    label: 'Swarm',
    entries: [
      { label: 'VMs', href: '/ui/swarm', scope: 'swarm:read' },
      { label: 'Templates', href: '/ui/templates', scope: 'swarm:read' },
    ],
  },
  {
    label: 'Tickets',
    entries: [
      { label: 'List', href: '/ui/tickets', scope: 'tickets:read' },
      { label: 'Board', href: '/ui/tickets/board', scope: 'tickets:read' },
      { label: 'Graph', href: '/ui/tickets/graph', scope: 'tickets:read' },
    ],
  },
  {
    label: 'Access',
    entries: [
      { label: 'Keys', href: '/ui/keys', scope: 'admin' },
      { label: 'Accounts', href: '/ui/accounts', scope: 'server:admin' },
      { label: 'Webhooks', href: '/ui/webhooks', scope: 'admin' },
      { label: 'Audit', href: '/ui/audit', scope: 'admin' },
      { label: 'Waitlist', href: '/ui/waitlist', scope: 'server:admin' },
    ],
  },
];
