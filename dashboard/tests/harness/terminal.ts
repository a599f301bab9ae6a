import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';

import { eventually } from './wait.ts';

/** Runs its arguments on a terminal of its own, and passes on what is typed and what is shown. */
const ON_A_TERMINAL = `
import os, pty, sys
status = pty.spawn(sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(status))`;

/** A program on a terminal, as somebody has it who starts it by hand. */
export class Terminal {
  shown = '';
  readonly #child: ChildProcess;

  constructor(command: readonly string[], env: NodeJS.ProcessEnv) {
    this.#child = spawn('python3', ['-c', ON_A_TERMINAL, ...command], { env, stdio: ['pipe', 'pipe', 'inherit'], detached: true });
    this.#child.stdout?.setEncoding('utf8').on('data', (text: string) => (this.shown += text));
  }

  /** Waits until the terminal shows `wanted`, at most for `limitMs`, and returns what it captured first. */
  async shows(wanted: RegExp, limitMs: number): Promise<string> {
    const probe = (): string | undefined => {
      if (this.#child.exitCode !== null) throw new Error(`the program ended with ${this.#child.exitCode}:\n${this.shown}`);
      return wanted.exec(this.shown)?.[1];
    };
    return eventually(`${wanted} on the terminal`, probe, limitMs);
  }

  /** Presses Ctrl-C, waits for the end, and returns the status. */
  async interrupt(): Promise<number | null> {
    if (this.#child.exitCode === null) {
      const ended = once(this.#child, 'exit');
      this.#child.stdin?.write('\x03');
      await ended;
    }
    return this.#child.exitCode;
  }
}
