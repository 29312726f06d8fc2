// Two texts beside one another, line by line; two JSON documents as they are read, whatever their line breaks.
import { Box, Text } from "@chakra-ui/react";
import { diffLines } from "diff";
import { useMemo } from "react";
import { texts } from "./texts";

const MOST = 200_000;
// Characters of both that are compared line by line; of more only the beginning is shown.

const laidOut = (before: string, after: string): [string, string] => {
  try {
    return [JSON.stringify(JSON.parse(before), null, 2), JSON.stringify(JSON.parse(after), null, 2)];
  } catch {
    return [before, after];
  }
};
const lines = (text: string): string[] => text.replace(/\n$/, "").split("\n");

type Line = { left: string | null; right: string | null; changed: boolean };
const beside = (before: string, after: string): Line[] => {
  const [old, now] = laidOut(before, after);
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
  return found;
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
  const found = useMemo(() => beside(before, after), [before, after]);
  if (!found.some((line) => line.changed)) return <Text data-testid="diff">{texts.deadLetters.same}</Text>;
  return (
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
  );
};
