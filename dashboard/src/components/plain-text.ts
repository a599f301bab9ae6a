/** The sequences by which programs colour text and move the cursor (ECMA-48), and other control characters. */
const CONTROLS = /\u001b\[[0-?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)|\u001b[@-Z\\-_]|[\u0000-\u0008\u000b-\u001f\u007f]/g;

/** A program's output as plain text. */
export function withoutControls(text: string): string {
  return text.replaceAll('\r\n', '\n').replace(CONTROLS, '');
}
