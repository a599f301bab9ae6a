/** A refusal of the API, or a request that had no answer. */
export class ApiError extends Error {
  constructor(
    /** The status of the answer; 0 where there was none. */
    readonly status: number,
    /** The code of the refusal, such as `unknown_vm`; `no_answer` where there was none. */
    readonly code: string,
    message: string,
    readonly requestId: string | null = null,
  ) {
    super(message);
    this.name = 'ApiError';
  }

  /** Reads the refusal of an answer that is not a success. `body` is its JSON, if it has one. */
  static of(response: Response, body: unknown): ApiError {
    const refusal = (typeof body === 'object' && body !== null ? body : {}) as { code?: unknown; message?: unknown };
    const code = typeof refusal.code === 'string' ? refusal.code : (response.headers.get('skep-error') ?? 'unknown');
    const message = typeof refusal.message === 'string' ? refusal.message : `The server answered ${response.status}.`;
    return new ApiError(response.status, code, message, response.headers.get('x-request-id'));
  }

  static noAnswer(): ApiError {
    return new ApiError(0, 'no_answer', 'The server does not answer. It may be restarting; the page tries again.');
  }
}

/** The message of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
