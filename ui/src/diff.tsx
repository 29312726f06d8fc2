// Two texts beside one another, line by line; two JSON documents laid out alike, with every value as it is written.
import { Box, Text } from "@chakra-ui/react";
import { diffLines } from "diff";
import { useMemo } from "react";
import { texts } from "./texts";

const MOST = 200_000;
// Characters of each that are compared line by line.

const DEEPEST = 1_000;
// Levels that are laid out: each line of a level begins with two more blanks.

// The end of the string, number, word or sign that begins here. By hand: one expression for a string of megabytes ends in an error.
const endOf = (text: string, start: number): number => {
  let end = start + 1;
  if (text[start] === '"') {
    while (text[end] !== '"') end += text[end] === "\\" ? 2 : 1;
    return end + 1;
  }
  if ("{}[],:".includes(text[start]!)) return end;
  while (end < text.length && !/[\s{}[\],:]/.test(text[end]!)) end += 1;
  return end;
};

// A JSON document in lines. Numbers, escapes and repeated names stay as they are: what a program reads of them may be the same
// where the contents differ. Null: it is no JSON, or too deep.
const laidOut = (text: string): string | null => {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const parts: string[] = [];
  let depth = 0;
  let before = "";
  for (let at = 0; at < text.length; ) {
    if (/\s/.test(text[at]!)) {
      at += 1;
      continue;
    }
    const end = endOf(text, at);
    const token = text.slice(at, end);
    at = end;
    const opened = before === "{" || before === "[";
    const closes = token === "}" || token === "]";
    if (closes) depth -= 1;
    if (opened ? !closes : closes || before === ",") parts.push(`\n${"  ".repeat(depth)}`);
    parts.push(token === ":" ? ": " : token);
    if (token === "{" || token === "[") depth += 1;
    if (depth > DEEPEST) return null;
    before = token;
  }
  return parts.join("");
};

// As documents where that shows a difference, else as they are written.
const compared = (before: string, after: string): [string, string] => {
  const [old, now] = [laidOut(before), laidOut(after)];
  return old === null || now === null || old === now ? [before, after] : [old, now];
};
const lines = (text: string): string[] => text.replace(/\n$/, "").split("\n");

type Line = { left: string | null; right: string | null; changed: boolean };
const beside = (before: string, after: string): { found: Line[]; cut: boolean } => {
  const [old, now] = compared(before, after);
  const found: Line[] = [];
  let taken: string[] = [];
  const flush = () => {
    found.push(...taken.map((left) => ({ left, right: null, changed: true })));
    taken = [];
  };
  for (const part of diffLines(old.slice(0, MOST), now.slice(0, MOST))) {
    if (part.removed) {
      taken.push(...lines(part.value));
    } else if (part.added) {
      for (const right of lines(part.value)) found.push({ left: taken.shift() ?? null, right, changed: true });
      flush();
    } else {
      flush();
      found.push(...lines(part.value).map((line) => ({ left: line, right: line, changed: false })));
    }
  }
  flush();
  return { found, cut: old.length > MOST || now.length > MOST };
};

const Side = ({ text, changed, of }: { text: string | null; changed: boolean; of: "before" | "after" }) => (
  <Box
    as="td"
    width="50%"
    px={2}
    verticalAlign="top"
    whiteSpace="pre-wrap"
    wordBreak="break-word"
    bg={changed && text !== null ? (of === "before" ? "red.subtle" : "green.subtle") : undefined}
    color={changed && text !== null ? (of === "before" ? "red.fg" : "green.fg") : undefined}
  >
    {text === null ? "" : of === "before" ? (changed ? <del>{text}</del> : text) : changed ? <ins>{text}</ins> : text}
  </Box>
);

export const Diff = ({ before, after }: { before: string; after: string }) => {
  const { found, cut } = useMemo(() => beside(before, after), [before, after]);
  if (before === after) return <Text data-testid="diff">{texts.deadLetters.same}</Text>;
  return (
    <>
      {cut ? <Text data-testid="cut">{texts.deadLetters.cut(MOST)}</Text> : null}
      <Box overflowX="auto" maxH="24rem" overflowY="auto" borderWidth={1} borderRadius="md" tabIndex={0} role="region" aria-label={`${texts.deadLetters.before}, ${texts.deadLetters.after}`}>
        <Box as="table" width="full" fontFamily="mono" fontSize="xs" data-testid="diff">
          <thead>
            <tr>
              <Box as="th" textAlign="start" px={2}>{texts.deadLetters.before}</Box>
              <Box as="th" textAlign="start" px={2}>{texts.deadLetters.after}</Box>
            </tr>
          </thead>
          <tbody>
            {found.map((line, number) => (
              <tr key={number}>
                <Side text={line.left} changed={line.changed} of="before" />
                <Side text={line.right} changed={line.changed} of="after" />
              </tr>
            ))}
          </tbody>
        </Box>
      </Box>
    </>
  );
};
