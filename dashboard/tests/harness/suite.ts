import { after, afterEach, before } from 'node:test';

import type { Browser, BrowserContextOptions } from 'playwright-core';

import { launch, Profile } from './browser.ts';
import { Proxy } from './proxy.ts';
import { Skep } from './server.ts';

/** A server and a browser for the tests of a file. */
export class Suite {
  #skep: Skep | null = null;
  #browser: Browser | null = null;
  readonly #profiles: Profile[] = [];

  /**
   * Registers what starts the server before the first test of the file, and stops it after the last one. Options that are promises are
   * awaited before the start.
   */
  constructor(...options: (string | Promise<string>)[]) {
    before(async () => {
      this.#skep = await Skep.start(...(await Promise.all(options)));
      this.#browser = await launch();
    });
    afterEach(async () => {
      for (const profile of this.#profiles.splice(0)) await profile.close();
    });
    after(async () => {
      await this.#browser?.close();
      await this.#skep?.stop();
    });
  }

  get skep(): Skep {
    if (!this.#skep) throw new Error('the server is not started before the first test');
    return this.#skep;
  }

  /**
   * A profile of the browser that ends with the test, and fails it where a page did what none may do. Its paths are those of the
   * host at which sessions of `key` exist.
   */
  async profile(options: BrowserContextOptions = {}, key = this.skep.key): Promise<Profile> {
    if (!this.#browser) throw new Error('the browser is not started before the first test');
    const origin = key === this.skep.key ? this.skep.dashboard : await this.skep.dashboardOf(key);
    const profile = await Profile.open(this.#browser, origin, options);
    this.#profiles.push(profile);
    return profile;
  }

  /** A proxy in front of the server, at the host of the administrator's sessions. */
  async proxy(): Promise<Proxy> {
    return Proxy.start(() => this.skep.url, new URL(this.skep.dashboard).hostname);
  }

  /** Another key of the administrator's account. */
  async newKey(name: string, scopes: readonly string[] = ['admin', 'tickets:read']): Promise<{ id: string; key: string }> {
    return this.skep.call('POST', '/api/keys', { name, scopes });
  }
}
