import type { Page } from 'playwright-core';

import type { Skep } from './server.ts';

/** A page of the dashboard, and what it shows when it has its data. */
export interface Shown {
  name: string;
  path: string;
}

/** All pages, for a server that {@link populate} filled. */
export function pagesOf({ ticket, account, webhook, pid }: Content): Shown[] {
  const pages = [
    { name: 'overview', path: '/ui/' },
    { name: 'vms', path: '/ui/swarm' },
    { name: 'templates', path: '/ui/templates' },
    { name: 'tickets', path: '/ui/tickets' },
    { name: 'board', path: '/ui/tickets/board' },
    { name: 'graph', path: `/ui/tickets/graph?related_to=${ticket}` },
    { name: 'new-ticket', path: '/ui/tickets/new' },
    { name: 'batch', path: '/ui/tickets/batch' },
    { name: 'ticket', path: `/ui/tickets/${ticket}` },
    { name: 'keys', path: '/ui/keys' },
    { name: 'accounts', path: '/ui/accounts' },
    { name: 'account', path: `/ui/accounts/${account}` },
    { name: 'webhooks', path: '/ui/webhooks' },
    { name: 'webhook', path: `/ui/webhooks/${webhook}` },
    { name: 'audit', path: '/ui/audit' },
    { name: 'waitlist', path: '/ui/waitlist' },
  ];
  const tabs = pid === null ? [] : ['command', 'files', 'git', 'figures', 'console', 'egress'];
  pages.push(...tabs.map((tab) => ({ name: `vm-${tab}`, path: `/ui/swarm/${pid}?tab=${tab}` })));
  return pages;
}

export interface Content {
  ticket: string;
  key: string;
  account: string;
  webhook: string;
  /** The process id of a VM; null where none was booted. */
  pid: number | null;
}

/** What a server needs for {@link populate} more than once: nothing answers at the address of its webhook. */
export const FOR_CONTENT = ['--webhook-allow', '127.0.0.1/32', '--waitlist-limit', '1000/s'] as const;

/** Gives a server something of each kind to show; `text` stands wherever a caller may write one. */
export async function populate(skep: Skep, text: string, pid: number | null = null): Promise<Content> {
  const line = text.slice(0, 90);
  const { account } = await skep.call('GET', '/api/whoami');
  const key = await skep.call('POST', '/api/keys', { name: line, scopes: ['tickets:read'] });
  const first = await skep.call('POST', '/api/tickets', { title: line, description: text, labels: ['hostile'] });
  const dependencies = [first.id];
  await skep.call('POST', '/api/tickets', { title: `after ${line}`, description: text, dependencies });
  await skep.call('POST', '/api/tickets/claim', { assignee: line });
  await skep.call('PATCH', `/api/tickets/${first.id}`, { status: 'failed', result: { error: text } });
  const webhook = await skep.call('POST', '/api/webhooks', { url: 'http://127.0.0.1:9/hook', description: line });
  await skep.call('POST', '/api/waitlist', { email: 'someone@mail.example.org', name: line, company: line, use_case: text.slice(0, 1_900) });
  return { ticket: first.id, key: key.id, account: account.id, webhook: webhook.id, pid };
}

/** Opens a page and waits until it shows its data: no part of it is loading. */
export async function open(page: Page, path: string): Promise<void> {
  await page.goto(path);
  await page.getByRole('main').getByRole('heading', { level: 1 }).waitFor();
  await page.waitForFunction(() => !document.querySelector('main .loading'));
  if (await page.getByText('There is no such page').count()) throw new Error(`${path} belongs to no page`);
}

/** Looks at each page, and returns what `look` found, a line each with the name of the page. */
export async function findings(page: Page, pages: readonly Shown[], look: () => Promise<string[]>): Promise<string[]> {
  const found: string[] = [];
  for (const { name, path } of pages) {
    try {
      await open(page, path);
      found.push(...(await look()).map((text) => `${name}: ${text}`));
    } catch (error) {
      found.push(`${name}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
  return found;
}
