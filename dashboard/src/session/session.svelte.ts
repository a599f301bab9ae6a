import { api, ApiError, unwrap, whenSessionEnds, type Schema } from '../api/client';
import { refusalOf } from '../api/client';
import { closeEvents, openEvents } from '../live/events.svelte';
import { reopenShared } from '../live/shared';

export type Scope = Schema<'Scope'>;
type WhoAmI = Schema<'WhoAmI'>;

type State = 'unknown' | 'signed-out' | 'signed-in';

/** Who is logged in. The session itself is in a cookie that scripts cannot read. */
class Session {
  state = $state<State>('unknown');
  /** The key, its account and scopes; null until somebody is logged in. */
  who = $state.raw<WhoAmI | null>(null);
  expiresAt = $state<string | null>(null);
  /** Why the last session ended, in one sentence. */
  ended = $state('');

  /** Finds out whether the browser has a session, or logs in by the link that the page was opened with. */
  async start(): Promise<void> {
    whenSessionEnds((error) => this.#end(error));
    const token = takeLinkToken();
    try {
      if (token) await this.#create({ token });
      else await this.#read();
    } catch (error) {
      this.state = 'signed-out';
      if (!(error instanceof ApiError && error.status === 401)) {
        this.ended = error instanceof Error ? error.message : String(error);
      } else {
        this.ended = token ? 'The link was used before, or has expired. Log in with a key, or by another link.' : '';
      }
    }
  }

  /**
   * @throws ApiError where the key is wrong, has expired or is not allowed from here
   */
  async signIn(key: string): Promise<void> {
    await this.#create({}, key);
  }

  async signOut(): Promise<void> {
    await unwrap(api.DELETE('/api/session', {}));
    this.ended = '';
    this.#leave();
  }

  can(scope: Scope): boolean {
    return this.who?.scopes.includes(scope) ?? false;
  }

  async #create(body: { token?: string }, key?: string): Promise<void> {
    const headers: Record<string, string> = { 'Content-Type': 'application/json' };
    if (key !== undefined) headers.Authorization = `Bearer ${key}`;
    const request: RequestInit = { method: 'POST', headers, body: JSON.stringify(body), credentials: 'same-origin' };
    const response = await fetch('/api/session', request).catch(() => Promise.reject(ApiError.noAnswer()));
    if (!response.ok) throw await refusalOf(response);
    await this.#read();
    reopenShared();
  }

  async #read(): Promise<void> {
    const [session, who] = await Promise.all([unwrap(api.GET('/api/session')), unwrap(api.GET('/api/whoami'))]);
    this.expiresAt = session.expires_at ?? null;
    this.who = who;
    this.state = 'signed-in';
    this.ended = '';
    openEvents();
  }

  #end(error: ApiError): void {
    if (this.state !== 'signed-in') return;
    this.ended = `The session has ended: ${error.message}. Log in again to go on.`;
    this.#leave();
  }

  #leave(): void {
    this.state = 'signed-out';
    this.who = null;
    this.expiresAt = null;
    closeEvents();
  }
}

/** Takes the token out of `#login=TOKEN`, so that it stays neither in the address nor in the history. */
function takeLinkToken(): string | null {
  const token = /^#login=([0-9a-f]+)$/.exec(location.hash)?.[1] ?? null;
  if (location.hash.startsWith('#login=')) history.replaceState(null, '', location.pathname + location.search);
  return token;
}

export const session = new Session();

/** Whether the key that is logged in has the scope. */
export function can(scope: Scope): boolean {
  return session.can(scope);
}
