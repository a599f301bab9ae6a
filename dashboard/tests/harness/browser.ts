import assert from 'node:assert/strict';

import { chromium, type Browser, type BrowserContext, type BrowserContextOptions, type Page } from 'playwright-core';

const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';
/** Waiting for a state of the page, on a machine that emulates VMs meanwhile. */
const STATE_MS = 60_000;

/** Chromium may crash while it starts, before it has seen a page. */
const LAUNCHES = 3;

export async function launch(): Promise<Browser> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await chromium.launch({ executablePath: CHROMIUM, args: ['--disable-dev-shm-usage'] });
    } catch (error) {
      if (attempt === LAUNCHES) throw error;
      console.error(`Chromium did not start, attempt ${attempt} of ${LAUNCHES}: ${String(error).slice(0, 4_000)}`);
    }
  }
}

/** A refusal that a test causes on purpose, and that the browser's console reports. */
export interface Expected {
  status: number;
  /** The path of the request, without its query. */
  path: RegExp;
}

/** Who is logged in is asked of the server, which refuses where nobody is. */
const NOBODY: Expected = { status: 401, path: /^\/api\/(session|whoami)$/ };
/** The overview asks for the health, which is refused where a write to the disk takes longer than two seconds. */
const SLOW_DISK: Expected = { status: 503, path: /^\/api\/health$/ };

/**
 * A profile of a browser whose pages fail the test on a violation of the Content-Security-Policy, an error in the console,
 * an exception that nobody caught, and a request to another host.
 */
export class Profile {
  readonly context: BrowserContext;
  readonly #origins: Set<string>;
  readonly #faults: string[] = [];
  readonly #expected: Expected[] = [NOBODY, SLOW_DISK];
  #isAway = false;

  private constructor(context: BrowserContext, origin: string) {
    this.context = context;
    this.#origins = new Set([origin]);
  }

  /** A profile for the pages of `origin`, unless the options name another one. */
  static async open(browser: Browser, origin: string, options: BrowserContextOptions = {}): Promise<Profile> {
    const context = await browser.newContext({ baseURL: origin, reducedMotion: 'reduce', ...options });
    context.setDefaultTimeout(STATE_MS);
    const profile = new Profile(context, options.baseURL ?? origin);
    await profile.#watch();
    return profile;
  }

  /** Allows a refusal that the test causes. */
  expect(...expected: Expected[]): void {
    this.#expected.push(...expected);
  }

  /** Allows requests to another address of the server. */
  allowOrigin(url: string): void {
    this.#origins.add(new URL(url).origin);
  }

  /** Allows failed connections while the server is away. */
  async whileAway<T>(work: () => Promise<T>): Promise<T> {
    this.#isAway = true;
    try {
      return await work();
    } finally {
      this.#isAway = false;
    }
  }

  /** What was found so far. Reading it takes it. */
  takeFaults(): string[] {
    return this.#faults.splice(0);
  }

  /** Closes the pages, and fails the test if one of them did what none may do. */
  async close(): Promise<void> {
    await this.context.close();
    assert.deepEqual(this.#faults, []);
  }

  async newPage(path = '/ui/'): Promise<Page> {
    const page = await this.context.newPage();
    await page.goto(path);
    return page;
  }

  /** A page that is logged in with `key` by the form. */
  async loggedIn(key: string, path = '/ui/'): Promise<Page> {
    const page = await this.newPage(path);
    await logIn(page, key);
    return page;
  }

  async #watch(): Promise<void> {
    const found = (fault: string): void => void this.#faults.push(fault);
    await this.context.exposeBinding('reportViolation', (_, text: string) => found(`policy: ${text}`));
    await this.context.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI, sourceFile }) => {
        const report = (globalThis as { reportViolation?: (text: string) => void }).reportViolation;
        report?.(`${violatedDirective} refused ${blockedURI} at ${sourceFile}`);
      });
    });
    this.context.on('console', (message) => {
      if (message.type() !== 'error') return;
      if (this.#allows(message.text(), message.location().url)) return;
      found(`console: ${message.text()} (${message.location().url})`);
    });
    this.context.on('weberror', (error) => found(`exception: ${error.error().stack ?? error.error().message}`));
    this.context.on('request', (request) => {
      const url = new URL(request.url());
      if (['http:', 'https:', 'ws:', 'wss:'].includes(url.protocol) && !this.#origins.has(url.origin)) {
        found(`request to another host: ${request.url()}`);
      }
    });
  }

  #allows(text: string, address: string): boolean {
    if (!text.startsWith('Failed to load resource:')) return false;
    if (this.#isAway && /net::ERR_(CONNECTION_|INCOMPLETE_CHUNKED|EMPTY_RESPONSE)/.test(text)) return true;
    const { pathname } = new URL(address, 'http://unknown');
    return this.#expected.some(({ status, path }) => text.includes(`status of ${status}`) && path.test(pathname));
  }
}

/** Logs in by the form. */
export async function logIn(page: Page, key: string): Promise<void> {
  await page.getByLabel('Key', { exact: true }).fill(key);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByRole('navigation', { name: 'Pages', includeHidden: true }).waitFor({ state: 'attached' });
}

/** Waits until the page's stream of events is open. */
export async function live(page: Page): Promise<void> {
  await page.getByRole('status').filter({ hasText: /^Live$/ }).waitFor();
}
