import { Box, Button, Flex, SimpleGrid, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";
import { useSearchParams } from "react-router-dom";
import { useGet, type Rows as RowsOf } from "../api";
import { Bars } from "../chart";
import { Empty, Loaded, Rows, Said, Section, Tag, Title, To, When, duration, filterOf, pathOf } from "../parts";
import { texts } from "../texts";

type Counted = { number: number; rows: RowsOf };
type DutyAge = { duty: string; succeeded_at: string | null; success_run: number | null; failure_run: number | null; failed_at: string | null; allowed_seconds: number; overdue: boolean };
export type OverviewOf = {
  now: string;
  newest_look_at: string | null;
  newest_run: { run: number; as_of: string; read: number; verdicts: Record<string, number> } | null;
  numbers: (Counted & { name: string })[];
  pairs: PairOf[];
  cases: (Counted & { severity: string; oldest: string })[];
  duties: DutyAge[];
  findings: { finding: number; severity: string; title: string; topic: string; group: string; began_at: string }[];
  pauses: { topic: string; paused_at: string; paused_by: string; why: string }[];
  waits_for_me: number;
  oldest_backlog_seconds: number | null;
};
type HistoryOf = { buckets: { hour: string; verdicts: Record<string, number> }[] };

// Red for what is lost, orange for what needs a look, blue for what moves, green for what is done; each pair of neighbours differs.
const COLOURS: Record<string, string> = {
  LOST: "#c53030", UNSENT: "#e53e3e", EXHAUSTED: "#822727", STALLED: "#dd6b20", UNKNOWN: "#b7791f", DEAD_LETTERED: "#d69e2e",
  PARKED: "#805ad5", BACKLOGGED: "#3182ce", IN_PROGRESS: "#63b3ed", CONFIRMED: "#2f855a",
};
const BAD = ["lost", "unsent", "stalled", "unknown", "exhausted", "dead_lettered", "parked", "dead_letters_open"];

const Tile = ({ label, number, to, bad }: { label: string; number: number; to: string; bad: boolean }) => (
  <Box borderWidth={1} borderRadius="md" p={3} borderColor={bad && number > 0 ? "red.solid" : "border"} data-testid={`tile-${label}`}>
    <Text fontSize="xs" color="fg.muted">
      {label}
    </Text>
    <Text fontSize="2xl" fontWeight="semibold">
      <To to={to} label={`${label}: ${number}`}>
        {number.toLocaleString()}
      </To>
    </Text>
  </Box>
);

// What is not done, and what keeps Backstop from knowing: a duty that is overdue has not looked.
const notDone = (of: OverviewOf): number =>
  of.numbers.filter((one) => BAD.includes(one.name) && one.number > 0).length + of.cases.length + overdueOf(of);
const overdueOf = (of: OverviewOf): number => of.duties.filter((duty) => duty.overdue).length;

const pageOf = (rows: RowsOf): string => pathOf(rows.list, { filter: rows.filter });

export const History = ({ topic, group }: { topic?: string; group?: string }) => {
  const [hours, setHours] = useState(24);
  const of = `${topic ? `&topic=${encodeURIComponent(topic)}` : ""}${group ? `&group=${encodeURIComponent(group)}` : ""}`;
  const got = useGet<HistoryOf>(`/history?hours=${hours}${of}`, 60);
  const buckets = got.data?.buckets;
  const [names, stacks] = useMemo(() => {
    const seen = Object.keys(COLOURS).filter((verdict) => buckets?.some((bucket) => bucket.verdicts[verdict]));
    const format = new Intl.DateTimeFormat(undefined, hours > 24 ? { weekday: "short", hour: "2-digit" } : { hour: "2-digit", minute: "2-digit" });
    return [
      (buckets ?? []).map((bucket) => format.format(new Date(bucket.hour))),
      seen.map((verdict) => ({ label: verdict, colour: COLOURS[verdict]!, values: (buckets ?? []).map((bucket) => bucket.verdicts[verdict] ?? 0) })),
    ];
  }, [buckets, hours]);
  return (
    <Section title={texts.overview.history}>
      <Flex gap={2} mb={2}>
        {([[24, texts.overview.day], [168, texts.overview.week]] as const).map(([length, label]) => (
          <Button key={length} size="xs" variant={hours === length ? "solid" : "outline"} aria-pressed={hours === length} onClick={() => setHours(length)}>
            {label}
          </Button>
        ))}
      </Flex>
      <Loaded got={got}>
        {(data) => (data.buckets.length === 0 ? <Empty>{texts.overview.noHistory}</Empty> : <Bars label={texts.overview.history} names={names} stacks={stacks} />)}
      </Loaded>
    </Section>
  );
};

export type PairOf = { topic: string; group: string; verdicts: Record<string, number>; dead_letters: number };

export const Verdicts = ({ pair }: { pair: PairOf }) => (
  <Flex gap={2} wrap="wrap">
    {Object.entries(pair.verdicts).map(([verdict, number]) => (
      <To key={verdict} to={pathOf("/deliveries", { filter: filterOf({ topic: pair.topic, group: pair.group, verdict }) })}>
        <Tag>{verdict}</Tag> {number.toLocaleString()}
      </To>
    ))}
    {Object.keys(pair.verdicts).length === 0 ? texts.none : null}
  </Flex>
);

export const DeadLettersOf = ({ pair }: { pair: PairOf }) => (
  <To to={pathOf("/dead-letters", { filter: filterOf({ topic: pair.topic, group: pair.group, state: "undecided" }) })}>{pair.dead_letters.toLocaleString()}</To>
);

export const Overview = () => {
  const got = useGet<OverviewOf>("/overview", 15);
  return (
    <>
      <Title actions={<Button size="sm" variant="outline" onClick={got.again}>{texts.refresh}</Button>}>{texts.nav.overview}</Title>
      <Loaded got={got}>
        {(data) => {
          const shown = data.numbers.filter((one) => one.number > 0 || ["lost", "resent_today", "backlogged", "dead_letters_open", "exhausted"].includes(one.name));
          return (
            <>
              <Text mb={3} data-testid="answer">
                <strong>{notDone(data) === 0 ? texts.overview.allDone : texts.overview.notDone}</strong>{" "}
                {`${texts.newestLook}: `}
                {data.newest_look_at ? <When at={data.newest_look_at} /> : texts.never}
              </Text>
              <SimpleGrid minChildWidth="8rem" gap={3} mb={6}>
                {shown.map((one) => (
                  <Tile key={one.name} label={texts.numbers[one.name] ?? one.name} number={one.number} to={pageOf(one.rows)} bad={BAD.includes(one.name)} />
                ))}
                {data.cases.map((one) => (
                  <Tile key={one.severity} label={texts.severities[one.severity] ?? one.severity} number={one.number} to={pageOf(one.rows)} bad={one.severity === "critical"} />
                ))}
                <Tile label={texts.overview.waitsForMe} number={data.waits_for_me} to={pathOf("/cases", { filter: "waits:me" })} bad />
                <Tile label={texts.overview.overdueDuties} number={overdueOf(data)} to={OVERDUE} bad />
                <Tile label={texts.overview.pauses} number={data.pauses.length} to={pathOf("/resends")} bad={false} />
                {data.oldest_backlog_seconds === null ? null : (
                  <Box borderWidth={1} borderRadius="md" p={3}>
                    <Text fontSize="xs" color="fg.muted">{texts.overview.oldest}</Text>
                    <Text fontSize="2xl" fontWeight="semibold">
                      <To to={pathOf("/flow")}>{duration(data.oldest_backlog_seconds)}</To>
                    </Text>
                  </Box>
                )}
              </SimpleGrid>
              <Section title={texts.overview.pairs}>
                <Rows
                  label={texts.overview.pairs}
                  empty={texts.overview.empty}
                  rows={data.pairs}
                  columns={[
                    { name: texts.columns.topic, cell: (pair) => <To to={pathOf("/deliveries", { filter: filterOf({ topic: pair.topic }) })}>{pair.topic}</To> },
                    { name: texts.columns.group, cell: (pair) => <To to={pathOf("/pairs", { topic: pair.topic, group: pair.group })}>{pair.group}</To> },
                    { name: texts.columns.verdict, cell: (pair) => <Verdicts pair={pair} /> },
                    { name: texts.columns.deadLetters, number: true, cell: (pair) => <DeadLettersOf pair={pair} /> },
                  ]}
                />
                <Text mt={2} fontSize="sm" data-testid="conservation">
                  {data.newest_run ? (
                    <To to={pathOf(`/runs/${data.newest_run.run}`)}>
                      {texts.overview.conservation(data.newest_run.read, Object.entries(data.newest_run.verdicts).map(([verdict, number]) => `${number} ${verdict}`).join(" + ") || "0", data.newest_run.run)}
                    </To>
                  ) : (
                    texts.overview.noRun
                  )}
                </Text>
              </Section>
              <History />
              <Section title={texts.overview.duties}>
                <DutyAges duties={data.duties} />
              </Section>
              <Section title={texts.overview.findings}>
                <Rows
                  label={texts.overview.findings}
                  empty={texts.overview.noFindings}
                  rows={data.findings}
                  columns={[
                    { name: texts.columns.severity, cell: (finding) => <Tag>{finding.severity}</Tag> },
                    { name: texts.columns.what, wide: true, cell: (finding) => <Said>{finding.title}</Said> },
                    { name: texts.columns.since, cell: (finding) => <When at={finding.began_at} /> },
                  ]}
                />
              </Section>
              <Section title={texts.overview.pauses}>
                {data.pauses.length === 0 ? <Empty>{texts.overview.noPauses}</Empty> : data.pauses.map((pause) => (
                  <Text key={pause.topic}>
                    <To to={pathOf("/resends")}>{pause.topic === "*" ? texts.all : pause.topic}</To>
                    {`, ${texts.overview.pausedBy} ${pause.paused_by}: ${pause.why}`}
                  </Text>
                ))}
              </Section>
            </>
          );
        }}
      </Loaded>
    </>
  );
};

const OVERDUE = pathOf("/duties", { overdue: "true" });
const RunAt = ({ run, at }: { run: number | null; at: string | null }) =>
  run === null ? <When at={at} /> : <To to={pathOf(`/runs/${run}`)}><When at={at} /></To>;

const DutyAges = ({ duties }: { duties: DutyAge[] }) => (
  <Rows
    label={texts.overview.duties}
    empty={texts.overview.noneOverdue}
    rows={duties}
    columns={[
      { name: texts.columns.duty, cell: (duty) => <To to={pathOf("/runs", { empty: "true", filter: filterOf({ duty: duty.duty }) })}>{duty.duty}</To> },
      { name: texts.columns.state, cell: (duty) => <Tag kind={duty.overdue ? "overdue" : "inTime"}>{duty.overdue ? texts.overview.overdue : texts.overview.inTime}</Tag> },
      { name: texts.overview.succeeded, cell: (duty) => <RunAt run={duty.success_run} at={duty.succeeded_at} /> },
      { name: texts.overview.failed, cell: (duty) => <RunAt run={duty.failure_run} at={duty.failed_at} /> },
      { name: texts.overview.allowed, cell: (duty) => duration(duty.allowed_seconds) },
    ]}
  />
);

// The duties that the first page counts as overdue, or all of them.
export const Duties = () => {
  const [search, setSearch] = useSearchParams();
  const overdue = search.get("overdue") === "true";
  const got = useGet<OverviewOf>("/overview", 15);
  return (
    <>
      <Title
        actions={
          <Button size="sm" variant="outline" onClick={() => setSearch(overdue ? {} : { overdue: "true" })}>
            {overdue ? texts.overview.allDuties : texts.overview.onlyOverdue}
          </Button>
        }
      >
        {overdue ? texts.overview.overdueDuties : texts.overview.duties}
      </Title>
      <Loaded got={got}>{(data) => <DutyAges duties={data.duties.filter((duty) => duty.overdue || !overdue)} />}</Loaded>
      <Text mt={2} fontSize="sm">{texts.overview.overdueHelp}</Text>
    </>
  );
};

// Small enough for a dashboard; nothing at all for who may not see it.
export const Card = () => {
  const got = useGet<OverviewOf>("/overview", 60);
  if (got.data === null) return null;
  const bad = got.data.numbers.filter((one) => BAD.includes(one.name) && one.number > 0);
  return (
    <Box borderWidth={1} borderRadius="md" p={3} data-testid="backstop-card">
      <Flex gap={4} wrap="wrap" align="baseline">
        <To to={pathOf("")}>
          <strong>{texts.title}</strong>
        </To>
        {notDone(got.data) === 0 ? <Text>{texts.overview.allDone}</Text> : null}
        {bad.map((one) => (
          <To key={one.name} to={pageOf(one.rows)}>{`${texts.numbers[one.name] ?? one.name}: ${one.number.toLocaleString()}`}</To>
        ))}
        {overdueOf(got.data) > 0 ? <To to={OVERDUE}>{`${texts.overview.overdueDuties}: ${overdueOf(got.data)}`}</To> : null}
        {got.data.waits_for_me > 0 ? <To to={pathOf("/cases", { filter: "waits:me" })}>{`${texts.overview.waitsForMe}: ${got.data.waits_for_me}`}</To> : null}
      </Flex>
    </Box>
  );
};
