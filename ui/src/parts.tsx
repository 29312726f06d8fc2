// What the pages are made of.
import { Alert, Badge, Box, Button, Flex, Heading, Input, Link, Spinner, Stack, Table, Text, Textarea } from "@chakra-ui/react";
import { useEffect, useId, useState, type ReactNode } from "react";
import { Link as RouterLink, useSearchParams } from "react-router-dom";
import { address, ask, problemOf, useGet, type Action, type Got, type Problem } from "./api";
import { texts } from "./texts";

export const BASE = "/plugin/backstop";
export const filterOf = (values: Record<string, string | number | null>): string =>
  Object.entries(values)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name}:${/[\s"\\]/.test(String(value)) ? JSON.stringify(String(value)) : value}`)
    .join(" ");
export const pathOf = (page: string, query: Record<string, string> = {}): string => {
  const text = new URLSearchParams(query).toString();
  return `${BASE}${page}${text ? `?${text}` : ""}`;
};

export const To = ({ to, children, label, current }: { to: string; children: ReactNode; label?: string; current?: boolean }) => (
  <Link asChild colorPalette="brand" textDecoration="underline" color="fg" fontWeight={current ? "semibold" : undefined}>
    <RouterLink to={to} aria-label={label} aria-current={current ? "true" : undefined}>
      {children}
    </RouterLink>
  </Link>
);

// To a page that is not the console's.
export const Out = ({ href, children }: { href: string; children: ReactNode }) => (
  <Link href={href} colorPalette="brand" textDecoration="underline" color="fg">
    {children}
  </Link>
);

export const MessageLink = ({ topic, id }: { topic: string | null; id: string | null }) =>
  topic === null || id === null ? (
    <>{id ?? "?"}</>
  ) : (
    <To to={pathOf("/messages", { topic, id })}>
      <Box as="span" wordBreak="break-all">
        {id}
      </Box>
    </To>
  );

const UNITS: [number, Intl.RelativeTimeFormatUnit][] = [
  [86400, "day"],
  [3600, "hour"],
  [60, "minute"],
  [1, "second"],
];
const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "narrow" });
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const ago = (date: Date): string => {
  const seconds = (date.getTime() - Date.now()) / 1000;
  const [size, unit] = UNITS.find(([one]) => Math.abs(seconds) >= one) ?? [1, "second" as const];
  return relative.format(Math.round(seconds / size), unit);
};

// How long ago, and the instant itself in the viewer's zone.
export const When = ({ at }: { at: string | null | undefined }) => {
  if (!at) return <>{texts.never}</>;
  const date = new Date(at);
  return (
    <time dateTime={at} title={absolute.format(date)}>
      {ago(date)}
      <Box as="span" color="fg.muted" fontSize="xs" display="block" whiteSpace="nowrap">
        {absolute.format(date)}
      </Box>
    </time>
  );
};

const INSTANT = /(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?: UTC|Z|[+-]\d\d:\d\d))/;

// A sentence of the API. Instants in it name their zone; they are shown in the viewer's.
export const Said = ({ children }: { children: string }) => (
  <>
    {children.split(INSTANT).map((part, number) => {
      const date = number % 2 === 1 ? new Date(part.replace(" UTC", "Z").replace(" ", "T")) : null;
      return date === null || Number.isNaN(date.getTime()) ? (
        part
      ) : (
        <time key={number} dateTime={date.toISOString()} title={part}>{`${absolute.format(date)} (${ago(date)})`}</time>
      );
    })}
  </>
);

export const duration = (seconds: number | null | undefined): string => {
  if (seconds === null || seconds === undefined) return "–";
  const [size, unit] = UNITS.find(([one]) => seconds >= one) ?? [1, "second"];
  return `${Math.round((seconds / size) * 10) / 10} ${unit === "minute" ? "min" : String(unit)[0]}`;
};

const COLOURS: Record<string, string> = {
  LOST: "red",
  UNSENT: "red",
  EXHAUSTED: "red",
  critical: "red",
  failed: "red",
  bad: "red",
  stuck: "red",
  overdue: "red",
  stopped: "red",
  lost: "red",
  STALLED: "orange",
  UNKNOWN: "orange",
  DEAD_LETTERED: "orange",
  PARKED: "orange",
  warning: "orange",
  incomplete: "orange",
  unfinished: "orange",
  open: "orange",
  CONFIRMED: "green",
  done: "green",
  sent: "green",
  passed: "green",
  good: "green",
  nothing_lost: "green",
};
// `kind`: what it says in the API's words, where the text is another.
export const Tag = ({ children, kind = children }: { children: string; kind?: string }) => (
  <Badge colorPalette={COLOURS[kind] ?? "gray"} variant="subtle">
    {children}
  </Badge>
);

