import type { Route } from '../../app/routes';

export const routes: Route[] = [
  { path: '/ui/keys', title: 'Keys', scope: 'admin', load: () => import('./KeysPage.svelte') },
  { path: '/ui/accounts', title: 'Accounts', scope: 'server:admin', load: () => import('./AccountsPage.svelte') },
  { path: '/ui/audit', title: 'Audit', scope: 'admin', load: () => import('./AuditPage.svelte') },
  { path: '/ui/waitlist', title: 'Waitlist', scope: 'server:admin', load: () => import('./WaitlistPage.svelte') },
];
