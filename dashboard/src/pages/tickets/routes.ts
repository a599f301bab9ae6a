import type { Route } from '../../app/routes';

export const routes: Route[] = [
  { path: '/ui/tickets', title: 'Tickets', scope: 'tickets:read', load: () => import('./TicketsPage.svelte') },
  { path: '/ui/tickets/new', title: 'New ticket', scope: 'tickets:write', load: () => import('./NewTicketPage.svelte') },
  { path: '/ui/tickets/batch', title: 'Tickets from a list', scope: 'tickets:write', load: () => import('./BatchPage.svelte') },
  { path: '/ui/tickets/board', title: 'Board', scope: 'tickets:read', load: () => import('./BoardPage.svelte') },
  { path: '/ui/tickets/graph', title: 'Graph', scope: 'tickets:read', load: () => import('./GraphPage.svelte') },
  { path: '/ui/tickets/:id', title: 'Ticket', scope: 'tickets:read', load: () => import('./TicketPage.svelte') },
];