export const Title = ({ children, actions }: { children: ReactNode; actions?: ReactNode }) => (
  <Flex align="center" justify="space-between" gap={3} wrap="wrap" mb={3}>
    <Heading as="h1" size="xl">
      {children}
    </Heading>
    {actions}
  </Flex>
);
export const Section = ({ title, children }: { title: string; children: ReactNode }) => {
  const id = useId();
  return (
    <Box as="section" mb={6} aria-labelledby={id}>
      <Heading as="h2" size="md" mb={2} id={id}>
        {title}
      </Heading>
      {children}
    </Box>
  );
};

export const Empty = ({ children }: { children: ReactNode }) => (
  <Text color="fg.muted" py={3} data-testid="empty">
    {children}
  </Text>
);

export const Failure = ({ problem }: { problem: Problem }) => {
  const away = problem.status === 0;
  const kept = problem.unaffected || (away ? texts.failed.networkKept : "");
  const next = problem.next_step || (away ? texts.failed.networkNext : "");
  return (
    <Alert.Root status="error" my={3} data-testid="failure">
      <Alert.Content>
        <Alert.Title>{texts.failed.title}</Alert.Title>
        <Alert.Description>
          <Text>{problem.what || texts.failed.network}</Text>
          {kept ? <Text>{`${texts.failed.unaffected}: ${kept}`}</Text> : null}
          {next ? <Text>{`${texts.failed.next}: ${next}`}</Text> : null}
          {problem.status === 404 ? null : (
            <Link href={address("backstop/runs")} textDecoration="underline">
              {texts.failed.plain}
            </Link>
          )}
        </Alert.Description>
      </Alert.Content>
    </Alert.Root>
  );
};

// The data, or why there is none; what was shown before stays below a problem of the newest answer.
export const Loaded = <T,>({ got, children }: { got: Got<T>; children: (data: T) => ReactNode }) => (
  <>
    {got.problem ? <Failure problem={got.problem} /> : null}
    {got.data !== null ? children(got.data) : got.problem ? null : (
      <Flex py={6} role="status" gap={2} align="center">
        <Spinner size="sm" /> {texts.loading}
      </Flex>
    )}
  </>
);

