import { defaultHighlightStyle, HighlightStyle, LanguageDescription, syntaxHighlighting } from '@codemirror/language';
import { languages } from '@codemirror/language-data';
import { Compartment, EditorState } from '@codemirror/state';
import { drawSelection, EditorView, highlightSpecialChars, lineNumbers } from '@codemirror/view';
import { tags } from '@lezer/highlight';

const darkHighlight = HighlightStyle.define(
  [
    { tag: [tags.keyword, tags.operatorKeyword], color: '#d8a1f0' },
    { tag: [tags.string, tags.special(tags.string)], color: '#9ad08a' },
    { tag: [tags.comment], color: '#aca595', fontStyle: 'italic' },
    { tag: [tags.number, tags.bool, tags.null], color: '#f3a64b' },
    { tag: [tags.typeName, tags.className, tags.namespace], color: '#85b8f2' },
    { tag: [tags.propertyName, tags.attributeName], color: '#8ad0d0' },
    { tag: [tags.heading], fontWeight: 'bold' },
    { tag: [tags.invalid], color: '#ff8a80' },
  ],
  { themeType: 'dark' },
);

const look = EditorView.theme({
  '&': { backgroundColor: 'var(--surface-raised)', color: 'var(--text)', fontSize: 'var(--size-small)', maxHeight: '70vh' },
  '.cm-scroller': { fontFamily: 'var(--font-mono)' },
  '.cm-gutters': { backgroundColor: 'var(--surface-sunken)', color: 'var(--text-muted)', border: 'none' },
});

/** The nonce by which the page's policy allows the style elements of the viewer. */
function nonce(): string {
  return document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce ?? '';
}

/** Shows `text` for reading, with the highlighting of the language that `filename` names. */
export async function showCode(parent: HTMLElement, text: string, filename: string, dark: boolean): Promise<EditorView> {
  const language = new Compartment();
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        EditorView.cspNonce.of(nonce()),
        EditorState.readOnly.of(true),
        EditorView.contentAttributes.of({ 'aria-label': `Content of ${filename}`, tabindex: '0' }),
        EditorView.darkTheme.of(dark),
        lineNumbers(),
        highlightSpecialChars(),
        drawSelection(),
        look,
        syntaxHighlighting(dark ? darkHighlight : defaultHighlightStyle),
        language.of([]),
      ],
    }),
  });
  const described = LanguageDescription.matchFilename(languages, filename);
  if (described) view.dispatch({ effects: language.reconfigure(await described.load()) });
  return view;
}
