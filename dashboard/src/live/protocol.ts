/** What a tab and the shared worker say to each other. */

/** `live`: the stream is open. `waiting`: it broke, and is opened again. `refused`: the server does not serve it. */
export type StreamState = 'waiting' | 'live' | 'refused';

/** The sender holds this lock for as long as it exists. */
interface Holds {
  kind: 'holds';
  lock: string;
}

export type ToWorker =
  | Holds
  | { kind: 'follow'; path: string }
  | { kind: 'leave'; path: string }
  /** The session changed: all streams are opened again. */
  | { kind: 'reopen' }
  /** The tab goes away. */
  | { kind: 'close' };

export type StreamMessage =
  | { kind: 'state'; path: string; state: StreamState; status: number; code: string; message: string }
  | { kind: 'event'; path: string; type: string; data: string };

export type FromWorker = Holds | StreamMessage;
