import { api, ApiError, clientWithKey, readRefusal, unwrap, whenSessionEnds, type Schema } from '../api/client';
import { messageOf } from '../api/error';
import { isLocalhost, isSessionHost } from '../api/server-url';
import { closeEvents, openEvents } from '../live/events.svelte';
import { reopenShared } from '../live/shared';

export type Scope = Schema<'Scope'>;
type WhoAmI = Schema<'WhoAmI'>;

type State = 'unknown' | 'signed-out' | 'signed-in';

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8_000;
const LINK_REFUSED = 'The link was used before, or has expired. Log in with a key, or by another link.';

/** What a page that was opened with a link asks and shows. */
export interface LinkDialogs {
  /** Asks whether the link may replace the session of `who`. */
  replace: (who: WhoAmI) => Promise<boolean>;
  /** Shows why the link was refused, where the session goes on. */
  refused: (message: string) => void;
}

/** Who is logged in. The session itself is in a cookie that scripts cannot read. */
class Session {
  state = $state<State>('unknown');
  /** The key, its account and scopes; null until somebody is logged in. */
  who = $state.raw<WhoAmI | null>(null);
  /** Why the last session ended, in one sentence. */
  ended = $state('');
  /** Why it is not known yet who is logged in; empty until a try failed. */
  waiting = $state('');
  /** By it, the tabs of a browser tell each other that their session has changed. */
  readonly #tabs = new BroadcastChannel('skep-session');

  /** Finds out whether the browser has a session, and logs in by the link that the page was opened with. */
  async start(link: LinkDialogs): Promise<void> {
    whenSessionEnds((error) => this.#end(error));
    this.#tabs.onmessage = () => void this.#readPresent();
    const token = takeLinkToken();
    await this.#readPresent();
    if (token) await this.#useLink(token, link);
  }

  /**
   * Logs in with a key. Where its sessions exist at another host, the browser goes there, and the promise never resolves.
   *
   * @throws ApiError where the key is wrong, has expired or is not allowed from here
   */
  async signIn(key: string): Promise<void> {
    try {
      await this.#create({}, key);
    } catch (error) {
      if (!(error instanceof ApiError && error.code === 'session_host_required')) throw error;
      await goToSessionHost(key, error);
    }
  }

  async signOut(): Promise<void> {
    await unwrap(api.DELETE('/api/session', {}));
    this.ended = '';
    this.#leave();
    this.#tabs.postMessage('changed');
  }

  can(scope: Scope): boolean {
    return this.who?.scopes.includes(scope) ?? false;
  }

  /**
   * Any page can open a link of somebody else's key, so that a session is replaced only where the viewer agrees. At a session host
   * both are of the same key.
   */
  async #useLink(token: string, { replace, refused }: LinkDialogs): Promise<void> {
    if (this.who && !isSessionHost(location) && !(await replace(this.who))) return;
    try {
      await this.#create({ token });
    } catch (error) {
      const message = error instanceof ApiError && error.status === 401 ? LINK_REFUSED : messageOf(error);
      if (this.who) refused(message);
      else this.ended = message;
    }
  }

  /** Reads the session that the browser has, until the server answers. */
  async #readPresent(): Promise<void> {
    for (let retry = FIRST_RETRY_MS; ; retry = Math.min(retry * 2, LAST_RETRY_MS)) {
      try {
        await this.#read();
        break;
      } catch (error) {
        const comesBack = error instanceof ApiError && (error.status === 0 || error.status === 503);
        if (!comesBack) {
          // The end of a session that was there is handled where the refusal was read.
          if (this.state === 'unknown') this.#refuse(error);
          break;
        }
        this.waiting = messageOf(error);
      }
      await new Promise((resolve) => setTimeout(resolve, retry));
    }
    this.waiting = '';
  }

  #refuse(error: unknown): void {
    this.state = 'signed-out';
    this.ended = error instanceof ApiError && error.status === 401 ? '' : messageOf(error);
  }

  async #create(body: { token?: string }, key?: string): Promise<void> {
    const headers: Record<string, string> = { 'Content-Type': 'application/json' };
    if (key !== undefined) headers.Authorization = `Bearer ${key}`;
    const request: RequestInit = { method: 'POST', headers, body: JSON.stringify(body), credentials: 'same-origin' };
    const response = await fetch('/api/session', request).catch(() => Promise.reject(ApiError.noAnswer()));
    // A refusal is that of the key or the token; a session that is there goes on.
    if (!response.ok) throw await readRefusal(response);
    await this.#read();
    reopenShared();
    this.#tabs.postMessage('changed');
  }

  async #read(): Promise<void> {
    this.who = await unwrap(api.GET('/api/whoami'));
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
    closeEvents();
  }
}

/**
 * Goes to the host of the key's sessions, to the page that is shown now, by a link that logs in there.
 *
 * @throws `refusal`, by which the server asks for it, where this page is not of the browser's machine: a proxy has replaced `Host`,
 * and the link would lead to the wrong machine
 */
async function goToSessionHost(key: string, refusal: ApiError): Promise<never> {
  const { url } = await unwrap(clientWithKey(key).POST('/api/session/links'));
  const link = new URL(url);
  if (isSessionHost(link) && !isLocalhost(location)) throw refusal;
  link.pathname = location.pathname;
  link.search = location.search;
  location.assign(link);
  return new Promise<never>(() => {});
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
