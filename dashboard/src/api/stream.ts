import { EventSourceParserStream, type EventSourceMessage } from 'eventsource-parser/stream';

import { refusalOf } from './client';
import { ApiError } from './error';

interface StreamOptions {
  onEvent: (event: EventSourceMessage) => void;
  /** Called once the answer has begun. */
  onOpen?: () => void;
  signal?: AbortSignal;
  method?: string;
  /** Sent as JSON. */
  body?: unknown;
  headers?: Record<string, string>;
}

/**
 * Reads an answer of server-sent events until its end, or until `signal` aborts.
 *
 * @throws ApiError for a refusal, and where the connection broke
 */
export async function streamEvents(path: string, options: StreamOptions): Promise<void> {
  const { onEvent, onOpen, signal, method = 'GET', body, headers = {} } = options;
  const sent = new Headers({ Accept: 'text/event-stream', ...headers });
  const request: RequestInit = { method, headers: sent, credentials: 'same-origin' };
  if (signal) request.signal = signal;
  if (body !== undefined) {
    sent.set('Content-Type', 'application/json');
    request.body = JSON.stringify(body);
  }
  try {
    const response = await fetch(path, request);
    if (!response.ok) throw await refusalOf(response);
    onOpen?.();
    if (!response.body) return;
    const events = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
    for (const reader = events.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      onEvent(value);
    }
  } catch (error) {
    if (signal?.aborted) return;
    throw error instanceof ApiError ? error : ApiError.noAnswer();
  }
}