// `wide`: a sentence, which on a narrow screen would be one word a line.
export type Column<T> = { name: string; cell: (row: T) => ReactNode; number?: boolean; wide?: boolean };
export const Rows = <T,>({ label, columns, rows, empty }: { label: string; columns: Column<T>[]; rows: T[]; empty: string }) =>
  rows.length === 0 ? (
    <Empty>{empty}</Empty>
  ) : (
    <Box overflowX="auto" tabIndex={0} role="region" aria-label={label}>
      <Table.Root size="sm" interactive>
        <Table.Header>
          <Table.Row>
            {columns.map((column) => (
              <Table.ColumnHeader key={column.name} textAlign={column.number ? "end" : "start"}>
                {column.name}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map((row, number) => (
            <Table.Row key={number}>
              {columns.map((column) => (
                <Table.Cell key={column.name} textAlign={column.number ? "end" : "start"} verticalAlign="top" minW={column.wide ? "12rem" : undefined}>
                  {column.cell(row)}
                </Table.Cell>
              ))}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );

export const More = ({ next, more }: { next: string | null; more: () => void }) =>
  next === null ? null : (
    <Button size="sm" variant="outline" onClick={more} mt={2}>
      {texts.more}
    </Button>
  );

// Filters as `qualifier:value`, with the qualifiers and values that the list knows.
export const FilterBar = ({ list }: { list: string }) => {
  const [search, setSearch] = useSearchParams();
  const given = search.get("filter") ?? "";
  const [text, setText] = useState(given);
  useEffect(() => setText(given), [given]);
  const known = useGet<Record<string, string[]>>(`/filters?list=${list}`);
  const id = useId();
  const use = (value: string) => {
    const changed = new URLSearchParams(search);
    if (value) changed.set("filter", value);
    else changed.delete("filter");
    setSearch(changed);
  };
  const before = text.replace(/\S*$/, "");
  const values = Object.entries(known.data ?? {}).flatMap(([name, options]) =>
    options.length === 0 ? [`${before}${name}:`] : options.map((option) => `${before}${filterOf({ [name]: option })}`),
  );
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        use(text.trim());
      }}
    >
      <Flex gap={2} mb={3} wrap="wrap">
        <Input
          flex="1 1 14rem"
          size="sm"
          aria-label={texts.filter}
          placeholder={`${texts.filter}: ${Object.keys(known.data ?? {}).join(":…  ")}:…`}
          list={id}
          value={text}
          onChange={(event) => setText(event.target.value)}
          data-testid="filter"
        />
        <datalist id={id}>
          {values.slice(0, 200).map((value) => (
            <option key={value} value={value} />
          ))}
        </datalist>
        <Button size="sm" type="submit">
          {texts.apply}
        </Button>
        <Button size="sm" variant="outline" onClick={() => use("")} disabled={!given}>
          {texts.clear}
        </Button>
      </Flex>
    </form>
  );
};

// A button that is grey with the reason where the visitor may not, and asks why before it does anything; `drop`: at once, without.
export const Do = ({
  label,
  action,
  after,
  drop = false,
}: {
  label: string;
  action: Action;
  after: (said: unknown) => void;
  drop?: boolean;
}) => {
  const [open, setOpen] = useState(false);
  const [why, setWhy] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const id = useId();
  const send = async () => {
    setBusy(true);
    setProblem(null);
    const conf = action.body["conf"] as Record<string, unknown> | undefined;
    const body = drop ? action.body : conf === undefined ? { ...action.body, why } : { ...action.body, conf: { ...conf, why } };
    try {
      after(await ask(address(action.href), action.method, body));
      setOpen(false);
      setWhy("");
    } catch (error) {
      setProblem(problemOf(error));
    } finally {
      setBusy(false);
    }
  };
  if (!action.allowed)
    return (
      <Box>
        <Button size="sm" disabled aria-describedby={id}>
          {label}
        </Button>
        <Text fontSize="xs" color="fg.muted" id={id}>{`${texts.greyed}: ${action.why_not ?? ""}`}</Text>
      </Box>
    );
  if (!open)
    return (
      <Box>
        <Button size="sm" disabled={busy} onClick={() => (drop ? void send() : setOpen(true))}>
          {label}
        </Button>
        {problem ? <Failure problem={problem} /> : null}
      </Box>
    );
  return (
    <Stack gap={2} borderWidth={1} borderRadius="md" p={3} maxW="30rem">
      <label htmlFor={id}>{`${label}: ${texts.why}`}</label>
      <Textarea id={id} value={why} onChange={(event) => setWhy(event.target.value)} autoFocus data-testid="why" />
      <Text fontSize="xs" color="fg.muted">
        {texts.whyHelp}
      </Text>
      {problem ? <Failure problem={problem} /> : null}
      <Flex gap={2}>
        <Button size="sm" onClick={() => void send()} disabled={!why.trim() || busy} data-testid="send">
          {texts.send}
        </Button>
        <Button size="sm" variant="outline" onClick={() => setOpen(false)}>
          {texts.cancel}
        </Button>
      </Flex>
    </Stack>
  );
};

export const Facts = ({ facts }: { facts: [string, ReactNode][] }) => (
  <Box as="dl" display="grid" gridTemplateColumns={{ base: "1fr", md: "max-content 1fr" }} columnGap={4} rowGap={1} mb={4}>
    {facts
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => (
        <Box key={name} display="contents">
          <Box as="dt" color="fg.muted" mt={{ base: 2, md: 0 }}>
            {name}
          </Box>
          <Box as="dd" wordBreak="break-word">
            {value}
          </Box>
        </Box>
      ))}
  </Box>
);

export const Raw = ({ value }: { value: unknown }) => (
  <Box as="pre" fontSize="xs" overflowX="auto" whiteSpace="pre-wrap" bg="bg.muted" p={3} borderRadius="md" tabIndex={0}>
    {typeof value === "string" ? value : JSON.stringify(value, null, 2)}
  </Box>
);
