import type { Route } from '../../app/routes';

export const routes: Route[] = [
  { path: '/ui/keys', title: 'Keys', load: () => import('./KeysPage.svelte'), scope: 'admin' },
  { path: '/ui/accounts', title: 'Accounts', load: () => import('./AccountsPage.svelte'), scope: 'server:admin' },
  { path: '/ui/accounts/:id', title: 'Account', load: () => import('./AccountPage.svelte'), scope: 'server:admin' },
  { path: '/ui/audit', title: 'Audit', load: () => import('./AuditPage.svelte'), scope: 'admin' },
  { path: '/ui/waitlist', title: 'Waitlist', load: () => import('./WaitlistPage.svelte'), scope: 'server:admin' },
  { path: '/ui/webhooks', title: 'Webhooks', load: () => import('./WebhooksPage.svelte'), scope: 'admin' },
  { path: '/ui/webhooks/:id', title: 'Webhook', load: () => import('./WebhookPage.svelte'), scope: 'admin' },
];
