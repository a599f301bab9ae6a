interface Question {
  title: string;
  text: string;
  /** The label of the button that goes on. */
  action: string;
  danger: boolean;
  answer: (yes: boolean) => void;
}

export const pending: { question: Question | null } = $state({ question: null });

/** Asks before something that cannot be undone. */
export function confirm(
  title: string,
  { text = '', action = 'Go on', danger = false }: { text?: string; action?: string; danger?: boolean } = {},
): Promise<boolean> {
  pending.question?.answer(false);
  return new Promise((resolve) => {
    const answer = (yes: boolean): void => {
      pending.question = null;
      resolve(yes);
    };
    pending.question = { title, text, action, danger, answer };
  });
}
