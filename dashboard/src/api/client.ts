import createClient, { type Middleware } from 'openapi-fetch';

import { ApiError } from './error';
import type { components, paths } from './schema';

export { ApiError } from './error';

/** A schema of the API's document by its name. */
export type Schema<Name extends keyof components['schemas']> = components['schemas'][Name];

/** The typed client. Requests carry the cookie of the session. */
export const api = createClient<paths>({ baseUrl: '', credentials: 'same-origin' });

type SessionEnd = (error: ApiError) => void;
let onSessionEnd: SessionEnd = () => {};

/** Registers what is called when an answer says that there is no session any more. */
export function whenSessionEnds(handler: SessionEnd): void {
  onSessionEnd = handler;
}

/** Reports the end of the session if `error` says so: it has ended, or its key has expired or was revoked. */
export function noticeSessionEnd(error: ApiError): void {
  if (error.status === 401 || error.code === 'token_expired') onSessionEnd(error);
}

/** Reads the refusal of `response`. */
export async function readRefusal(response: Response): Promise<ApiError> {
  const body: unknown = await response
    .clone()
    .json()
    .catch(() => null);
  return ApiError.of(response, body);
}

/** Reads the refusal of `response`, and reports the end of the session. */
export async function refusalOf(response: Response): Promise<ApiError> {
  const error = await readRefusal(response);
  noticeSessionEnd(error);
  return error;
}

function refusals(read: (response: Response) => Promise<ApiError>): Middleware {
  return {
    async onResponse({ response }) {
      if (!response.ok) throw await read(response);
    },
    onError({ error }) {
      if (error instanceof ApiError) return error;
      return error instanceof DOMException && error.name === 'AbortError' ? error : ApiError.noAnswer();
    },
  };
}
api.use(refusals(refusalOf));

/** A client that sends `key` in place of the session's cookie, so that a refusal says nothing about the session. */
export function clientWithKey(key: string): typeof api {
  const headers = { Authorization: `Bearer ${key}` };
  const client = createClient<paths>({ baseUrl: '', credentials: 'omit', headers });
  client.use(refusals(readRefusal));
  return client;
}

/**
 * The answer of a call of {@link api}.
 *
 * @throws ApiError for a refusal, and where there was no answer
 */
export async function unwrap<T>(call: Promise<{ data?: T }>): Promise<T> {
  // A refusal was thrown by the middleware; an answer without content has no data.
  return (await call).data as T;
}
